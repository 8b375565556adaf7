"""The registry's rows of Volcano vGPU and HAMi, which use the same library.

HAMi may use resource names of NVIDIA's own device plugin: :func:`whole_gpus` distinguishes the pods
of both.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Final

from vgpu.model.allocation import Claim, Device, Request
from vgpu.model.names import Scheme
from vgpu.model.objects import Node, Pod
from vgpu.model.units import GIB, MIB
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.limit_ways import HAMI_CORE
from vgpu.schemes.nvidia.resources import is_nvidia_resource
from vgpu.schemes.resource_names import ORIGINAL_NAMES, ResourceNames, SystemNames
from vgpu.schemes.row import (
    AnnotationRepair,
    DefectCause,
    DefectSign,
    KeyPrefixes,
    NodeEvidence,
    SchedulerDefect,
    SchemeRow,
    UnitDoubt,
    UnitSetting,
    WrittenKeys,
    claim_without_memory,
    without_memory,
)
from vgpu.schemes.text import number
from vgpu.schemes.volcano import legacy_format
from vgpu.schemes.volcano.claim import SUCCESS
from vgpu.schemes.volcano.codec import Volcano
from vgpu.schemes.volcano.key_set import HAMI, SPLIT_COUNT, VOLCANO, KeySet
from vgpu.schemes.volcano.node import registrations
from vgpu.schemes.volcano.text import MOST

HAMI_MARK: Final = "hami.io/"
"""The prefix of HAMi's annotations."""


def advertises_others(node: Node, names: ResourceNames = HAMI.resources) -> bool:
    """Whether HAMi's number on a node that it registers is another plugin's resource.

    HAMi advertises each GPU as often as it registers it (``count``, by default 10 times). Its
    resource may be renamed (``--resource-name``), mostly so that NVIDIA's own plugin can advertise
    ``nvidia.com/gpu`` beside it: then the node has another number of it. A number of 0 is that of
    a plugin that does not run, and a register that cannot be read is no evidence.
    """
    units = node.capacity.get(names.count)
    slots = registered_slots(node)
    return bool(units and slots) and units != slots


def registered_slots(node: Node) -> int:
    """Number of shares that HAMi's register of the node has; 0 if it cannot be read."""
    try:
        gpus = registrations(node, HAMI)
    except ClaimError:
        return 0
    return sum(gpu.slots or SPLIT_COUNT for gpu in gpus)


def whole_gpus(nodes: Iterable[Node], names: SystemNames = ORIGINAL_NAMES) -> Callable[[Pod], bool]:
    """Whether a pod's GPUs, replicas or MIG instances are of NVIDIA's own plugin, not HAMi's.

    Both use the name ``nvidia.com/gpu`` if nobody has renamed HAMi's. HAMi writes annotations on
    its pods and registers its ``nodes``.
    """
    hami, volcano = HAMI.named(names[HAMI.name]), VOLCANO.named(names[VOLCANO.name])
    shared = frozenset((*hami.implied_by, volcano.number, *volcano.implied_by))
    if not is_nvidia_resource(hami.number):
        shared |= {hami.number}
    if hami.resources.is_unknown:  # NVIDIA's own plugin has none of these
        shared |= frozenset(HAMI.implied_by)
    registered = {node.name: node for node in nodes if HAMI.register in node.annotations}

    @cache
    def is_hamis(name: str) -> bool:
        return name in registered and not advertises_others(registered[name], hami.resources)

    def is_whole(pod: Pod) -> bool:
        resources = {name for container in pod.containers for name in container.limits}
        if resources & shared:
            return False
        if any(key.startswith(HAMI_MARK) for key in pod.annotations):
            return False
        if hami.number not in resources:
            return any(map(is_nvidia_resource, resources))
        return not (is_hamis(pod.node) if pod.node else any(map(is_hamis, registered)))

    return is_whole


class UnsizedVolcano(Volcano, frozen=True):
    """All amounts of memory are unknown."""

    def requests(self, pod: Pod) -> tuple[Request, ...]:
        """What each container requests. Raises ClaimError."""
        return without_memory(super().requests(pod))

    def claim(self, pod: Pod) -> Claim | None:
        """The claim in the annotations. Raises ClaimError."""
        return claim_without_memory(super().claim(pod))

    def devices(self, node: Node) -> tuple[Device, ...]:
        """The registered GPUs. Raises ClaimError."""
        return without_memory(super().devices(node))


_FLAG: Final = "--volcano.memory-factor"

PUBLISHED_FACTOR: Final = "vgpu.dev/memory-factor"
"""The annotation by which our own device plugin publishes its factor on its node."""

_MOST_MEMORY: Final = 1024 * GIB
"""Maximum plausible memory of a GPU in bytes, oversold ones included."""


def _volcano(unit_bytes: int | None, key_set: KeySet = VOLCANO) -> SchemeCodec:
    if not unit_bytes:
        return UnsizedVolcano(key_set)
    return Volcano(key_set, memory_factor=unit_bytes // MIB)


def _is_volcanos(node: Node, names: ResourceNames) -> bool:
    counted = node.capacity.get(legacy_format.NUMBER) or node.capacity.get(names.count)
    return bool(node.annotations.get(VOLCANO.register) or counted)


def _is_hamis(node: Node) -> bool:
    return bool(node.annotations.get(HAMI.register))


def _doubts(node: Node, unit_bytes: int, names: ResourceNames) -> Iterator[UnitDoubt]:
    """A GPU that is too small, other units than those advertised, another factor than published."""
    memory = _registered(node)
    advertised = node.capacity.get(names.memory)
    if memory and advertised and abs(sum(memory) - advertised) > len(memory):
        problem = f"its GPUs register {sum(memory)} units, and it advertises {advertised},"
        least = -(-sum(memory) // (advertised + len(memory)))
        yield UnitDoubt(problem, max(1, least), max(1, least, sum(memory) // advertised))
    if memory and min(memory) * unit_bytes < GIB:
        problem = f"a GPU has {min(memory) * unit_bytes // MIB} MiB"
        yield UnitDoubt(problem, -(-GIB // (min(memory) * MIB)))
    published = number(node.annotations.get(PUBLISHED_FACTOR, ""), MOST)
    if published and published * MIB != unit_bytes:
        yield UnitDoubt(
            f"its device plugin publishes a factor of {published},", published, published
        )


def _largest_unit(node: Node) -> int | None:
    """MiB of the unit with which the largest GPU has _MOST_MEMORY."""
    memory = _registered(node)
    return max(1, _MOST_MEMORY // MIB // max(memory)) if memory else None


def _registered(node: Node) -> list[int]:
    """The memory of the node's GPUs in units; none if that cannot be read."""
    try:
        return [gpu.memory for gpu in registrations(node, VOLCANO) if gpu.memory]
    except ClaimError:
        return []


def _repair(key_set: KeySet, read_only: tuple[str, ...] = ()) -> AnnotationRepair:
    return AnnotationRepair(
        reservation=(key_set.devices, key_set.to_allocate),
        allocated=((key_set.bind_phase, SUCCESS),),
        read_only=read_only,
        sized_as_enforced=True,
    )


def _written(
    key_set: KeySet,
    claim: tuple[str, ...] = (),
    labels: tuple[str, ...] = (),
    nodes: tuple[str, ...] = (),
) -> WrittenKeys:
    return WrittenKeys(
        pods=(*key_set.claim, *claim),
        pod_labels=labels,
        nodes=(key_set.register, *nodes),
        handshakes=key_set.handshake,
        locks=key_set.locks,
    )


def volcano_row(names: SystemNames = ORIGINAL_NAMES) -> SchemeRow:
    """Volcano vGPU with its names."""
    own = names[VOLCANO.name]
    key_set = VOLCANO.named(own)
    return SchemeRow(
        name=VOLCANO.name,
        scheme=Scheme.VOLCANO,
        codec=lambda unit_bytes: _volcano(unit_bytes, key_set),
        has_devices=lambda node: _is_volcanos(node, own),
        keys=KeyPrefixes(
            resources=("volcano.sh/",),
            marks=(
                "volcano.sh/vgpu-",
                "volcano.sh/devices-to-allocate",
                "volcano.sh/gpu-",  # the older volcano-sh/devices
            ),
            kept=(
                "volcano.sh/",  # bind-phase, bind-time, predicate-time; register and handshake
                "scheduling.k8s.io/group-name",  # the pod group
                "scheduling.volcano.sh/group-name",  # its newer key
                "hamivgpu",  # the node locks have no domain
                "vgpu4pd",
            ),
            evidence=("volcano.sh/", *own.all),
            passing=(*VOLCANO.handshake, *VOLCANO.locks),
        ),
        written=_written(VOLCANO, claim=legacy_format.CLAIM, nodes=(PUBLISHED_FACTOR,)),
        unit=UnitSetting(
            _FLAG,
            MIB,
            doubt=lambda node, unit_bytes: _doubts(node, unit_bytes, own),
            most=_largest_unit,
        ),
        evidence=NodeEvidence(
            region_roots=(
                "/usr/local/vgpu/containers",  # HAMi, whose library is the same
                "/usr/local/vgpu/vgpu/containers",  # from v1.12.0
                "/tmp/vgpu/containers",  # noqa: S108  # up to v1.11 the regions are there
            )
        ),
        repair=_repair(VOLCANO, read_only=(legacy_format.MEMORY, legacy_format.NUMBER)),
        defect=SchedulerDefect(DefectCause.SAME_GPU_TWICE, DefectSign.SAME_POD),
        adapter="volcano",
        limit_way=HAMI_CORE,
        names=own,
        with_names=volcano_row,
    )


def hami_row(names: SystemNames = ORIGINAL_NAMES) -> SchemeRow:
    """HAMi with its names."""
    own = names[HAMI.name]
    key_set = HAMI.named(own)
    also_nvidias = is_nvidia_resource(own.count)
    return SchemeRow(
        name=HAMI.name,
        scheme=Scheme.VOLCANO,
        codec=lambda _: Volcano(key_set),  # HAMi counts in MiB
        has_devices=_is_hamis,
        keys=KeyPrefixes(
            resources=(
                "nvidia.com/gpu",  # gpumem, gpucores and gpumem-percentage too
                ORIGINAL_NAMES[HAMI.name].priority,
            ),
            marks=("hami.io/vgpu-",),
            kept=(
                HAMI_MARK,
                "nvidia.com/",  # use-gputype of pods, gpu.product of nodes
            ),
            evidence=(HAMI_MARK, *key_set.implied_by, *(() if also_nvidias else (own.count,))),
            passing=(*HAMI.handshake, *HAMI.locks),
        ),
        written=_written(HAMI, labels=(HAMI.node,)),
        repair=_repair(HAMI),
        defect=SchedulerDefect(DefectCause.INIT_CONTAINERS_MISCOUNTED, DefectSign.INIT_CONTAINERS),
        adapter="volcano",
        limit_way=HAMI_CORE,
        is_foreign=lambda nodes: whole_gpus(nodes, names),
        is_renamed=lambda node: advertises_others(node, own),
        names=own,
        with_names=hami_row,
    )


VOLCANO_ROW: Final = volcano_row()
HAMI_ROW: Final = hami_row()
