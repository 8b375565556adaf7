"""The pods of a cluster in groups: what each namespace, team or owner requests, holds and uses.

The API server does not know how much of its share a pod uses: only the exporter of its node does.
Pure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from vgpu.inventory.nvidia import requested_units
from vgpu.inventory.pod_usage import PodAccount, usage_by_namespace
from vgpu.ledger.limit_verdict import NOT_ENFORCED_STATES, LimitReason, worst
from vgpu.model.names import Phase
from vgpu.model.objects import Pod
from vgpu.quota.check import Overrun
from vgpu.quota.limits import NamespaceQuota
from vgpu.quota.resources import CORES, GPUS, MEMORY, Amounts, plus
from vgpu.quota.usage import with_observed
from vgpu.schemes.limit_ways import LimitWay
from vgpu.schemes.registry import registry


class MeasuredUse(msgspec.Struct, frozen=True):
    """What a pod uses, by its exporter. A resource that is not measured is missing, never 0.

    Attributes:
        used: ``memory`` in bytes, ``cores`` in thousandths of a GPU's.
        idle: what is allocated and not used of the same resources, never below 0.
        limits: container -> the reason code of its limit's state, as far as it is reported.
    """

    used: Amounts = {}
    idle: Amounts = {}
    limits: Mapping[str, str] = {}


class GroupUse(msgspec.Struct, frozen=True):
    """What the measured pods of a group use together.

    Attributes:
        pods: number of pods that hold a share and whose memory is measured.
        holding_pods: number of pods that hold a share.
        used, idle: as of :class:`MeasuredUse`; a resource that no pod has is missing.
    """

    pods: int = 0
    holding_pods: int = 0
    used: Amounts = {}
    idle: Amounts = {}


def group_use(accounts: Iterable[PodAccount], measured: Mapping[str, MeasuredUse]) -> GroupUse:
    """The sums of these pods; ``measured`` is by the UID of the pod on its node."""
    accounts = tuple(accounts)
    of_pods = [
        (account, use)
        for account in accounts
        if (use := measured.get(account.pod.kubelet_uid)) is not None
    ]
    return GroupUse(
        sum(account.phase is not None and MEMORY in use.used for account, use in of_pods),
        sum(account.phase is not None for account in accounts),
        plus(*(use.used for _, use in of_pods)),
        plus(*(use.idle for _, use in of_pods)),
    )


_NONE: Amounts = {GPUS: 0, MEMORY: 0, CORES: 0}


class GroupUsage(msgspec.Struct, frozen=True):
    """The pods of one group that hold or request shares. Amounts have all three resources.

    Attributes:
        name: the namespace, the team, or the owner as ``<namespace>/<kind>/<name>``; "" is none.
        pods: number of pods.
        waiting_pods: number of those that hold nothing.
        nvidia: units of each resource of NVIDIA's own device plugin that the pods on nodes have;
            these units are in no other amount but ``limits``.
        requested: of all pods.
        waiting: requested by pods that hold nothing.
        assumed: held by pods that a scheduler has placed and the device plugin has not served.
        assigned: held by pods that the device plugin has served.
        limits: the quota of a namespace: each limit with what is used of it.
        quota: the quota of a namespace, None of other groups.
        use: what exporters measured, None if none was asked.
        not_enforced_bytes: memory held by pods that nothing limits to it: by their system, or as
            exporters report.
    """

    name: str
    pods: int
    waiting_pods: int
    requested: Amounts
    waiting: Amounts
    assumed: Amounts
    assigned: Amounts
    limits: tuple[Overrun, ...] = ()
    quota: NamespaceQuota | None = None
    nvidia: Mapping[str, int] = {}
    use: GroupUse | None = None
    not_enforced_bytes: int = 0


def owner_of(pod: Pod) -> str:
    """The controller of a pod, or the pod itself, in its namespace."""
    namespace = pod.ref.namespace
    if pod.owner is None:
        return f"{namespace}/Pod/{pod.ref.name}"
    return f"{namespace}/{pod.owner.kind}/{pod.owner.name}"


def group_usage(
    accounts: Iterable[PodAccount],
    group_of: Callable[[Pod], str],
    quotas: Mapping[str, NamespaceQuota] | None = None,
    nvidia: Iterable[Pod] = (),
    measured: Mapping[str, MeasuredUse] | None = None,
) -> list[GroupUsage]:
    """The groups by name; those without a name come last. ``nvidia`` are NVIDIA's plugin's pods.

    ``quotas`` are by namespace, where the groups are namespaces. A namespace with a quota has a
    group although it has no pods. ``measured`` is by the UID of the pod on its node, None if no
    exporter was asked.
    """
    groups: dict[str, list[PodAccount]] = {name: [] for name in quotas or ()}
    for account in accounts:
        groups.setdefault(group_of(account.pod), []).append(account)
    observed: dict[str, list[Pod]] = {}
    for pod in nvidia:
        if requested_units(pod):
            observed.setdefault(group_of(pod), []).append(pod)
    names = sorted({*groups, *observed}, key=lambda name: (not name, name))
    found = []
    for name in names:
        of_group = groups.get(name, [])
        group = _group(name, of_group, (quotas or {}).get(name), observed.get(name, []))
        use = None if measured is None else group_use(of_group, measured)
        free = not_enforced_bytes(of_group, measured or {})
        found.append(replace(group, use=use, not_enforced_bytes=free))
    return found


def not_enforced_bytes(accounts: Iterable[PodAccount], measured: Mapping[str, MeasuredUse]) -> int:
    """The memory held by pods that nothing limits to it.

    What exporters report of a pod counts before what its system does; a whole GPU needs no limit.
    """
    total = 0
    for account in accounts:
        use = measured.get(account.pod.kubelet_uid)
        reasons = (
            [_REASONS[code] for code in use.limits.values() if code in _REASONS] if use else []
        )
        if reasons:
            reason = worst(reasons)
            is_free = reason.state in NOT_ENFORCED_STATES
            is_free = is_free and reason is not LimitReason.WHOLE_DEVICE
        else:
            is_free = any(way.word for way in _ways(account.pod))
        total += account.held[MEMORY] if is_free else 0
    return total


_REASONS: Mapping[str, LimitReason] = {reason.value: reason for reason in LimitReason}


def _ways(pod: Pod) -> Iterator[LimitWay]:
    """How the systems limit whose resources the pod requests."""
    requested = {name for container in pod.containers for name in container.limits}
    for row in registry().rows:
        if not requested.isdisjoint(registry().advertised_by.get(row.name, ())):
            yield row.limit_way


def _group(
    name: str, accounts: list[PodAccount], quota: NamespaceQuota | None, nvidia: list[Pod]
) -> GroupUsage:
    waiting = [account for account in accounts if account.phase is None]
    bound = [pod for pod in nvidia if pod.node]
    units: Counter[str] = Counter()
    for pod in bound:
        units.update(requested_units(pod))

    def held(phase: Phase) -> Amounts:
        return plus(_NONE, *(each.held for each in accounts if each.phase is phase))

    limits: tuple[Overrun, ...] = ()
    if quota is not None:
        usage = usage_by_namespace(accounts).get(quota.namespace)
        used = with_observed(usage.by_model if usage is not None else {}, bound)
        limits = tuple(Overrun(limit, limit.of(used)) for limit in quota.limits)
    return GroupUsage(
        name,
        len(accounts) + len(nvidia),
        len(waiting) + len(nvidia) - len(bound),
        plus(_NONE, *(each.requested for each in accounts)),
        plus(_NONE, *(each.requested for each in waiting)),
        held(Phase.ASSUMED),
        held(Phase.ASSIGNED),
        limits,
        quota,
        dict(sorted(units.items())),
    )
