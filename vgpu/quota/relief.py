"""Which pods would have to end for a namespace to be within its quota again; pure."""

from collections.abc import Sequence

from vgpu.quota.check import overruns
from vgpu.quota.limits import NamespaceQuota
from vgpu.quota.usage import NamespaceUsage, PodUsage


def relief(
    quota: NamespaceQuota,
    pods: Sequence[tuple[str, PodUsage]],
    leaving: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """UIDs of pods without which no limit is exceeded, in the order of ``pods``.

    ``pods`` are all that count for the quota, by UID, and those that are to end first come first.
    ``leaving`` end without this. No pod of the answer could stay: without it a limit is exceeded.
    """
    used = NamespaceUsage()
    for uid, usage in pods:
        if uid not in leaving:
            used.set(uid, usage)
    ended: list[tuple[str, PodUsage]] = []
    for uid, usage in pods:
        exceeded = [*overruns(quota, used.by_model)]
        if not exceeded:
            break
        if uid not in leaving and any(each.limit.of(usage.by_model) for each in exceeded):
            used.set(uid, None)
            ended.append((uid, usage))
    needed: list[str] = []
    for uid, usage in reversed(ended):
        used.set(uid, usage)
        if any(overruns(quota, used.by_model)):
            used.set(uid, None)
            needed.append(uid)
    return tuple(reversed(needed))
