"""Usage compared with a quota: whether a pod fits, which limits are exceeded, what would help.

Pure.

The scheduler refuses a pod by :func:`check`. The reconciler and ``vgpu inspect`` report by
:func:`overruns`. Both compare by the same function, so they never disagree about a limit. The
reconciler marks a Namespace that exceeds its quota (:func:`mark`): an admission policy refuses
further pods with GPUs while the mark is there (:mod:`vgpucli.quota.manifests`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from vgpu.model.objects import Node
from vgpu.placement.result import PlacementReason
from vgpu.quota.limits import NamespaceQuota, QuotaLimit
from vgpu.quota.resources import Amounts, amount_text
from vgpu.quota.usage import NamespaceUsage, PodUsage, node_model, node_pool
from vgpu.schemes.registry import names_of


class QuotaRefusal(msgspec.Struct, frozen=True):
    """Why a pod does not fit into the quota of its namespace.

    Attributes:
        reason: the code.
        detail: the limit with its amounts, and where it is declared, for people.
    """

    reason: PlacementReason
    detail: str

    @property
    def text(self) -> str:
        """The reason with its detail, for people."""
        return f"{self.reason.explanation}: {self.detail}"


class Overrun(msgspec.Struct, frozen=True):
    """A limit that is exceeded; ``used`` is in the unit of its resource."""

    limit: QuotaLimit
    used: int

    @property
    def text(self) -> str:
        """What is used of the limit, for people."""
        limit = self.limit
        used, most = (amount_text(limit.resource, each) for each in (self.used, limit.amount))
        return f"{limit.name}: {used} of {most} ({limit.declared[0].declared_in})"


def check(
    quota: NamespaceQuota,
    used: Mapping[str, Amounts],
    pod: PodUsage,
    *,
    is_placed: bool = True,
) -> QuotaRefusal | None:
    """Why the pod does not fit beside what is used; None if it does.

    ``used`` are the amounts of the namespace's other pods, by model. A limit of which the pod
    counts nothing does not refuse it, however much is used. Without ``is_placed`` the GPUs of the
    pod, and so their models, are not known yet: only the limits of all models are compared.
    """
    total = pod.total
    for unreadable in quota.unreadable:
        if total and (not unreadable.resource or total.get(unreadable.resource)):
            detail = f"{unreadable.declared_in}: {unreadable.detail}"
            return QuotaRefusal(PlacementReason.QUOTA_UNREADABLE, detail)
    for limit in quota.limits:
        if limit.model and not is_placed:
            continue
        requested = limit.of(pod.by_model)
        in_use = limit.of(used)
        if requested and in_use + requested > limit.amount:
            return QuotaRefusal(PlacementReason.QUOTA, _detail(limit, in_use, requested))
    return None


def check_node(quota: NamespaceQuota, pod: PodUsage, node: Node | None) -> QuotaRefusal | None:
    """Why gpu-admission's quota excludes the node for the pod; None if it does not."""
    rule = quota.node_rule
    if rule is None or names_of("gaia").cores not in pod.total:
        return None
    if rule.models is not None and node_model(node) not in rule.models:
        return QuotaRefusal(PlacementReason.QUOTA_MODEL, rule.declared_in)
    if rule.pools and node_pool(node) not in rule.pools:
        return QuotaRefusal(PlacementReason.QUOTA_POOL, rule.declared_in)
    return None


def overruns(quota: NamespaceQuota, used: Mapping[str, Amounts]) -> Iterator[Overrun]:
    """The limits that are exceeded."""
    for limit in quota.limits:
        in_use = limit.of(used)
        if in_use > limit.amount:
            yield Overrun(limit, in_use)


def _detail(limit: QuotaLimit, in_use: int, requested: int) -> str:
    used, asked, most = (
        amount_text(limit.resource, each) for each in (in_use, requested, limit.amount)
    )
    declared_in = limit.declared[0].declared_in
    return f"{limit.name}: {used} of {most} used, {asked} requested ({declared_in})"


OVER_QUOTA: Final = "vgpu.dev/over-quota"
"""The annotation that marks a Namespace whose pods exceed its quota; the reconciler sets it."""


def mark(quota: NamespaceQuota, used: Mapping[str, Amounts]) -> str | None:
    """The mark that the Namespace of a quota should have; None if it is within the quota.

    It names the exceeded limits without their amounts, so that it changes seldom.
    """
    return ", ".join(overrun.limit.name for overrun in overruns(quota, used)) or None


def relief(
    quota: NamespaceQuota,
    pods: Sequence[tuple[str, PodUsage]],
    leaving: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """UIDs of the pods that would have to end so that no limit is exceeded, in that order.

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
