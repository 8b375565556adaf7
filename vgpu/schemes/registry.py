"""The sharing systems that the product knows: a row for each, and what the rows say together.

Whoever needs the list of systems asks :func:`registry`; a system is added by its row and nowhere
else. Pure, but for the registry in force: it is that of :data:`ROWS`, and another one only inside
of :func:`registered`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from typing import Final

from vgpu.model.names import Scheme
from vgpu.model.objects import Node, Pod
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.dra.row import DRA_ROW
from vgpu.schemes.gaia.row import GAIA_ROW
from vgpu.schemes.gpushare.row import GPUSHARE_ROW
from vgpu.schemes.kai.row import KAI_ROW
from vgpu.schemes.kubeshare.row import KUBESHARE_ROW
from vgpu.schemes.nvidia.row import NVIDIA_ROW
from vgpu.schemes.resource_names import (
    NO_SOURCES,
    ORIGINAL_NAMES,
    NamesSource,
    ResourceNames,
    SystemNames,
)
from vgpu.schemes.row import AnnotationRepair, KubeletGrant, LimitFiles, NamedDevices, SchemeRow
from vgpu.schemes.volcano.row import HAMI_ROW, VOLCANO_ROW

ROWS: Final = (
    VOLCANO_ROW,
    HAMI_ROW,
    GPUSHARE_ROW,
    GAIA_ROW,
    KUBESHARE_ROW,
    DRA_ROW,
    NVIDIA_ROW,
    KAI_ROW,
)

UnitBytes = Mapping[str, int | None]
"""Bytes of one unit of a system's memory, by the name of its row; None is not known."""


class SchemeRegistry:
    """The rows of some systems. Immutable; frequent answers are computed once."""

    def __init__(
        self, rows: Iterable[SchemeRow], sources: Mapping[str, NamesSource] = NO_SOURCES
    ) -> None:
        """``sources`` are where names come from that are not the originals', by the row's name.

        Raises ValueError for two rows of one name.
        """
        self.rows = tuple(rows)
        self.sources = sources
        self._by_name = {row.name: row for row in self.rows}
        if len(self._by_name) < len(self.rows):
            raise ValueError("two rows of one name")

    # ------------------------------------------------------------ rows

    def row(self, codec: SchemeCodec) -> SchemeRow:
        """The row of a codec's system."""
        return self._by_name[codec.name]

    def of(self, scheme: Scheme) -> SchemeRow | None:
        """The first row of a scheme; None of Scheme.NONE, or of one that is not registered."""
        return next((row for row in self.rows if row.scheme is scheme), None)

    @cached_property
    def schemes(self) -> tuple[Scheme, ...]:
        """All schemes, in the order of their rows."""
        return tuple(dict.fromkeys(row.scheme for row in self.rows))

    @cached_property
    def schemes_by_name(self) -> Mapping[str, Scheme]:
        """The scheme of each row, by the name of the row."""
        return {row.name: row.scheme for row in self.rows}

    @cached_property
    def served(self) -> tuple[Scheme, ...]:
        """Those whose pods the device plugin serves."""
        return tuple(dict.fromkeys(row.scheme for row in self.rows if row.adapter))

    # ------------------------------------------------------------ names of resources

    @cached_property
    def names(self) -> SystemNames:
        """The names of the extended resources, by the name of the row; also of rows without one."""
        return {**ORIGINAL_NAMES, **{row.name: row.names for row in self.rows if row.with_names}}

    @property
    def partly_named(self) -> tuple[str, ...]:
        """The systems of which only some names are known, by the name of the row."""
        return tuple(system for system, names in self.names.items() if names.is_partial)

    @property
    def unnamed(self) -> tuple[str, ...]:
        """The systems of which no name is known, by the name of the row."""
        return tuple(system for system, names in self.names.items() if names.is_unknown)

    def may_be_renamed(self, requested: Collection[str]) -> bool:
        """Whether a pod that requests these may request amounts whose names are not known."""
        return any(self.names[system].count in requested for system in self.partly_named)

    def named(self, names: SystemNames, source: NamesSource) -> "SchemeRegistry":
        """The same rows with these names of their extended resources, which are of this source."""
        everything = {**self.names, **names}
        rows = (row.with_names(everything) if row.with_names else row for row in self.rows)
        return SchemeRegistry(rows, {**self.sources, **dict.fromkeys(names, source)})

    # ------------------------------------------------------------ codecs and units

    def codecs(self, units: UnitBytes) -> tuple[SchemeCodec, ...]:
        """All systems' codecs; amounts are unknown where a system's unit is not set."""
        return tuple(row.codec(units.get(row.name)) for row in self.rows)

    def default_units(self, units: UnitBytes) -> UnitBytes:
        """The units, each system's default where none is set."""
        return {row.name: units.get(row.name) or row.unit.default for row in self.rows if row.unit}

    def assumed_units(
        self, units: UnitBytes, nodes: Sequence[Node]
    ) -> tuple[UnitBytes, tuple[str, ...]]:
        """The units, assumed by what the nodes have where none is set; what was assumed."""
        assumed = dict(self.default_units(units))
        notes: list[str] = []
        for row in self.rows:
            if row.unit and row.unit.assumed and units.get(row.name) is None:
                assumed[row.name], assumptions = row.unit.assumed(nodes)
                notes += assumptions
        return assumed, tuple(notes)

    def used(
        self, codecs: Iterable[SchemeCodec], nodes: Iterable[Node], pods: Iterable[Pod]
    ) -> tuple[SchemeCodec, ...]:
        """The codecs of the systems whose keys nodes or pods have: others would read nothing."""
        keys: set[str] = set()
        for node in nodes:
            keys.update(node.annotations, node.capacity)
        for pod in pods:
            keys.update(pod.annotations, pod.labels)
            for container in pod.containers:
                keys.update(container.limits, container.broken)
        return tuple(codec for codec in codecs if _any_starts(keys, self.row(codec).keys.evidence))

    # ------------------------------------------------------------ keys

    @cached_property
    def resource_prefixes(self) -> tuple[str, ...]:
        """The prefixes of all systems' extended resources."""
        return tuple(chain.from_iterable(row.keys.resources for row in self.rows))

    @cached_property
    def resource_names(self) -> frozenset[str]:
        """The extended resources that the codecs of all systems know by their names."""
        codecs = self.codecs({})
        return frozenset(
            chain.from_iterable((*each.advertised, *each.only_counted) for each in codecs)
        )

    @cached_property
    def advertised_by(self) -> Mapping[str, frozenset[str]]:
        """The extended resources that each system's device plugin advertises, by its row's name."""
        return {codec.name: frozenset(codec.advertised) for codec in self.codecs({})}

    @cached_property
    def mark_prefixes(self) -> tuple[str, ...]:
        """The prefixes of annotations and labels that show that a pod shares GPUs."""
        return tuple(chain.from_iterable(row.keys.marks for row in self.rows))

    @cached_property
    def kept_prefixes(self) -> tuple[str, ...]:
        """The prefixes of all annotations and labels that are kept."""
        return (
            *self.mark_prefixes,
            *chain.from_iterable(row.keys.kept for row in self.rows),
        )

    @cached_property
    def passing_keys(self) -> frozenset[str]:
        """Annotations of nodes that change all the time and name no GPU."""
        return frozenset(chain.from_iterable(row.keys.passing for row in self.rows))

    @cached_property
    def _share_pod_prefixes(self) -> tuple[str, ...]:
        return tuple(chain.from_iterable(row.keys.share_pods for row in self.rows))

    def uses_share_pods(self, keys: Iterable[str]) -> bool:
        """Whether one of the keys is of a system that is asked by SharePods."""
        return _any_starts(keys, self._share_pod_prefixes)

    # ------------------------------------------------------------ nodes and pods

    def lists_unhealthy(self, node: Node) -> bool:
        """Whether the node has GPUs of a system that lists the unhealthy ones in a ConfigMap."""
        return any(row.unhealthy_map and row.has_devices(node) for row in self.rows)

    def schemes_of(self, node: Node) -> frozenset[Scheme]:
        """The schemes of the GPUs that the node has registered."""
        return frozenset(row.scheme for row in self.rows if row.has_devices(node))

    def foreign(self, nodes: Sequence[Node]) -> Callable[[Pod], bool]:
        """A function: whether a pod only uses a system's names, and shares no GPU."""
        judges = [row.is_foreign(nodes) for row in self.rows if row.is_foreign]
        return lambda pod: any(judge(pod) for judge in judges) and not self.is_reservation(pod)

    def join(self, pods: Sequence[Pod], share_pods: Sequence[Pod]) -> tuple[Pod, ...]:
        """The pods with what their SharePods know of them; then SharePods without a pod."""
        for row in self.rows:
            if row.join:
                return row.join(pods, share_pods)
        return (*pods, *share_pods)

    def keeps_for_others(self, pod: Pod) -> bool:
        """Whether a pod keeps a GPU for others, and uses nothing of it: a holder pod."""
        return any(row.keeps_for_others(pod) for row in self.rows if row.keeps_for_others)

    def is_reservation(self, pod: Pod) -> bool:
        """Whether a pod has a device of another system's plugin, and keeps it for others."""
        return any(row.is_reservation(pod) for row in self.rows if row.is_reservation)

    def resolved(self, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        """The pods with what other pods know of their GPUs."""
        found = tuple(pods)
        for row in self.rows:
            if row.resolve:
                found = row.resolve(found)
        return found

    # ------------------------------------------------------------ evidence and repairs

    def named_devices(self, grant: KubeletGrant) -> NamedDevices | None:
        """The devices that the kubelet's IDs name themselves; None where they only count."""
        readers = (row.named_devices for row in self.rows if row.named_devices)
        return next((devices for read in readers if (devices := read(grant))), None)

    @cached_property
    def observed(self) -> frozenset[Scheme]:
        """The schemes without annotations: nothing but the kubelet knows their allocations."""
        return frozenset(row.scheme for row in self.rows if not row.keys.evidence)

    @cached_property
    def region_roots(self) -> tuple[str, ...]:
        """Folders in which shared-memory regions may be."""
        return tuple(chain.from_iterable(row.evidence.region_roots for row in self.rows))

    @cached_property
    def resource_claim_roots(self) -> tuple[str, ...]:
        """Folders in which regions of ResourceClaims may be."""
        return tuple(chain.from_iterable(row.evidence.resource_claim_roots for row in self.rows))

    @cached_property
    def limit_files(self) -> Mapping[str, LimitFiles]:
        """Limit files by the name of the row."""
        return {row.name: row.evidence.limits for row in self.rows if row.evidence.limits}

    def repair(self, scheme: Scheme) -> AnnotationRepair | None:
        """How annotations of a scheme's running pods may be repaired; None is not at all."""
        row = self.of(scheme)
        return row.repair if row else None

    @cached_property
    def repairs(self) -> tuple[AnnotationRepair, ...]:
        """The annotation repairs of all rows."""
        return tuple(row.repair for row in self.rows if row.repair)

    @cached_property
    def reservation_keys(self) -> frozenset[str]:
        """A pod's reservation has one of these annotations."""
        return frozenset(chain.from_iterable(repair.reservation for repair in self.repairs))

    @cached_property
    def allocated_marks(self) -> frozenset[tuple[str, str]]:
        """The reservation of a pod whose devices are allocated has one of these annotations."""
        return frozenset(chain.from_iterable(repair.allocated for repair in self.repairs))

    @cached_property
    def read_only_resources(self) -> frozenset[str]:
        """Resources of which annotations are read only."""
        return frozenset(chain.from_iterable(repair.read_only for repair in self.repairs))


def _any_starts(keys: Iterable[str], prefixes: tuple[str, ...]) -> bool:
    return any(key.startswith(prefixes) for key in keys)


_registry = SchemeRegistry(ROWS)


def registry() -> SchemeRegistry:
    """The registry in force."""
    return _registry


def scheme_names() -> tuple[str, ...]:
    """The names of all schemes, for a flag's choices."""
    return tuple(scheme.value for scheme in _registry.schemes)


def served_names() -> tuple[str, ...]:
    """The names of the schemes whose pods the device plugin serves, for a flag's choices."""
    return tuple(scheme.value for scheme in _registry.served)


def names_of(system: str) -> ResourceNames:
    """The names in force of a system's extended resources, by the name of its row."""
    return _registry.names[system]


@contextmanager
def renamed(names: SystemNames, source: NamesSource = NamesSource.FLAG) -> Iterator[SchemeRegistry]:
    """The systems' resources have these names inside of the ``with`` and for all threads.

    It begins before the first object is read: those that were read before keep what they had.
    """
    global _registry  # noqa: PLW0603
    before, _registry = _registry, _registry.named(names, source)
    try:
        yield _registry
    finally:
        _registry = before


@contextmanager
def registered(*rows: SchemeRow, without: Collection[SchemeRow] = ()) -> Iterator[SchemeRegistry]:
    """A registry with these rows too, in force inside of the ``with`` and for all threads.

    It does not have the rows in ``without``.
    """
    global _registry  # noqa: PLW0603  # the one place
    kept = [row for row in _registry.rows if row not in without]
    before, _registry = _registry, SchemeRegistry((*kept, *rows), _registry.sources)
    try:
        yield _registry
    finally:
        _registry = before
