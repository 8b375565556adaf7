"""All evidence about a node, merged into its ledger.

For evidence E with its statements, L = merge(E), and ``holders``, ``devices(h)`` and
``disputed(h)`` of a ledger:

- The order does not count, with one exception: our own checkpoint's statements of one pod are in
  the order in which its containers start, which shows when they run where the pod's spec is
  unknown. ``merge(π(E)) = L`` for each permutation π that keeps that order.
- Repetition does not count: ``merge(E + E) = L``.
- Without a source s only less is known: for ``L' = merge(E - s)``,
  ``holders(L') ⊆ holders(L)``, and ``devices'(h) ⊆ devices(h) + disputed(h)`` for each h of them.
  The list of pods at the API server is no such source: without it the end of a pod is unknown,
  and a pod counts that the node itself shows to be alive. Nor are the processes: without them an
  init container that has ended is a holder beside the one that has its device IDs now.
- The containers of a pod have a device ID of the kubelet's one after another, so that no sum has an
  ID of a pod twice (:mod:`vgpu.ledger.device_ids`).
- A device's total is the sum of its pods' peaks, and too large a total is a conflict:
  ``held(d) = Σ effective(p, d)`` over its pods p (:mod:`vgpu.model.allocation`), and
  ``OVERCOMMITTED(d) ⇔ held(d) > capacity(d)`` in memory, cores or slots.
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import filterfalse

from msgspec import structs

from vgpu.kube.kept_keys import is_gpu_resource
from vgpu.ledger import checks
from vgpu.ledger.conflicts import Conflict, ConflictKind
from vgpu.ledger.entries import DeviceEntry, Holding, Ledger
from vgpu.ledger.liveness import Liveness, liveness_of, pods_by_node_uid
from vgpu.ledger.pods import Known, PodResolution, SupportedHolding, resolve_pod
from vgpu.ledger.registry import Registry
from vgpu.ledger.statements import GIVERS, KUBELET, Containers, Evidence, Statement, Wanted, by_pod
from vgpu.ledger.totals import excesses, held
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, Source
from vgpu.model.objects import Pod
from vgpu.schemes.nvidia.grant import UNKNOWN
from vgpu.schemes.other_schedulers import other_scheduler

NO_POD = ""
"""The UID of what belongs to no pod."""

_KINDS = {kind: position for position, kind in enumerate(ConflictKind)}


class ResolutionCache:
    """The pods of the merge before, so that unchanged ones are not resolved again.

    One thread uses it.
    """

    def __init__(self) -> None:
        self._devices: tuple[object, ...] = ()
        self._kept: dict[str, tuple[Known, Containers, PodResolution]] = {}
        self._current: dict[str, tuple[Known, Containers, PodResolution]] = {}

    def begin(self, evidence: Evidence) -> None:
        """Begin a merge; with other devices all pods are resolved again."""
        devices = (evidence.node, evidence.devices, evidence.devices_complete, evidence.lost)
        self._kept = self._current if devices == self._devices else {}
        self._devices, self._current = devices, {}

    def resolve(self, known: Known, containers: Containers, registry: Registry) -> PodResolution:
        """As :func:`resolve_pod`."""
        kept = self._kept.get(known.pod.uid)
        if kept is None or kept[0] != known or kept[1] != containers:
            kept = (known, containers, resolve_pod(known, containers, registry))
        self._current[known.pod.uid] = kept
        return kept[2]


def merge(evidence: Evidence, cache: ResolutionCache | None = None) -> Ledger:
    """The ledger of one node. Never raises: what is impossible is a conflict.

    ``cache`` has the pods of the merge before.
    """
    pods = pods_by_node_uid(evidence.pods)
    others = {uid for uid, pod in pods.items() if other_scheduler(pod) is not None}
    if others:
        evidence = structs.replace(evidence, statements=_of_nobody(evidence.statements, others))
    registry = Registry(evidence)
    cache = cache or ResolutionCache()
    cache.begin(evidence)
    wanted = sorted(dict.fromkeys(evidence.wanted), key=_asking)
    asked = [want for want in wanted if want.pod.uid not in evidence.unread_grants]
    malformed = sorted(dict.fromkeys(evidence.malformed), key=repr)
    containers_by_pod = by_pod(evidence.statements)
    uncontained = containers_by_pod.get(NO_POD, {}).pop("", ())
    own = _own_by_pod(evidence.statements)
    resolutions = [
        cache.resolve(
            _known(uid, containers, pods, own.get(uid, ()), evidence), containers, registry
        )
        for uid, containers in sorted(containers_by_pod.items())
        if containers
    ]
    holders = sorted((holder for pod in resolutions for holder in pod.holders), key=_holding)
    holdings_by_pod: dict[str, list[Holding]] = {}
    for holder in holders:
        holdings_by_pod.setdefault(holder.holding.pod.uid, []).append(holder.holding)
    entries, overcommitted = _devices(registry, holders, resolutions)
    conflicts = [
        *overcommitted,
        *(conflict for pod in resolutions for conflict in pod.conflicts),
        *checks.double_booked((s for pod in resolutions for s in pod.statements), holdings_by_pod),
        *checks.several_schemes(holders, registry),
        *checks.without_device(asked, containers_by_pod, evidence.read - evidence.incomplete),
        *checks.by_no_container(uncontained, registry),
        *checks.of_resource_claims(evidence, registry),
        *checks.of_groups(evidence),
        *checks.unreadable(malformed),
    ]
    excused = tuple(filter(partial(_is_excused, others), conflicts)) if others else ()
    return Ledger(
        node=evidence.node,
        devices=entries,
        unplaced=tuple(
            holder.holding
            for holder in holders
            if holder.holding.share.device not in registry.devices
        ),
        waiting=tuple(checks.waiting(wanted, holdings_by_pod)),
        unproven=tuple(statement for pod in resolutions for statement in pod.unproven),
        leftovers=tuple(statement for pod in resolutions for statement in pod.leftovers),
        conflicts=tuple(sorted(filterfalse(excused.__contains__, conflicts), key=_conflict)),
        of_other_schedulers=tuple(sorted(excused, key=_conflict)),
        malformed=tuple(malformed),
        read=evidence.read,
        bounds=evidence.bounds,
    )


def _of_nobody(statements: Iterable[Statement], others: Collection[str]) -> tuple[Statement, ...]:
    """The statements, those of regions of other systems' pods with an unknown system.

    HAMi-core is a library: that a container has it does not show whose share it is.
    """
    return tuple(
        structs.replace(each, scheme=UNKNOWN)
        if each.source is Source.SHIM and each.pod.uid in others
        else each
        for each in statements
    )


def _own_by_pod(statements: Iterable[Statement]) -> dict[str, list[Statement]]:
    """Our own checkpoint's statements, including init containers that have succeeded."""
    own: dict[str, list[Statement]] = {}
    for statement in statements:
        if statement.source is Source.OWN_CHECKPOINT:
            own.setdefault(statement.pod.uid, []).append(statement)
    return own


def _known(
    uid: str,
    containers: Containers,
    pods: Mapping[str, Pod],
    own: Iterable[Statement],
    evidence: Evidence,
) -> Known:
    """The facts about the pod apart from the statements about its devices.

    ``own`` are our checkpoint's: where the pod's spec is unknown, they show when containers run.
    """
    statements = [statement for of_container in containers.values() for statement in of_container]
    listed = evidence.pods_complete and (
        uid in pods
        or not (uid in evidence.unread_grants or any(map(_of_unknown_resource, statements)))
    )
    liveness = liveness_of(uid, pods, evidence.live_pods, pods_complete=listed)
    asked = not uid or (_is_complete(evidence) and uid not in evidence.unread_grants)
    pod = pods.get(uid)
    if pod is not None:
        kinds = {
            container.name: container.kind
            for container in pod.containers
            if container.kind is not ContainerKind.APP
        }
        ref = PodRef(uid, pod.ref.namespace, pod.ref.name)
        succeeded = _plain(kinds) if pod.initialized() else frozenset()
        ended = liveness is Liveness.ENDED
        return Known(
            ref,
            liveness,
            over=ended,
            named=True,
            kinds=kinds,
            order=tuple(kinds),
            succeeded=succeeded,
            asked=asked,
            specified=True,
        )
    named = evidence.names.get(uid)
    ref = named or max(
        (statement.pod for statement in statements), key=lambda pod: (pod.namespace, pod.name)
    )
    # Any pod may have a process on a device; only those that request shares have to be in the
    # evidence. Nothing in a pod's resources shows that it uses a ResourceClaim.
    shares = any(
        statement.source is not Source.PROCESS and statement.scheme is not Scheme.DRA
        for statement in statements
    )
    kinds = {
        statement.container: statement.kind
        for statement in own
        if statement.kind is not ContainerKind.APP
    }
    return Known(
        PodRef(uid, ref.namespace, ref.name),
        liveness,
        over=listed and shares,
        named=named is not None,
        kinds=kinds,
        order=tuple(kinds),
        succeeded=frozenset(statement.container for statement in own if _has_succeeded(statement)),
        asked=asked,
        running=_running(uid, evidence),
        started=_of_pod(uid, evidence.started),
    )


def _is_excused(others: AbstractSet[str], conflict: Conflict) -> bool:
    """Whether it is none since its pods are of other GPU schedulers; ``others`` are their UIDs."""
    if conflict.kind is ConflictKind.PROCESS_WITHOUT_ALLOCATION:
        return conflict.pod is not None and conflict.pod.uid in others
    uids = {statement.pod.uid for statement in conflict.statements}
    return conflict.kind is ConflictKind.DOUBLE_BOOKED and uids <= others


def _of_unknown_resource(statement: Statement) -> bool:
    """Whether the kubelet allocated it by resources whose names are not known.

    The list of pods that share GPUs does not have a pod that requests only such resources.
    """
    if statement.source not in KUBELET or not statement.slices:
        return False
    return not any(is_gpu_resource(resource) for resource, _ in statement.slices)


def _running(uid: str, evidence: Evidence) -> frozenset[str] | None:
    """The containers that run; None if that is unknown, or one that runs has no known name."""
    names = None if evidence.running is None else _of_pod(uid, evidence.running)
    return None if names is None or "" in names else names


def _of_pod(uid: str, places: Iterable[tuple[str, str]]) -> frozenset[str]:
    return frozenset(container for pod_uid, container in places if pod_uid == uid)


def _has_succeeded(own: Statement) -> bool:
    return own.kind is ContainerKind.INIT and own.phase is Phase.RELEASED


def _plain(kinds: Mapping[str, ContainerKind]) -> frozenset[str]:
    """The init containers that run to their end."""
    return frozenset(name for name, kind in kinds.items() if kind is ContainerKind.INIT)


def _is_complete(evidence: Evidence) -> bool:
    """Whether the kubelet and all givers reported completely: no allocation is unknown then."""
    return bool(evidence.read & KUBELET) and evidence.incomplete.isdisjoint(GIVERS)


def _devices(
    registry: Registry, holders: Iterable[SupportedHolding], resolutions: Iterable[PodResolution]
) -> tuple[tuple[DeviceEntry, ...], list[Conflict]]:
    """The entries, and a conflict for each device whose holdings exceed it."""
    by_device: dict[str, list[SupportedHolding]] = {name: [] for name in registry.devices}
    for holder in holders:
        by_device.setdefault(holder.holding.share.device, []).append(holder)
    disputed: dict[str, list[Statement]] = {}
    for resolution in resolutions:
        for device_name, statement in resolution.disputed:
            disputed.setdefault(device_name, []).append(statement)
    entries: list[DeviceEntry] = []
    conflicts: list[Conflict] = []
    for name, device in registry.devices.items():
        holdings = tuple(holder.holding for holder in by_device[name])
        total = held(holdings)
        lost = name in registry.lost
        disputing = tuple(disputed.get(name, ()))
        entries.append(DeviceEntry(device, holdings, total, disputing, lost))
        excess = "; ".join(excesses(total, device))
        if excess:
            parties = tuple(basis for holder in by_device[name] for basis in holder.basis)
            kind = ConflictKind.OVERCOMMITTED
            conflicts.append(Conflict(kind, name, statements=parties, detail=excess))
    return tuple(entries), conflicts


# ---------------------------------------------------------------- one order for everything


def _holding(holder: SupportedHolding) -> tuple[str, str, str, str, str]:
    holding = holder.holding
    pod = holding.pod
    return pod.namespace, pod.name, pod.uid, holding.container, holding.share.device


def _asking(wanted: Wanted) -> tuple[str | int, ...]:
    pod, request = wanted.pod, wanted.request
    name = (pod.namespace, pod.name, pod.uid, request.container, wanted.scheme)
    return *name, request.count, request.memory_bytes or -1, request.cores_milli


def _conflict(conflict: Conflict) -> tuple[int, str, str, str, str, str, list[str]]:
    pod = conflict.pod or PodRef("", "", "")
    who = (pod.namespace, pod.name, conflict.container)
    looks = [statement.where for statement in conflict.statements]
    return _KINDS[conflict.kind], conflict.device, *who, conflict.detail, looks
