"""Pods as Volcano's scheduler leaves them, GPUs that are shared, and what the kubelet writes."""

from deviceplugin.adapters.volcano import VolcanoAdapter
from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.model import ContainerDevices
from vgpu.model.allocation import Allocation, Claim, Device, Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme
from vgpu.model.objects import Container, ContainerState, Pod, Status
from vgpu.model.units import GIB, MIB
from vgpu.schemes.codec import VISIBLE_DEVICES, ContainerEdits
from vgpu.schemes.volcano.codec import Volcano

NODE = "node-1"
NUMBER, MEMORY, CORES = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
SLOTS = 3
ROLE = VolcanoAdapter(Volcano(), split_count=SLOTS)

A, B, C = (f"GPU-{letter * 8}-0000-4000-8000-{letter * 12}" for letter in "abc")
GPUS = tuple(
    Device(uuid=uuid, index=at, memory_bytes=10 * GIB, slots=SLOTS, model="NVIDIA-A10")
    for at, uuid in enumerate((A, B, C))
)
NAMED = {name: gpu for gpu in GPUS for name in gpu.names}

INIT, SIDECAR = ContainerKind.INIT, ContainerKind.SIDECAR


def share(gpu, gib, percent=10):
    return Share(gpu, gib * GIB, percent * 10)


def limits(*shares):
    """What a container asks for that is to have these."""
    most = max(shares, key=lambda one: one.memory_bytes)
    return {
        NUMBER: len(shares),
        MEMORY: most.memory_bytes // MIB,
        CORES: most.cores_milli // 10,
    }


def made(uid, containers, *, name="", phase=Phase.ASSUMED, **fields):
    """A pod; ``containers`` are (name, kind, shares). The claim has no init containers."""
    ref = PodRef(uid, "team", name or f"pod-{uid}")
    promised = tuple(
        Allocation(container, shares, phase)
        for container, kind, shares in containers
        if kind is ContainerKind.APP and shares
    )
    assumed = phase is Phase.ASSUMED
    claim = Claim(
        Scheme.VOLCANO,
        ref,
        NODE,
        promised,
        assumed_at=1_790_000_000.0,
        unserved=tuple(one.container for one in promised) if assumed else (),
    )
    annotations = ROLE.codec.annotations(claim, NAMED) if promised else {}
    return Pod(
        ref,
        node=NODE,
        annotations=annotations | fields.pop("annotations", {}),
        containers=tuple(
            Container(container, limits(*shares) if shares else {}, kind)
            for container, kind, shares in containers
        ),
        phase=fields.pop("state", "Pending"),
        **fields,
    )


def pod(uid, *shares, **fields):
    """A pod of one container, main."""
    return made(uid, [("main", ContainerKind.APP, shares or (share(A, 2),))], **fields)


def running(one, *names):
    """The pod when these containers of it, or all, run."""
    names = names or [each.name for each in one.containers]
    statuses = tuple(Status(name, ContainerState.RUNNING, id=f"id-{name}") for name in names)
    return replace(one, phase="Running", statuses=statuses)


def replace(value, **fields):
    import msgspec

    return msgspec.structs.replace(value, **fields)


def assignment(one, container="main", name="n1", ids=("x",), env=None):
    """What the kubelet writes for an answer of ours, or, with ``env``, of another plugin's."""
    answer = ContainerEdits({VISIBLE_DEVICES: "void"} if env is None else env)
    return ContainerDevices(one.kubelet_uid, container, frozenset(ids), name, answer)


def claimed(one, devices=GPUS):
    """What the pod has to get according to the role."""
    return ROLE.claim(one, NODE, devices, AllocationState.of(devices).capacity)
