"""The input of a ledger: the statements of the sources, and facts about devices and pods.

A statement is what one source reports about one container. Whether it counts depends on the other
evidence: :mod:`vgpu.ledger.liveness` decides whether there is a holder at all,
:mod:`vgpu.ledger.precedence` on which device and of what size. :func:`by_pod` sorts the statements
for both.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from vgpu.ledger.bounds import UNREGISTERED, Bounds
from vgpu.ledger.conflict_kinds import ConflictKind
from vgpu.model.allocation import Device, Request, Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, Sharing, Source
from vgpu.model.objects import Pod
from vgpu.model.resource_claims import ResourceClaimDevice
from vgpu.schemes.counted_claims import ClaimProblem

PRECEDENCE = (
    Source.PROCESS,
    Source.DRA_STATE,
    Source.POD_RESOURCES,
    Source.CHECKPOINT,
    Source.OWN_CHECKPOINT,
    Source.RESOURCE_CLAIM,
    Source.RESERVATION_POD,
    Source.CONFIG_MAP,
    Source.BIND_REQUEST,
    Source.SHIM,
    Source.LIMIT_FILE,
    Source.ANNOTATIONS,
)
"""The sources by trust where they disagree about the device, the most trusted first.

A shim's region stands below the kubelet though it is a live container's own: its tenant can
write it. No tenant can write what the kernel and the driver report about its processes.
"""

RANK: Mapping[Source, int] = {source: rank for rank, source in enumerate(PRECEDENCE)}

DRA_SOURCES = frozenset({Source.DRA_STATE, Source.RESOURCE_CLAIM})
"""Sources of ResourceClaims alone."""

GROUP_SOURCES = frozenset({Source.RESERVATION_POD, Source.CONFIG_MAP, Source.BIND_REQUEST})
"""Sources of KAI Scheduler alone."""

UNCOMMON = DRA_SOURCES | GROUP_SOURCES
"""Sources that a node without their system has not even the names of in metrics."""

LIMITS = frozenset({Source.SHIM, Source.LIMIT_FILE})
"""Sources that report what is enforced, not what was allocated."""

KUBELET = frozenset({Source.POD_RESOURCES, Source.CHECKPOINT})
"""Sources that, read completely, show what the kubelet has not allocated."""

GIVERS = frozenset(PRECEDENCE) - {Source.PROCESS}
"""Sources that report what was allocated or is enforced; the kernel reports only processes."""

PARTIAL = LIMITS | {Source.PROCESS}
"""Sources that may report only some of the container's devices; others report all or none."""


class Statement(msgspec.Struct, frozen=True, gc=False):
    """One source's statement: this container of this pod has these shares.

    Attributes:
        source: the source.
        pod: the pod, by the UID that the node knows it by (:func:`vgpu.ledger.liveness.node_uid`);
            "" for a process that belongs to no pod. Names may be "" where only the UID is known.
        container: its name; "" where only the pod is known, and for a process in no container.
        shares: what it has. ``Share.device`` is "" where the source reports that there is a share
            and how large, but not of which device.
        scheme: the scheme of the allocation.
        phase: a released share holds nothing.
        since: when that phase began, unix seconds; None if not reported.
        alive: the container runs at this moment, as the kernel reports.
        node: the node that the shares were meant for; "" if not reported.
        slices: (resource, device IDs) that no other pod may have.
        where: where a person can read the same: a path, a key, pids.
        kind: when the container runs, where the source reports it (our own checkpoint).
        resource_claim_devices: the device of a ResourceClaim that each share is; () if they are of
            none.
        limits: bytes of memory that the plugin's answer sets as the limit of each share; 0 where
            the answer lifts the limit, None where it has nothing about it, () where it has nothing
            about any share.
        sharing: how NVIDIA's own means share the device of each share; () for other systems.
    """

    source: Source
    pod: PodRef
    container: str
    shares: tuple[Share, ...]
    scheme: Scheme = Scheme.NONE
    phase: Phase = Phase.ASSIGNED
    since: float | None = None
    alive: bool = False
    node: str = ""
    slices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    where: str = ""
    kind: ContainerKind = ContainerKind.APP
    limits: tuple[int | None, ...] = ()
    resource_claim_devices: tuple[ResourceClaimDevice, ...] = ()
    sharing: tuple[Sharing, ...] = ()


def tenant_writes(source: Source, scheme: Scheme) -> bool:
    """Whether the container itself can write what the source reads.

    These are HAMi-core's regions, and gpu-manager's limits where anybody may write them.
    """
    return source is Source.SHIM or (source is Source.LIMIT_FILE and scheme is Scheme.GAIA)


def is_tenants_own(statement: Statement) -> bool:
    """Whether the container itself can have written it: alone it is no evidence against others."""
    return tenant_writes(statement.source, statement.scheme)


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """The request of a container.

    ``resource`` is the extended resource by which the kubelet allocates it, "" if it is requested
    by annotation or label; ``running`` is whether the container runs by the API server.
    """

    pod: PodRef
    request: Request
    scheme: Scheme
    resource: str
    running: bool


class Malformed(msgspec.Struct, frozen=True, gc=False):
    """A text that could not become a statement, or that makes one doubtful.

    ``pod`` is None for a node's text. ``problem`` is that of the pod's claim, where it has one.
    """

    pod: PodRef | None
    container: str
    scheme: Scheme
    detail: str
    problem: ClaimProblem | None = None


class GroupProblem(msgspec.Struct, frozen=True, gc=False):
    """What is wrong with a GPU group; its fields are those of the conflict that it becomes."""

    kind: ConflictKind
    pod: PodRef
    detail: str
    device: str = ""
    container: str = ""
    group: str = ""
    members: tuple[PodRef, ...] = ()


class Evidence(msgspec.Struct, frozen=True):
    """All that was read about one node.

    Attributes:
        node: its name; "" if the sources do not need it.
        devices: each once, under all its names.
        devices_complete: whether the node has no devices but these and the lost ones.
        lost: UUIDs of devices that were there and no longer answer.
        statements: of all sources, in any order; but our own checkpoint's of one pod in the order
            in which its containers start, which is used where the pod's spec is unknown.
        pods: the pods bound to the node or reserved to it, as the API server has them.
        pods_complete: whether these are all the node's pods that share GPUs.
        live_pods: UIDs that have a cgroup on the node; None where that could not be read.
        names: UID -> pod, where the node has the name.
        wanted: the requests of the pods.
        malformed: what could not be read.
        read: the sources that answered, even without statements.
        bounds: how much memory of a device a container can have.
        incomplete: sources that answered only in part: a missing statement is no evidence.
        unread_grants: UIDs of pods to which the kubelet has allocated something of a GPU by a
            resource whose name and plugin are not known.
        left_resource_claims: (device, where a person can read it) of each device that a DRA driver
            has prepared for a ResourceClaim that the kubelet or the API server does not have.
        missing_specs: likewise each device of a ResourceClaim whose CDI spec is missing.
        running: (pod UID, container) with a live process, of pods in which several containers have
            one device ID of the kubelet's; "" for a container of unknown name. None where the
            host's processes are unknown.
        started: likewise those that have run at any time, as far as their logs are there.
        group_problems: what is wrong with GPU groups (KAI Scheduler).
    """

    node: str = ""
    devices: tuple[Device, ...] = ()
    devices_complete: bool = True
    lost: frozenset[str] = frozenset()
    statements: tuple[Statement, ...] = ()
    pods: tuple[Pod, ...] = ()
    pods_complete: bool = False
    live_pods: frozenset[str] | None = None
    names: Mapping[str, PodRef] = {}
    wanted: tuple[Wanted, ...] = ()
    malformed: tuple[Malformed, ...] = ()
    read: frozenset[Source] = frozenset()
    incomplete: frozenset[Source] = frozenset()
    unread_grants: frozenset[str] = frozenset()
    bounds: Bounds = UNREGISTERED
    left_resource_claims: tuple[tuple[str, str], ...] = ()
    missing_specs: tuple[tuple[str, str], ...] = ()
    running: frozenset[tuple[str, str]] | None = None
    started: frozenset[tuple[str, str]] = frozenset()
    group_problems: tuple[GroupProblem, ...] = ()


Containers = dict[str, tuple[Statement, ...]]
"""One pod's statements: container -> statements, the most trusted first, each once."""


def by_pod(statements: Iterable[Statement]) -> dict[str, Containers]:
    """Pod UID -> the statements about its containers, the most trusted first, each once.

    Released statements are left out, and statements about no pod unless they are of processes.
    """
    pods: dict[str, dict[str, list[Statement]]] = {}
    for statement in sorted(statements, key=_rank):
        of_any = statement.pod.uid or statement.source is Source.PROCESS
        if of_any and statement.phase is not Phase.RELEASED:
            containers = pods.setdefault(statement.pod.uid, {})
            containers.setdefault(statement.container, []).append(statement)
    return {
        uid: _gathered({name: _each_once(those) for name, those in containers.items()})
        for uid, containers in pods.items()
    }


def _rank(statement: Statement) -> int:
    return RANK[statement.source]


def _each_once(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Statements by rank, without repetitions, in a fixed order where a source has several."""
    if len({statement.source for statement in statements}) < len(statements):
        statements = sorted(sorted(dict.fromkeys(statements), key=repr), key=_rank)
    return tuple(statements)


def _gathered(containers: Containers) -> Containers:
    """The statements, with those about the whole pod moved to the container that they are about.

    KubeShare allocates a share to a whole pod, while kernel and region report its containers:
    containers without a share of their own join the pod's. Its limit file is about the whole pod,
    while the claim may be about the only container.
    """
    if "" not in containers:
        return containers
    whole = containers[""]
    named = {name: own for name, own in containers.items() if name}
    partial = {name for name, own in named.items() if all(s.source in PARTIAL for s in own)}
    if any(statement.source not in PARTIAL for statement in whole):
        together = [*whole, *(s for name in sorted(partial) for s in named.pop(name))]
        return named | {"": _each_once(sorted(together, key=_rank))}
    limits = [statement for statement in whole if statement.source in LIMITS]
    if limits and len(named) - len(partial) == 1:
        (name,) = named.keys() - partial
        named[name] = _each_once(sorted((*named[name], *limits), key=_rank))
        whole = tuple(statement for statement in whole if statement.source not in LIMITS)
    return named | {"": whole} if whole else named
