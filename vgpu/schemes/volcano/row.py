"""The registry's rows of Volcano vGPU and HAMi, which use the same library."""

from typing import Final

from vgpu.kube.objects import Node
from vgpu.model import Scheme
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.row import (
    AnnotationRepair,
    DefectSign,
    KeyPrefixes,
    NodeEvidence,
    SchedulerDefect,
    SchemeRow,
    UnitSetting,
)
from vgpu.schemes.volcano import legacy
from vgpu.schemes.volcano.claim import SUCCESS
from vgpu.schemes.volcano.codec import Volcano
from vgpu.schemes.volcano.key_set import HAMI, VOLCANO, KeySet
from vgpu.schemes.volcano.unsized import UnsizedVolcano
from vgpu.schemes.volcano.whole_gpus import HAMI_MARK, whole_gpus
from vgpu.units import GIB, MIB

_FLAG: Final = "--volcano.memory-factor"


def _volcano(unit_bytes: int | None) -> SchemeCodec:
    return Volcano(memory_factor=unit_bytes // MIB) if unit_bytes else UnsizedVolcano()


def _hami(_: int | None) -> SchemeCodec:
    """HAMi counts in MiB."""
    return Volcano(HAMI)


def _is_volcanos(node: Node) -> bool:
    counted = node.capacity.get(legacy.NUMBER) or node.capacity.get(VOLCANO.number)
    return bool(node.annotations.get(VOLCANO.register) or counted)


def _is_hamis(node: Node) -> bool:
    return bool(node.annotations.get(HAMI.register))


def _suspicion(node: str, memory: int, unit_bytes: int) -> str:
    """A GPU so small that the unit must be larger."""
    if not 0 < memory < GIB:
        return ""
    return (
        f"{node} has a GPU of {memory // MIB} MiB: with what gpu-memory-factor does Volcano's"
        f" plugin run? It was read with {_FLAG} {unit_bytes // MIB}"
    )


def _repair(key_set: KeySet, read_only: tuple[str, ...] = ()) -> AnnotationRepair:
    return AnnotationRepair(
        promised=(key_set.devices, key_set.to_allocate),
        kept=((key_set.bind_phase, SUCCESS),),
        read_only=read_only,
        sized_as_enforced=True,
    )


VOLCANO_ROW: Final = SchemeRow(
    name=VOLCANO.name,
    scheme=Scheme.VOLCANO,
    codec=_volcano,
    has_devices=_is_volcanos,
    keys=KeyPrefixes(
        resources=("volcano.sh/",),
        marks=(
            "volcano.sh/vgpu-",
            "volcano.sh/devices-to-allocate",
            "volcano.sh/gpu-",  # the older volcano-sh/devices
        ),
        kept=(
            "volcano.sh/",  # bind-phase, bind-time, predicate-time; a node's register and handshake
            "scheduling.k8s.io/group-name",  # the pod group
            "scheduling.volcano.sh/group-name",  # its newer key
            "hamivgpu",  # the node locks have no domain
            "vgpu4pd",
        ),
        evidence=("volcano.sh/",),
        passing=(*VOLCANO.handshake, *VOLCANO.locks),
    ),
    unit=UnitSetting(_FLAG, MIB, suspicion=_suspicion),
    evidence=NodeEvidence(
        region_roots=(
            "/usr/local/vgpu/containers",  # HAMi, whose library is the same
            "/usr/local/vgpu/vgpu/containers",  # from v1.12.0
            "/tmp/vgpu/containers",  # noqa: S108  # up to v1.11 the regions are there
        )
    ),
    repair=_repair(VOLCANO, read_only=(legacy.MEMORY, legacy.NUMBER)),
    defect=SchedulerDefect("same_gpu_twice", DefectSign.SAME_POD),
    adapter="volcano",
)

HAMI_ROW: Final = SchemeRow(
    name=HAMI.name,
    scheme=Scheme.VOLCANO,
    codec=_hami,
    has_devices=_is_hamis,
    keys=KeyPrefixes(
        resources=(
            "nvidia.com/gpu",  # gpumem, gpucores and gpumem-percentage too
            "nvidia.com/priority",
        ),
        marks=("hami.io/vgpu-",),
        kept=(
            HAMI_MARK,
            "nvidia.com/",  # use-gputype of pods, gpu.product of nodes
        ),
        evidence=(HAMI_MARK, *HAMI.implied_by),
        passing=(*HAMI.handshake, *HAMI.locks),
    ),
    repair=_repair(HAMI),
    defect=SchedulerDefect("init_containers_miscounted", DefectSign.INIT_CONTAINERS),
    adapter="volcano",
    is_foreign=whole_gpus,
)
