"""KAI Scheduler's shares on one node, from the pods of its GPU groups; what is wrong there. Pure.

The size of a share is the scheduler's, which is what others cannot have. What HAMi-core enforces
of it is another number (:mod:`vgpu.schemes.kai.request`): a region with that number agrees with
the share.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
from msgspec import structs

from vgpu.kube.kai_kinds import BindRequest
from vgpu.ledger.conflict_kinds import ConflictKind
from vgpu.ledger.liveness import node_uid
from vgpu.ledger.statements import KUBELET, GroupProblem, Statement
from vgpu.model.allocation import Device, Share
from vgpu.model.facts import Grant
from vgpu.model.names import Phase, PodRef, Source
from vgpu.model.objects import Node, Pod, holds_devices
from vgpu.model.units import MIB, count
from vgpu.schemes.kai.config_map import ConfigMaps, config_map_names, visible_gpus
from vgpu.schemes.kai.groups import (
    GpuGroups,
    Place,
    doubted_groups,
    gpu_groups,
    groups_of,
    is_reservation,
    may_be_reservation,
    reserved_gpu,
)
from vgpu.schemes.kai.keys import GPU_GROUP, KAI, RESERVED_GPU
from vgpu.schemes.kai.request import (
    AskedFraction,
    asked,
    capacity_mib,
    fraction_container,
    label_mib,
    printed,
)

_MODEL_LABEL: Final = "nvidia.com/gpu.product"

FAILED: Final = "Failed"
"""The phase of a BindRequest that the binder has abandoned."""

_MOST_NAMED: Final = 3
"""Maximum number of pods that a conflict names."""

_TOLERANCE_MIB: Final = 1
"""Maximum difference between a limit that is computed and one that is enforced, in MiB."""


class GroupEvidence(msgspec.Struct, frozen=True):
    """What the pods of a node's groups show.

    Attributes:
        statements: the shares of tenants whose GPUs are known.
        devices: the GPUs that reservation pods have, each with the memory that KAI shares.
        problems: what is wrong with groups and reservation pods.
        limits: UID on the node -> the limit that HAMi-core is to enforce, and the size that
            the scheduler counts, in bytes.
        is_used: whether a pod of the node is KAI's.
    """

    statements: tuple[Statement, ...] = ()
    devices: tuple[Device, ...] = ()
    problems: tuple[GroupProblem, ...] = ()
    limits: Mapping[str, tuple[int, int]] = {}
    is_used: bool = False


NO_GROUPS: Final = GroupEvidence()
"""The evidence of a node without KAI's pods."""


def group_evidence(
    pods: Iterable[Pod],
    node: Node | None,
    sizes: Mapping[str, int] | None = None,
    granted: Mapping[str, frozenset[str]] | None = None,
    *,
    lists_all: bool,
    lists_tenants: bool = True,
    promised_to: AbstractSet[str] = frozenset(),
    doubted: AbstractSet[Place] = frozenset(),
) -> GroupEvidence:
    """The evidence of a node's pods, which are :func:`~vgpu.schemes.kai.groups.resolved`.

    ``sizes`` are the MiB of the node's GPUs by UUID, where the driver was asked; the label of the
    ``node`` comes first, as it does for KAI. ``granted`` are the devices that the kubelet has
    allocated, by the UID of the reservation pod. ``lists_all`` is whether no reservation pod of
    the node is missing among the pods, ``lists_tenants`` whether no pod of a group is, and
    ``promised_to`` are groups that pods will have.
    ``doubted`` are :func:`~vgpu.schemes.kai.groups.doubted_groups` of further pods.
    """
    here = tuple(pods)
    groups = gpu_groups(here)
    if not (groups.reservations or groups.tenants):
        return NO_GROUPS
    label, by_uuid = label_mib(node), sizes or {}
    tenants = {pod.ref.uid: pod for pods in groups.tenants.values() for pod in pods}
    living = [pod for pod in tenants.values() if holds_devices(pod)]
    statements: list[Statement] = []
    limits: dict[str, tuple[int, int]] = {}
    for pod in sorted(living, key=_name_of):
        if pod.group_gpus:
            request = asked(pod)
            mib = label or by_uuid.get(pod.group_gpus[0])
            statements.append(_statement(pod, request, label, by_uuid))
            limit, room = request.limit_mib(mib), request.room_mib(mib)
            if limit is not None and room is not None:
                limits[node_uid(pod)] = limit * MIB, room * MIB
    return GroupEvidence(
        tuple(statements),
        tuple(_devices(groups, node)),
        (
            *_of_groups(groups, doubted | doubted_groups(here), lists_all=lists_all),
            *_of_reservations(groups, granted, promised_to if lists_tenants else None),
            *_of_gpus(groups),
            *_of_tenants(living, label),
        ),
        limits,
        is_used=True,
    )


def _statement(
    pod: Pod, request: AskedFraction, label: int | None, sizes: Mapping[str, int]
) -> Statement:
    ref = PodRef(node_uid(pod), pod.ref.namespace, pod.ref.name)
    shares = []
    for uuid in pod.group_gpus:
        mib = request.room_mib(label or sizes.get(uuid))
        shares.append(Share(uuid, None if mib is None else mib * MIB))
    return Statement(
        source=Source.RESERVATION_POD,
        pod=ref,
        container=fraction_container(pod),
        shares=tuple(shares),
        scheme=KAI,
        phase=Phase.ASSIGNED,
        since=pod.scheduled_at,
        where=f"label {GPU_GROUP} of {ref.namespace}/{ref.name}",
    )


def promised(
    pod: Pod, bind_request: BindRequest, pods: Iterable[Pod], node: Node | None
) -> Statement:
    """The share that KAI's scheduler has promised to a pod that is not bound yet.

    A group that no other pod has is on a GPU that nobody knows yet, since the binder makes its
    reservation pod later. ``pods`` are those of the ``node``.
    """
    groups, label = gpu_groups(pods), label_mib(node)
    mib = asked(pod).room_mib(label)
    return Statement(
        source=Source.BIND_REQUEST,
        pod=PodRef(node_uid(pod), pod.ref.namespace, pod.ref.name),
        container=fraction_container(pod),
        shares=tuple(
            Share(groups.gpu(bind_request.node, group), None if mib is None else mib * MIB)
            for group in promised_groups(pod, bind_request)
        ),
        scheme=KAI,
        phase=Phase.ASSUMED,
        since=bind_request.created_at,
        node=bind_request.node,
        where=f"BindRequest {bind_request.namespace}/{bind_request.name}",
    )


def configured(
    pods: Iterable[Pod], config_maps: ConfigMaps, node: Node | None
) -> Iterator[Statement]:
    """The shares of bound tenants by the ConfigMaps that pass the GPUs to their containers."""
    mib = label_mib(node)
    for pod in pods if config_maps else ():
        gpus = visible_gpus(pod, config_maps) if groups_of(pod) and pod.node else ()
        if gpus and holds_devices(pod) and not is_reservation(pod):
            room = asked(pod).room_mib(mib)
            yield Statement(
                source=Source.CONFIG_MAP,
                pod=PodRef(node_uid(pod), pod.ref.namespace, pod.ref.name),
                container=fraction_container(pod),
                shares=tuple(Share(each, None if room is None else room * MIB) for each in gpus),
                scheme=KAI,
                phase=Phase.ASSIGNED,
                since=pod.scheduled_at,
                where=f"ConfigMap {pod.ref.namespace}/{config_map_names(pod)[0]}",
            )


def promised_groups(pod: Pod, bind_request: BindRequest) -> tuple[str, ...]:
    """The groups of a pod that is being bound: those of its labels, which the binder writes.

    A BindRequest that was replaced meanwhile may name other groups than the binder has used.
    """
    return groups_of(pod) or bind_request.groups


def awaited_groups(pods: Iterable[Pod]) -> frozenset[str]:
    """The groups of living pods without a node, whose label the binder has written already."""
    waiting = (pod for pod in pods if not pod.node and pod.labels and holds_devices(pod))
    return frozenset(group for pod in waiting for group in groups_of(pod))


def promises(pods: Iterable[Pod], bind_requests: Iterable[BindRequest]) -> dict[str, BindRequest]:
    """The BindRequests of shares of pods that are not bound, by the UID of the pod.

    One that has failed is deleted by the scheduler of KAI, which then decides again.
    """
    by_pod = {
        (each.namespace, each.pod or each.name): each
        for each in bind_requests
        if each.groups and each.node and each.phase != FAILED
    }
    found = {}
    for pod in pods if by_pod else ():
        bind_request = by_pod.get((pod.ref.namespace, pod.ref.name))
        if pod.node or bind_request is None or not bind_request.is_of(pod.ref):
            continue
        if holds_devices(pod):
            found[pod.ref.uid] = bind_request
    return found


def _devices(groups: GpuGroups, node: Node | None) -> Iterator[Device]:
    uuids = {reserved_gpu(pod) for pods in groups.reservations.values() for pod in pods}
    return (shared_device(uuid, node) for uuid in sorted(uuids - {""}))


def shared_device(uuid: str, node: Node | None) -> Device:
    """A GPU of the node that KAI shares, with the memory that it shares."""
    label = label_mib(node)
    model = node.labels.get(_MODEL_LABEL, "") if node is not None else ""
    return Device(uuid, memory_bytes=capacity_mib(label) * MIB if label else None, model=model)


def _name_of(pod: Pod) -> tuple[str, str, str]:
    return pod.ref.namespace, pod.ref.name, pod.ref.uid


# ---------------------------------------------------------------- a node's own sources


class NodeGroups(msgspec.Struct, frozen=True):
    """The groups of a node whose own sources are read.

    Attributes:
        reservations: UIDs of the reservation pods: what the kubelet has allocated to them is the
            frame of their tenants' shares.
        reserved: the GPUs of these pods, where not all tenants are known.
        evidence: what the pods show.
        tenants: UIDs on the node of all pods of groups, ended ones too.
        others: those of the other pods that were read.
    """

    reservations: frozenset[str] = frozenset()
    reserved: frozenset[str] = frozenset()
    evidence: GroupEvidence = NO_GROUPS
    tenants: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()

    @property
    def read(self) -> frozenset[Source]:
        """The source that they are, on a node that has any."""
        is_used = self.reservations or self.evidence.is_used
        return frozenset({Source.RESERVATION_POD} if is_used else ())

    def statements(self, others: Iterable[Statement]) -> tuple[Statement, ...]:
        """The statements of all sources: the ``others``, read as KAI's where they are, and its own.

        A container's region has the limit of HAMi-core, which is not what the scheduler counts.
        """
        stated = tuple(others)
        if not self.read:
            return stated
        unnamed, tenants = self._unnamed(stated), self.pods_of_regions(stated)
        return (
            *(self._of_region(each) if _is_region(each, tenants) else each for each in stated),
            *self.evidence.statements,
            *(self._of_process(each) for each in unnamed if each.source is Source.PROCESS),
        )

    def pods_of_regions(self, stated: Sequence[Statement]) -> frozenset[str]:
        """UIDs of the pods whose regions are KAI's, by the statements of all other sources.

        A region stays after its container has ended, and after its pod is gone. It is KAI's then if
        all of its GPUs are: no other system gives shares of a GPU that a reservation pod has.
        """
        if not self.read:
            return frozenset()
        gpus = {device.uuid for device in self.evidence.devices}
        known = self._known(stated) | self.others
        gone = (
            each
            for each in stated
            if each.source is Source.SHIM and each.shares and each.pod.uid not in known
        )
        return self.tenants.union(
            (each.pod.uid for each in (*self.evidence.statements, *self._unnamed(stated))),
            (each.pod.uid for each in gone if gpus.issuperset(_devices_in(each))),
        )

    def _known(self, stated: Iterable[Statement]) -> frozenset[str]:
        """UIDs of pods of which the kubelet or a group shows what they have."""
        known = {each.pod.uid for each in stated if each.source in KUBELET}
        return frozenset(known.union(each.pod.uid for each in self.evidence.statements))

    def _unnamed(self, stated: Iterable[Statement]) -> list[Statement]:
        """Statements about reserved GPUs of pods of which neither shows anything."""
        stated = tuple(stated)
        known = self._known(stated)
        return [
            each
            for each in stated
            if each.pod.uid
            and each.pod.uid not in known
            and not self.reserved.isdisjoint(_devices_in(each))
        ]

    def _of_region(self, region: Statement) -> Statement:
        sizes = self.evidence.limits.get(region.pod.uid)
        shares = tuple(_as_counted(share, sizes) for share in region.shares)
        return structs.replace(region, scheme=KAI, shares=shares)

    def _of_process(self, process: Statement) -> Statement:
        """The share of a container that uses a reserved GPU: how large it is, is not known.

        Its device plugin gives such a GPU to nobody else, so that a user is one of its tenants.
        """
        devices = [share.device for share in process.shares if share.device in self.reserved]
        return structs.replace(
            process,
            source=Source.RESERVATION_POD,
            shares=tuple(map(Share, devices)),
            scheme=KAI,
            alive=False,
            where=f"reservation pod with {', '.join(devices)}",
        )


NO_NODE_GROUPS: Final = NodeGroups()
"""The groups of a node without KAI."""


def node_groups(
    pods: Sequence[Pod] | None,
    names: Iterable[PodRef],
    grants: Iterable[Grant],
    node: Node | None,
    sizes: Callable[[], Mapping[str, int]],
    *,
    lists_all: bool,
) -> NodeGroups:
    """The groups of a node; ``pods`` are None where the API server was not read.

    A reservation pod that is not among these is known by its name alone. Its tenants may be unknown
    then, too. The other arguments are as for :func:`group_evidence`, and ``grants`` are what the
    kubelet has allocated.
    """
    seen = {node_uid(pod): pod for pod in pods or ()}
    reservations = frozenset(uid for uid, pod in seen.items() if is_reservation(pod))
    by_name = frozenset(pod.uid for pod in names if pod.uid not in seen and may_be_reservation(pod))
    if not (reservations or by_name or any(map(groups_of, pods or ()))):
        return NO_NODE_GROUPS
    reservations |= by_name
    granted: dict[str, set[str]] = {}
    for grant in grants:
        if grant.pod_uid in reservations:
            devices = (each.partition("::")[0] for each in grant.device_ids)
            granted.setdefault(grant.pod_uid, set()).update(devices)
    is_blind = pods is None or not lists_all
    reserved = frozenset[str]().union(*granted.values()) if is_blind else frozenset[str]()
    of_pods = {uid: frozenset(devices) for uid, devices in granted.items()}
    evidence = group_evidence(
        pods or (), node, sizes(), of_pods, lists_all=lists_all, lists_tenants=lists_all
    )
    tenants = frozenset(uid for uid, pod in seen.items() if groups_of(pod)) - reservations
    return NodeGroups(reservations, reserved, evidence, tenants, frozenset(seen) - tenants)


def _devices_in(statement: Statement) -> Iterator[str]:
    return (share.device for share in statement.shares)


def _is_region(each: Statement, tenants: AbstractSet[str]) -> bool:
    return each.source is Source.SHIM and each.pod.uid in tenants


def _as_counted(share: Share, sizes: tuple[int, int] | None) -> Share:
    """The share of a region, with the scheduler's size if it has the limit of that size."""
    if sizes is None or share.memory_bytes is None:
        return share
    limit, room = sizes
    is_equal = abs(share.memory_bytes - limit) <= _TOLERANCE_MIB * MIB
    return structs.replace(share, memory_bytes=room) if is_equal else share


# ---------------------------------------------------------------- what is wrong


def _of_groups(
    groups: GpuGroups, doubted: AbstractSet[Place], *, lists_all: bool
) -> Iterator[GroupProblem]:
    """Groups without a reservation pod, and groups with several GPUs."""
    for (node, group), pods in sorted(groups.tenants.items()):
        living = [pod for pod in pods if holds_devices(pod) and pod.deleted_at is None]
        reservations = groups.reservations.get((node, group), ())
        ending = [pod for pod in reservations if pod.deleted_at is not None]
        if living and ending and len(ending) == len(reservations):
            yield GroupProblem(
                ConflictKind.GROUP_UNRESERVED,
                _ref(living[0]),
                detail=(
                    f"{ending[0].ref.key}, the reservation pod of group {group} of"
                    f" {_named(living)}, is being deleted"
                ),
                group=group,
                members=tuple(map(_ref, living)),
            )
        is_missing = lists_all and not reservations
        if living and is_missing and (node, group) not in doubted:
            yield GroupProblem(
                ConflictKind.GROUP_UNRESERVED,
                _ref(living[0]),
                detail=f"group {group} of {_named(living)} has no reservation pod on this node",
                group=group,
                members=tuple(map(_ref, living)),
            )
    for (node, group), pods in sorted(groups.reservations.items()):
        living = [pod for pod in pods if holds_devices(pod)]
        gpus = {reserved_gpu(pod) for pod in pods} - {""}
        if len(living) > 1 or len(gpus) > 1:
            on = f": {', '.join(sorted(gpus))}" if gpus else ""
            yield GroupProblem(
                ConflictKind.GROUP_SPLIT,
                _ref((living or pods)[0]),
                detail=(
                    f"group {group} has {len(pods)} reservation pod{'s'[: len(pods) - 1]} on"
                    f" {count(len(gpus), 'GPU')}{on}"
                ),
                group=group,
                members=_tenants_of(groups, node, group),
            )


def _of_reservations(
    groups: GpuGroups,
    granted: Mapping[str, frozenset[str]] | None,
    promised_to: AbstractSet[str] | None,
) -> Iterator[GroupProblem]:
    """Reservation pods that have ended, that nobody uses, or that the kubelet gave another GPU.

    Without ``promised_to`` it is not known who uses them.
    """
    for place, pods in sorted(groups.reservations.items()):
        group = place[1]
        tenants = [pod for pod in groups.tenants.get(place, ()) if holds_devices(pod)]
        for pod in pods:
            gpu = reserved_gpu(pod)
            of_group = f"{pod.ref.key} of group {group}"
            if not holds_devices(pod):
                reason = f", {pod.reason}" if pod.reason else ""
                sent = f"; new pods of the group are still sent to {gpu}" if gpu else ""
                yield GroupProblem(
                    ConflictKind.RESERVATION_ENDED,
                    _ref(pod),
                    device=gpu,
                    detail=f"{of_group} is {pod.phase}{reason}{sent}",
                    group=group,
                    members=_tenants_of(groups, *place),
                )
            elif gpu and not tenants and promised_to is not None and group not in promised_to:
                yield GroupProblem(
                    ConflictKind.RESERVATION_UNUSED,
                    _ref(pod),
                    device=gpu,
                    detail=f"{of_group} keeps {gpu}, and no pod of the node has this group",
                    group=group,
                )
            has = (granted or {}).get(node_uid(pod))
            if has and gpu and gpu not in has and holds_devices(pod):
                yield GroupProblem(
                    ConflictKind.RESERVATION_MOVED,
                    _ref(pod),
                    device=gpu,
                    detail=(
                        f"{of_group} reports {gpu} by {RESERVED_GPU}, and the kubelet has allocated"
                        f" {', '.join(sorted(has))} to it"
                    ),
                    group=group,
                    members=_tenants_of(groups, *place),
                )


def _tenants_of(groups: GpuGroups, node: str, group: str) -> tuple[PodRef, ...]:
    """The living pods of a group."""
    return tuple(_ref(pod) for pod in groups.tenants.get((node, group), ()) if holds_devices(pod))


def _of_gpus(groups: GpuGroups) -> Iterator[GroupProblem]:
    """GPUs that several groups of the node have."""
    by_gpu: dict[str, dict[str, Pod]] = {}
    for (_, group), pods in sorted(groups.reservations.items()):
        for pod in pods:
            if holds_devices(pod) and (gpu := reserved_gpu(pod)):
                by_gpu.setdefault(gpu, {}).setdefault(group, pod)
    for gpu, found in sorted(by_gpu.items()):
        if len(found) > 1:
            yield GroupProblem(
                ConflictKind.GPU_IN_GROUPS,
                _ref(next(iter(found.values()))),
                device=gpu,
                detail=(
                    f"groups {', '.join(found)} have reservation pods on {gpu}:"
                    f" {_named(found.values())}"
                ),
                members=tuple(
                    dict.fromkeys(
                        pod
                        for group, reservation in found.items()
                        for pod in _tenants_of(groups, reservation.node, group)
                    )
                ),
            )


def _of_tenants(tenants: Iterable[Pod], label: int | None) -> Iterator[GroupProblem]:
    """Tenants whose portion is printed as 0.00."""
    for pod in sorted(tenants, key=_name_of):
        portion = asked(pod).portion(label)
        if portion is not None and printed(portion) == "0.00":
            yield GroupProblem(
                ConflictKind.PORTION_ZERO,
                _ref(pod),
                container=fraction_container(pod),
                detail=f"{pod.ref.key} has {portion:g} of a GPU, which is printed as 0.00",
            )


def _ref(pod: Pod) -> PodRef:
    return PodRef(node_uid(pod), pod.ref.namespace, pod.ref.name)


def _named(pods: Iterable[Pod]) -> str:
    names = [pod.ref.key for pod in pods]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"
