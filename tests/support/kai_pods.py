"""Pods of KAI Scheduler as the API server has them, and the node that they share."""

from vgpu.model.names import PodRef
from vgpu.model.objects import Container, ContainerState, Node, OwnerReference, Pod, Status
from vgpu.schemes.kai.keys import FRACTION, GPU_GROUP, MEMORY, RESERVATION, RESERVED_GPU
from vgpu.schemes.kai.row import KAI_ROW

NODE = "kai"
LABEL_MIB = 15360
CODEC = KAI_ROW.codec(None)


def gpu(number):
    """The UUID of a GPU."""
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"


GPU = gpu(1)


def kai_node(mib=LABEL_MIB, gpus=2, name=NODE):
    """A node with NVIDIA's own device plugin and GPU feature discovery."""
    labels = {"nvidia.com/gpu.product": "Tesla-T4"}
    if mib is not None:
        labels["nvidia.com/gpu.memory"] = str(mib)
    units = {"nvidia.com/gpu": gpus}
    return Node(name, labels=labels, capacity=units, allocatable=units, ready=True, uid=name)


def running(name, since=0.0):
    """The status of a container that runs."""
    return Status(name, ContainerState.RUNNING, started_at=since)


def reservation(group="g", uuid=GPU, *, name="", node=NODE, phase="Running", since=0.0, **fields):
    """The reservation pod of a group; ``uuid`` is "" before it has reported one."""
    name = name or f"gpu-reservation-{group}"
    pod = Pod(
        PodRef(f"uid-{name}-{node}", "kai-resource-reservation", name),
        node=node,
        labels={RESERVATION[0]: RESERVATION[1], GPU_GROUP: group},
        annotations={RESERVED_GPU: uuid} if uuid else {},
        containers=(Container("resource-reservation", {"nvidia.com/gpu": 1}),),
        phase=phase,
        statuses=(running("resource-reservation", since),) if phase == "Running" else (),
        created_at=since,
        started_at=since,
    )
    return replaced(pod, fields)


def tenant(
    name="train", groups=("g",), fraction="0.5", memory="", *, node=NODE, since=0.0, **fields
):
    """A pod of these groups that asks for a fraction of a GPU, or for MiB."""
    plain = {GPU_GROUP: groups[0]} if len(groups) == 1 else {}
    labels = plain or {f"{GPU_GROUP}/{group}": group for group in groups}
    asked = {MEMORY: memory} if memory else {FRACTION: fraction} if fraction else {}
    pod = Pod(
        PodRef(f"uid-{name}", "team-a", name),
        node=node,
        labels=labels,
        annotations={**asked, "received-resource-type": "Fraction"},
        containers=(Container("main"),),
        phase="Running" if node else "Pending",
        statuses=(running("main", since),) if node else (),
        created_at=since,
        started_at=since,
        owner=OwnerReference("ReplicaSet", f"rs-{name}", f"rs-{name}", "apps/v1"),
    )
    return replaced(pod, fields)


def replaced(pod, fields):
    """The pod with these fields."""
    values = {name: getattr(pod, name) for name in pod.__struct_fields__}
    return Pod(**(values | fields))
