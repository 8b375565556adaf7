"""The registry's row of Aliyun's gpushare."""

from collections.abc import Iterable
from typing import Final

from vgpu.model.names import Scheme
from vgpu.model.objects import Node
from vgpu.model.units import GIB, MIB
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.gpushare.annotations import ACK_ASSIGNED, ALLOCATION, ANNOTATIONS, ASSIGNED, INDEX
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.gpushare.node import (
    GPUS,
    MEMORY,
    UNHEALTHY_KEY,
    UNHEALTHY_NAMESPACE,
    unhealthy_name,
)
from vgpu.schemes.gpushare.original import never_serves
from vgpu.schemes.gpushare.unsized import UnsizedGpushare
from vgpu.schemes.row import (
    AnnotationRepair,
    KeyPrefixes,
    SchedulerDefect,
    SchemeRow,
    UnhealthyMap,
    UnitSetting,
    WrittenKeys,
)

_FLAG: Final = "--gpushare.memory-unit"

_SMALLEST_MIB: Final = 1024
"""A GPU of fewer MiB is in truth counted in another unit: no such GPU is shared."""


def _codec(unit_bytes: int | None) -> SchemeCodec:
    return Gpushare(unit_bytes) if unit_bytes else UnsizedGpushare()


def _has_devices(node: Node) -> bool:
    return bool(node.capacity.get(GPUS))


def _assumed_unit(nodes: Iterable[Node]) -> tuple[int, tuple[str, ...]]:
    """Bytes of one unit, and what was assumed.

    The original takes a GPU of more than 100 units to be counted in MiB, so that a GPU of 141
    GiB would have 141 MiB. GPUs of less than a GiB are not shared, nor are there any of a TiB.
    """
    sizes: dict[str, int] = {}
    for node in nodes:
        count = node.capacity.get(GPUS, 0)
        if count > 0 and node.capacity.get(MEMORY, 0) > 0:
            sizes[node.name] = node.capacity[MEMORY] // count
    if not sizes:
        return GIB, ()
    large, small = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
    unit, name = (MIB, "MiB") if sizes[large] >= _SMALLEST_MIB else (GIB, "GiB")
    assumption = (
        f"one unit of {MEMORY} is taken for 1 {name}, since {large} has"
        f" {sizes[large]} of them a GPU; {_FLAG} settles it"
    )
    if unit == MIB and sizes[small] < _SMALLEST_MIB:
        assumption += f". Beware: {small} has only {sizes[small]} a GPU, so one of them is wrong"
    return unit, (assumption,)


GPUSHARE_ROW: Final = SchemeRow(
    name="gpushare",
    scheme=Scheme.GPUSHARE,
    codec=_codec,
    has_devices=_has_devices,
    keys=KeyPrefixes(
        resources=("aliyun.com/gpu",),
        marks=("ALIYUN_COM_GPU_MEM_", "scheduler.framework.gpushare."),
        kept=("gpushare", "cgpu.disable.isolation", GPUS),
        evidence=("aliyun.com/", "ALIYUN_COM_", "scheduler.framework.gpushare."),
    ),
    written=WrittenKeys(pods=ANNOTATIONS, resources=(GPUS,)),
    unit=UnitSetting(_FLAG, GIB, assumed=_assumed_unit),
    repair=AnnotationRepair(
        promised=(INDEX, ALLOCATION), kept=((ASSIGNED, "true"), (ACK_ASSIGNED, "true"))
    ),
    defect=SchedulerDefect("free_below_zero"),
    adapter="gpushare",
    shares_cores=False,
    never_serves=never_serves,
    unhealthy_map=UnhealthyMap(UNHEALTHY_NAMESPACE, unhealthy_name, UNHEALTHY_KEY),
)
