"""The registry's row of Aliyun's gpushare, and what its pods and units mean to it.

The original device plugin can never serve some pods. The kubelet calls Allocate for each container
by itself. The original (gpushare-device-plugin, ``pkg/gpu/nvidia/allocate.go``) looks for a waiting
pod whose app containers together request the units of the call: a pod of which two containers
request memory matches none of its calls. An init container is in no sum; if its request equals that
of the app container, it takes the pod's only answer. Each call that matches nothing is answered
with ``no-gpu-has-…-to-run``. On a node with one GPU the original allocates this GPU without looking
for a pod.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from vgpu.model.allocation import Claim, Request, Share
from vgpu.model.names import ContainerKind, Scheme
from vgpu.model.objects import Node, Pod
from vgpu.model.units import GIB, MIB, count
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.gpushare.annotations import ACK_ASSIGNED, ALLOCATION, ANNOTATIONS, ASSIGNED, INDEX
from vgpu.schemes.gpushare.codec import COUNT_LABEL, Gpushare
from vgpu.schemes.gpushare.node import (
    NAMES,
    UNHEALTHY_KEY,
    UNHEALTHY_NAMESPACE,
    unhealthy_name,
)
from vgpu.schemes.limit_ways import CGPU
from vgpu.schemes.resource_names import ORIGINAL_NAMES, ResourceNames, SystemNames
from vgpu.schemes.row import (
    AnnotationRepair,
    DefectCause,
    KeyPrefixes,
    SchedulerDefect,
    SchemeRow,
    UnhealthyMap,
    UnitSetting,
    WrittenKeys,
    claim_without_memory,
    without_memory,
)


def never_serves(pod: Pod, node: Node, names: ResourceNames = NAMES) -> str:
    """Why the original plugin can never serve the pod on the node; "" if it may."""
    requesting = [each for each in pod.containers if each.limits.get(names.memory)]
    kinds = [each.kind for each in requesting]
    if not requesting or kinds == [ContainerKind.APP] or node.capacity.get(names.count) == 1:
        return ""
    containers = ", ".join(each.name for each in requesting)
    return (
        f"{count(len(requesting), 'container')} ({containers}) request {names.memory}, and the"
        " original gpushare plugin serves one app container of a pod"
    )


class UnsizedGpushare(Gpushare, frozen=True):
    """Requests and shares of unknown memory."""

    def requests(self, pod: Pod) -> tuple[Request, ...]:
        """What each container requests. Raises ClaimError."""
        return without_memory(super().requests(pod))

    def claim(self, pod: Pod) -> Claim | None:
        """The claim in the annotations. Raises ClaimError."""
        return claim_without_memory(super().claim(pod))

    def answered(self, env: Mapping[str, str]) -> tuple[Share, ...]:
        """The share in the environment of the plugin's answer."""
        return without_memory(super().answered(env))


_FLAG: Final = "--gpushare.memory-unit"

_SMALLEST_MIB: Final = 1024
"""A GPU of fewer MiB is in truth counted in another unit: no such GPU is shared."""


def _codec(unit_bytes: int | None, names: ResourceNames) -> SchemeCodec:
    return Gpushare(unit_bytes, names=names) if unit_bytes else UnsizedGpushare(names=names)


def _assumed_unit(nodes: Iterable[Node], names: ResourceNames) -> tuple[int, tuple[str, ...]]:
    """Bytes of one unit, and what was assumed.

    The original takes a GPU of more than 100 units to be counted in MiB, so that a GPU of 141
    GiB would have 141 MiB. GPUs of less than a GiB are not shared, nor are there any of a TiB.
    """
    sizes: dict[str, int] = {}
    for node in nodes:
        count = node.capacity.get(names.count, 0)
        if count > 0 and node.capacity.get(names.memory, 0) > 0:
            sizes[node.name] = node.capacity[names.memory] // count
    if not sizes:
        return GIB, ()
    large, small = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
    unit, name = (MIB, "MiB") if sizes[large] >= _SMALLEST_MIB else (GIB, "GiB")
    assumption = (
        f"one unit of {names.memory} is taken for 1 {name}, since {large} has"
        f" {sizes[large]} of them a GPU; {_FLAG} settles it"
    )
    if unit == MIB and sizes[small] < _SMALLEST_MIB:
        assumption += f". Beware: {small} has only {sizes[small]} a GPU, so one of them is wrong"
    return unit, (assumption,)


def gpushare_row(names: SystemNames = ORIGINAL_NAMES) -> SchemeRow:
    """Gpushare with its names."""
    own = names[Scheme.GPUSHARE.value]
    return SchemeRow(
        name=Scheme.GPUSHARE.value,
        scheme=Scheme.GPUSHARE,
        codec=lambda unit_bytes: _codec(unit_bytes, own),
        has_devices=lambda node: bool(node.capacity.get(own.count)),
        keys=KeyPrefixes(
            resources=("aliyun.com/gpu",),
            marks=("ALIYUN_COM_GPU_MEM_", "scheduler.framework.gpushare."),
            kept=("gpushare", "cgpu.disable.isolation", COUNT_LABEL),
            evidence=("aliyun.com/", "ALIYUN_COM_", "scheduler.framework.gpushare.", *own.all),
        ),
        written=WrittenKeys(pods=ANNOTATIONS, resources=(own.count,)),
        unit=UnitSetting(_FLAG, GIB, assumed=lambda nodes: _assumed_unit(nodes, own)),
        repair=AnnotationRepair(
            reservation=(INDEX, ALLOCATION), allocated=((ASSIGNED, "true"), (ACK_ASSIGNED, "true"))
        ),
        defect=SchedulerDefect(DefectCause.FREE_BELOW_ZERO),
        adapter="gpushare",
        limit_way=CGPU,
        shares_cores=False,
        never_serves=lambda pod, node: never_serves(pod, node, own),
        unhealthy_map=UnhealthyMap(UNHEALTHY_NAMESPACE, unhealthy_name, UNHEALTHY_KEY),
        names=own,
        with_names=gpushare_row,
    )


GPUSHARE_ROW: Final = gpushare_row()
