"""Pods, admitted or not, and GPUs for the tests of the device plugin's roles.

pod = asking("main", "volcano.sh/vgpu-number", annotations={...})
claim = role.claim(pod, NODE, devices, no_capacity(devices))
admitted_pod = admitted_pod_of(pod, claim, bound=["main"])
"""

from msgspec.structs import replace

from deviceplugin.capacity import NodeCapacity
from deviceplugin.model import AdmittedPod, Binding
from vgpu.model.facts import Gpu
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Container, Node, Pod

NODE = "gpu-1"
NOW = 1_790_000_000.0
A, B = "GPU-aaaa", "GPU-bbbb"


def gpu(uuid=A, index=0, mebibytes=46068, parent="", *, mig_mode=0.0, **info):
    readings = {("mig_mode",): mig_mode}
    if mebibytes is not None:
        readings["memory_total_bytes",] = float(mebibytes << 20)
    return Gpu(uuid, index, {"name": "NVIDIA L40S", **info}, readings, parent)


def container(name="main", limits=None, kind=ContainerKind.APP, env=None):
    return Container(name, limits or {}, kind, {}, env or {})


def pod(annotations, *containers, name="train", uid="", labels=None, **fields):
    return Pod(
        PodRef(uid or f"uid-of-{name}", "ml", name),
        resource_version="7",
        node=NODE,
        annotations=annotations,
        labels=labels or {},
        containers=containers or (container(),),
        phase=fields.pop("phase", "Pending"),
        **fields,
    )


def node(annotations=None, **fields):
    return Node(NODE, "3", annotations or {}, uid="uid-of-node", **fields)


def no_capacity(devices):
    return NodeCapacity.of(devices)


def admitted_pod_of(pod, allocations, bound=(), **fields):
    """The pod as admitted, with these containers bound."""
    bindings = tuple(
        Binding(each.container, f"name-of-{each.container}", each.shares, NOW)
        for each in allocations
        if each.container in bound
    )
    ref = replace(pod.ref, uid=pod.kubelet_uid)
    return AdmittedPod(ref, tuple(allocations), bindings, NOW, **fields)


def with_marks(pod, marks):
    """The pod as it is when its marks have been written."""
    annotations = {**pod.annotations, **marks}
    kept = {key: text for key, text in annotations.items() if text is not None}
    return replace(pod, annotations=kept)


def by_name(devices):
    return {name: device for device in devices for name in reversed(device.names)}
