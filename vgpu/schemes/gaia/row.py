"""The registry's row of Tencent's gpu-manager, whose scheme is called ``gaia``."""

from typing import Final

from vgpu.model.names import Scheme
from vgpu.model.objects import Node
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.gaia.codec import (
    ASSIGNED,
    PREDICATE_INDEX,
    PREDICATE_NODE,
    PREDICATE_TIME,
    Gaia,
)
from vgpu.schemes.gaia.limit_file import read_limits
from vgpu.schemes.gaia.node import CORE, MODEL_LABEL
from vgpu.schemes.gaia.vcuda_config import CONFIG_SIZE, VCUDA_CONFIG
from vgpu.schemes.row import (
    AnnotationRepair,
    KeyPrefixes,
    LimitFiles,
    LimitLayout,
    NodeEvidence,
    SchedulerDefect,
    SchemeRow,
    WrittenKeys,
)


def _codec(_: int | None) -> SchemeCodec:
    return Gaia()


def _has_devices(node: Node) -> bool:
    return bool(node.capacity.get(CORE))


GAIA_ROW: Final = SchemeRow(
    name="gaia",
    scheme=Scheme.GAIA,
    codec=_codec,
    has_devices=_has_devices,
    keys=KeyPrefixes(
        resources=("tencent.com/vcuda-",),
        marks=("tencent.com/",),
        kept=("gaia.tencent.com/", "nvidia-device-enable", "clusterName"),
        evidence=("tencent.com/",),
    ),
    written=WrittenKeys(
        pods=(PREDICATE_TIME, PREDICATE_NODE, ASSIGNED, f"{PREDICATE_INDEX}*"),
        node_labels=(MODEL_LABEL,),
    ),
    evidence=NodeEvidence(
        limits=LimitFiles(
            "--limits.gaia-dir",
            "/etc/gpu-manager/vm",
            LimitLayout.CONTAINER,
            VCUDA_CONFIG,
            CONFIG_SIZE,
            read_limits,
        )
    ),
    repair=AnnotationRepair(promised=(PREDICATE_TIME, PREDICATE_NODE), kept=((ASSIGNED, "true"),)),
    defect=SchedulerDefect("cache_behind"),
    adapter="gaia",
)
