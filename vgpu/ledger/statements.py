"""What goes into a ledger: what each source says, and what is known of devices and pods.

A statement is one source's word on one container. Whether the word counts depends on what else
is known: :mod:`vgpu.ledger.liveness` decides whether there is a holder at all,
:mod:`vgpu.ledger.precedence` on which device and of what size.
"""

from collections.abc import Mapping

import msgspec

from vgpu.kube.objects import Pod
from vgpu.ledger.bounds import UNREGISTERED, Bounds
from vgpu.model import ContainerKind, Device, Phase, PodRef, Request, Scheme, Share, Source

PRECEDENCE = (
    Source.PROCESS,
    Source.POD_RESOURCES,
    Source.CHECKPOINT,
    Source.OWN_CHECKPOINT,
    Source.SHIM,
    Source.LIMIT_FILE,
    Source.ANNOTATIONS,
)
"""Whose word counts where sources disagree about the device, the best first.

A shim's region stands below the kubelet though it is a live container's own: its tenant can
write it. What the kernel and the driver say of that container's processes no tenant can write.
"""

RANK: Mapping[Source, int] = {source: rank for rank, source in enumerate(PRECEDENCE)}

LIMITS = frozenset({Source.SHIM, Source.LIMIT_FILE})
"""They say what is enforced, not what was given."""

KUBELET = frozenset({Source.POD_RESOURCES, Source.CHECKPOINT})
"""Where they could be read whole, their silence shows that the kubelet gave nothing."""

GIVERS = frozenset(PRECEDENCE) - {Source.PROCESS}
"""They say what a container was given, or what is enforced; the kernel says only that it runs."""

PARTIAL = LIMITS | {Source.PROCESS}
"""They may speak of some of the container's devices only; the others speak of all or of none."""


class Statement(msgspec.Struct, frozen=True, gc=False):
    """One source's word: this container of this pod has these shares.

    Attributes:
        source: whose word.
        pod: the pod, by the UID that the node knows it by (:func:`vgpu.ledger.liveness.node_uid`);
            "" for a process that belongs to no pod. The names may be "" where only the UID is told.
        container: its name; "" where only the pod is told, and for a process in no container.
        shares: what it has. ``Share.device`` is "" where the source tells that there is a share
            and how large, but not of which device.
        scheme: in whose language.
        phase: a released share holds nothing.
        since: when that phase began, unix seconds; None if not told.
        alive: the container runs at this moment, and the kernel says so.
        node: the node that the shares were meant for; "" if not told.
        slices: (resource, device IDs): pieces of which no other pod may have the same.
        where: what a person looks at to read the same: a path, a key, pids.
        kind: when the container runs, where the source tells (our own checkpoint).
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


def is_tenants_own(said: Statement) -> bool:
    """Whether the container itself can have written it: alone it is no evidence against others.

    HAMi-core's regions, and gaia's limits where gpu-manager lets anybody write them.
    """
    return said.source is Source.SHIM or (
        said.source is Source.LIMIT_FILE and said.scheme is Scheme.GAIA
    )


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """What a container asks for.

    ``resource`` is the extended resource by which the kubelet hands it out, "" if it is asked for
    by annotation or label; ``running`` is what the API server knows of the container.
    """

    pod: PodRef
    request: Request
    scheme: Scheme
    resource: str
    running: bool


class Malformed(msgspec.Struct, frozen=True, gc=False):
    """Something that no statement could be made of, or that makes one doubtful, in words.

    ``pod`` is None for what a node says.
    """

    pod: PodRef | None
    container: str
    scheme: Scheme
    detail: str


class Evidence(msgspec.Struct, frozen=True):
    """All that was read about one node.

    Attributes:
        node: its name; "" if the sources do not need it.
        devices: each once, under all its names.
        devices_complete: whether a device that is not among them, nor lost, is not on the node.
        lost: UUIDs of devices that were there and no longer answer.
        statements: of all sources, in any order; but our own checkpoint's of one pod as its
            containers start, for they tell that where the pod's spec is unknown.
        pods: those bound to the node or promised to it, as the API server knows them.
        pods_complete: whether these are all the node's pods that share GPUs.
        live_pods: UIDs that have a cgroup on the node; None where that could not be read.
        names: UID -> pod, where the node can tell.
        wanted: what the pods ask for.
        malformed: what could not be read.
        read: the sources that answered, be it with nothing.
        bounds: how much memory of a device a container can have.
        incomplete: sources that were asked and did not tell all: their silence is no evidence.
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
    bounds: Bounds = UNREGISTERED
