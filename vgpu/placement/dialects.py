"""The sharing systems that our scheduler places for: a row for each, beside the system's own row.

KubeShare's pods have a scheduler of their own and are not among them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from vgpu.model.allocation import NO_DEFAULTS, Request, RequestDefaults
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Node, Pod
from vgpu.model.units import MIB
from vgpu.placement.candidate import (
    NO_WISHES,
    SOFTWARE,
    GpuLinks,
    PlacementWishes,
    PodDemand,
)
from vgpu.placement.dialect import BINPACK, SPREAD, PlacementDialect
from vgpu.placement.exclusive_rules import ExclusiveRule, with_rules
from vgpu.placement.gpu_admission import GpuAdmissionDialect
from vgpu.placement.gpushare import GpushareDialect
from vgpu.placement.hami import HamiDialect, hami_wishes
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.placement.unserved import CHART_RESOURCES, unserved_refusal
from vgpu.placement.volcano import SchedulingPolicy, VolcanoDialect, volcano_wishes
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.registry import SchemeRegistry, UnitBytes, registry
from vgpu.schemes.row import SchemeRow
from vgpu.schemes.volcano.codec import Volcano
from vgpu.schemes.volcano.key_set import HAMI, VOLCANO
from vgpu.schemes.volcano.node import lock_text, pair_scores, registrations

HAMI_CORDON: Final = "hami.io/device-cordon"
"""HAMi's annotation of a node: UUIDs of GPUs that take no new shares, joined by commas."""


class PlacementPolicies(msgspec.Struct, frozen=True):
    """The cluster's policies.

    Attributes:
        node, gpu: ``binpack`` or ``spread``; "" of GPUs is each system's default.
        exclusive: Volcano's pods that share no GPU with each other.
        unserved: resources of other vendors, whose pods get no device from us.
        hami: what HAMi's scheduler assumes of what a container does not request.
    """

    node: str = BINPACK
    gpu: str = ""
    exclusive: tuple[ExclusiveRule, ...] = ()
    unserved: frozenset[str] = CHART_RESOURCES
    hami: RequestDefaults = NO_DEFAULTS


class GpuTraits(msgspec.Struct, frozen=True):
    """The NUMA node of a GPU, and how it is shared; ``mode`` "" is as the node's GPUs are."""

    numa: int = 0
    mode: str = ""


class DialectRow(msgspec.Struct, frozen=True):
    """What our scheduler needs of a sharing system.

    Attributes:
        name: the name of the system's row in :mod:`vgpu.schemes.registry`.
        resources: a pod that requests one of these is placed by this dialect.
        only_counted: those of ``resources`` that no device plugin advertises.
        unread: further resources that pods request beside these; no device plugin advertises them,
            and no placement depends on them.
        dialect: the dialect, from the policies and the bytes of one unit of memory.
        codec: the codec with the settings in the policies.
        wishes: the wishes in a pod's annotations.
        places: the kinds of container that the system can reserve GPUs for.
        has_exclusive_rules: whether the cluster's exclusive rules are for its pods.
        lists_unserved: whether annotations list what Allocate has still to allocate.
        mode: how all of the node's GPUs are shared. Raises ClaimError.
        cordoned: names of the node's GPUs that take no new shares.
        traits: more about the node's GPUs, by UUID. Raises ClaimError.
        links: how well the node's GPUs are connected.
        label: the label that a bound pod has, with the name of its node; "" if none.
        lock: the node's annotation by which the original's plugin knows the pod; "" if none.
        lock_text: the text of that annotation, from unix seconds and the pod.
    """

    name: str
    resources: tuple[str, ...]
    dialect: Callable[[PlacementPolicies, int], PlacementDialect]
    places: frozenset[ContainerKind]
    only_counted: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    codec: Callable[[SchemeCodec, PlacementPolicies], SchemeCodec] = lambda codec, _: codec
    wishes: Callable[[Pod], PlacementWishes] = lambda _: NO_WISHES
    has_exclusive_rules: bool = False
    lists_unserved: bool = False
    mode: Callable[[Node], str] = lambda _: SOFTWARE
    cordoned: Callable[[Node], frozenset[str]] = lambda _: frozenset()
    traits: Callable[[Node], Mapping[str, GpuTraits]] = lambda _: {}
    links: Callable[[Node], GpuLinks] = lambda _: {}
    label: str = ""
    lock: str = ""
    lock_text: Callable[[float, PodRef], str] = lambda *_: ""

    @property
    def managed(self) -> Mapping[str, bool]:
        """What ``managedResources`` of kube-scheduler's extender have to name.

        The value is ``ignoredByScheduler``: True where no node has the resource.
        """
        read = {name: name in self.only_counted for name in self.resources}
        return read | dict.fromkeys(self.unread, True)


def _volcano_mode(node: Node) -> str:
    """The mode of all GPUs; of several modes one that is not the library's."""
    modes = {gpu.mode or SOFTWARE for gpu in registrations(node, VOLCANO)}
    return max(modes - {SOFTWARE}, default=SOFTWARE)


def _hami_traits(node: Node) -> dict[str, GpuTraits]:
    return {
        gpu.uuid: GpuTraits(gpu.numa, gpu.mode or SOFTWARE) for gpu in registrations(node, HAMI)
    }


def _cordoned(node: Node) -> frozenset[str]:
    text = node.annotations.get(HAMI_CORDON, "")
    return frozenset(filter(None, map(str.strip, text.split(","))))


_APPS: Final = frozenset({ContainerKind.APP})


@lru_cache(1)
def _rows(schemes: SchemeRegistry) -> tuple[DialectRow, ...]:
    names = schemes.names
    volcano, hami = VOLCANO.named(names[VOLCANO.name]), HAMI.named(names[HAMI.name])
    return (
        DialectRow(
            VOLCANO.name,
            (volcano.number, volcano.memory, volcano.cores, volcano.percentage),
            lambda policies, unit_bytes: VolcanoDialect(
                policies.node, policy=SchedulingPolicy(policies.gpu), unit_bytes=unit_bytes
            ),
            places=_APPS,
            only_counted=(volcano.percentage,),
            wishes=volcano_wishes,
            has_exclusive_rules=True,
            lists_unserved=True,
            mode=_volcano_mode,
            lock=VOLCANO.locks[0],
            lock_text=lambda now, _: lock_text(now, None),
        ),
        DialectRow(
            HAMI.name,
            (hami.number, *hami.implied_by),
            lambda policies, _: HamiDialect(policies.node, gpu_policy=policies.gpu or SPREAD),
            places=frozenset({ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR}),
            only_counted=hami.implied_by,
            unread=(hami.resources.priority,),
            codec=lambda _, policies: Volcano(hami, defaults=policies.hami),
            wishes=hami_wishes,
            lists_unserved=True,
            cordoned=_cordoned,
            traits=_hami_traits,
            links=pair_scores,
            label=HAMI.node,
            lock=HAMI.locks[0],
            lock_text=lock_text,
        ),
        DialectRow(
            "gpushare",
            (names["gpushare"].memory,),
            lambda policies, _: GpushareDialect(policies.node),
            places=frozenset({ContainerKind.APP, ContainerKind.SIDECAR}),
        ),
        DialectRow(
            "gaia",
            (names["gaia"].cores, names["gaia"].memory),
            lambda policies, _: GpuAdmissionDialect(policies.node),
            places=_APPS,
        ),
    )


def dialect_rows() -> tuple[DialectRow, ...]:
    """The rows, with the names of resources that are in force."""
    return _rows(registry())


class SchedulerScheme(msgspec.Struct, frozen=True):
    """A sharing system with its operator's settings, ready to place.

    ``unit_bytes`` are the bytes of one unit of its memory, ``rules`` the exclusive rules, and
    ``unserved`` the resources beside which it serves no pod. ``others`` are the codecs of the other
    systems, and ``marks`` the prefixes of the annotations that these read of pods.
    """

    row: SchemeRow
    dialect_row: DialectRow
    codec: SchemeCodec
    dialect: PlacementDialect
    unit_bytes: int = MIB
    rules: tuple[ExclusiveRule, ...] = ()
    unserved: frozenset[str] = frozenset()
    others: tuple[SchemeCodec, ...] = ()
    marks: tuple[str, ...] = ()

    def is_marked_by_others(self, pod: Pod) -> bool:
        """Whether the pod has annotations of another system."""
        return any(key.startswith(self.marks) for key in pod.annotations)

    def wishes(self, pod: Pod) -> PlacementWishes:
        """The wishes in the pod's annotations, and the rules that are for it."""
        wishes = self.dialect_row.wishes(pod)
        return with_rules(wishes, pod.labels, self.rules) if self.rules else wishes

    def is_asked(self, pod: Pod) -> bool:
        """Whether the pod requests the system's resources."""
        return any(
            container.limits.get(name) or name in container.broken
            for container in pod.containers
            for name in self.dialect_row.resources
        )


def scheduler_schemes(
    units: UnitBytes,
    policies: PlacementPolicies = PlacementPolicies(),  # noqa: B008 - frozen
) -> tuple[SchedulerScheme, ...]:
    """All systems of :func:`dialect_rows`; ``units`` are as for :meth:`SchemeRegistry.codecs`."""
    rows: Mapping[str, SchemeRow] = {row.name: row for row in registry().rows}
    codecs = registry().codecs({row.name: _unit_of(row, units) for row in registry().rows})
    schemes = []
    for dialect_row in dialect_rows():
        row = rows[dialect_row.name]
        unit = _unit_of(row, units)
        dialect = dialect_row.dialect(policies, unit)
        rules = policies.exclusive if dialect_row.has_exclusive_rules else ()
        codec = dialect_row.codec(row.codec(unit), policies)
        schemes.append(
            SchedulerScheme(
                row,
                dialect_row,
                codec,
                dialect,
                unit,
                rules,
                policies.unserved,
                tuple(each for each in codecs if each.name != row.name),
                tuple(
                    mark
                    for other in registry().rows
                    if other is not row
                    for mark in (*other.keys.marks, *other.keys.evidence)
                ),
            )
        )
    return tuple(schemes)


def _unit_of(row: SchemeRow, units: UnitBytes) -> int:
    """Bytes of one unit of the system's memory."""
    return units.get(row.name) or (row.unit.default if row.unit else MIB)


def demand_of(
    pod: Pod, schemes: Iterable[SchedulerScheme]
) -> tuple[SchedulerScheme, PodDemand] | PlacementRefusal:
    """What the pod requests, and of which system."""
    scheme = _only_asked(pod, schemes)
    if isinstance(scheme, PlacementRefusal):
        return scheme
    try:
        requests, malformed = scheme.codec.requests(pod), scheme.codec.inadmissible(pod)
    except ClaimError as error:
        requests, malformed = (), error.detail
    if malformed or not requests:
        malformed = malformed or "no number of GPUs is requested"
        return PlacementRefusal(PlacementReason.MALFORMED_REQUEST, malformed)
    places = scheme.dialect_row.places
    units = tuple(sorted(pod.requested_units().items()))
    demand = PodDemand(pod.ref, requests, scheme.wishes(pod), pod.priority, units)
    later = [request for request in requests if request.kind in places]
    for request in requests:
        if request.kind not in places and not _is_covered(request, later):
            return PlacementRefusal(PlacementReason.INIT_CONTAINER, container=request.container)
    return scheme, demand


def _only_asked(pod: Pod, schemes: Iterable[SchedulerScheme]) -> SchedulerScheme | PlacementRefusal:
    """The system that the pod requests, if it is one and the pod requests nothing else."""
    asked = [scheme for scheme in schemes if scheme.is_asked(pod)]
    if not asked:
        return PlacementRefusal.of(PlacementReason.NOTHING_REQUESTED)
    if len(asked) > 1:
        names = " and ".join(scheme.row.name for scheme in asked)
        return PlacementRefusal(PlacementReason.SEVERAL_SYSTEMS, f"the pod requests {names}")
    (scheme,) = asked
    unserved = pod.requesting(scheme.unserved)
    return unserved_refusal(unserved) if unserved else scheme


def _is_covered(request: Request, others: Iterable[Request]) -> bool:
    """Whether an init container can use the devices of a container that runs after it.

    The device plugin allocates it those of an app container that has as many.
    """
    return request.kind is ContainerKind.INIT and any(
        request.count == other.count
        and request.cores_milli <= other.cores_milli
        and _memory(request) <= _memory(other)
        for other in others
        if other.kind is ContainerKind.APP
    )


def _memory(request: Request) -> tuple[int, int]:
    """Comparable amounts of the same kind; all of a GPU's memory is more than any bytes."""
    if request.memory_bytes is not None:
        return 0, request.memory_bytes
    return 1, 100 if request.memory_percent is None else request.memory_percent
