"""The GPUs that the annotations of a pod exclude by their type or UUID, whatever is free. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import structs

from vgpu.model.allocation import Request
from vgpu.model.units import MIB
from vgpu.placement.candidate import (
    NO_WISHES,
    CandidateNode,
    PlacementWishes,
    PodDemand,
    UsedGpu,
)
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import CandidateView
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpucli.explain.known_objects import NodeAnswer

EXCLUDING: Final = frozenset({PlacementReason.TYPE, PlacementReason.UUID})
"""Reasons of GPUs that the pod's annotations exclude."""


def excluded_gpus(
    scheme: SchedulerScheme, demand: PodDemand, node: CandidateNode
) -> Mapping[str, PlacementReason]:
    """The excluded GPUs of the node by name: those that refuse the smallest share while idle."""
    of_pod = demand.wishes
    wishes = PlacementWishes(
        use_types=of_pod.use_types,
        avoid_types=of_pod.avoid_types,
        use_uuids=of_pod.use_uuids,
        avoid_uuids=of_pod.avoid_uuids,
    )
    if wishes == NO_WISHES:
        return {}
    idle = tuple(
        UsedGpu(structs.replace(gpu.device, healthy=True), geometries=gpu.geometries, mode=gpu.mode)
        for gpu in node.gpus
    )
    everything = (Request("", len(idle), memory_bytes=MIB),)
    smallest = structs.replace(demand, requests=everything, wishes=wishes)
    refusal = scheme.dialect.filter(smallest, structs.replace(node, gpus=idle))
    skipped = () if refusal is None else refusal.skipped
    return {name: reason for name, reason in skipped if reason in EXCLUDING}


def with_exclusions(
    scheme: SchedulerScheme, demand: PodDemand, answers: Iterable[NodeAnswer]
) -> tuple[NodeAnswer, ...]:
    """The answers, where a node whose GPUs are all excluded refuses for this reason.

    A scheduler that checks the free memory of a GPU before its type names the memory.
    """
    return tuple(
        (name, view, _excluded(scheme, demand, view, refusal)) for name, view, refusal in answers
    )


def _excluded(
    scheme: SchedulerScheme,
    demand: PodDemand,
    view: CandidateView | None,
    refusal: PlacementRefusal | None,
) -> PlacementRefusal | None:
    if view is None or refusal is None or not refusal.skipped:
        return refusal
    excluded = excluded_gpus(scheme, demand, view.candidate)
    if not excluded or len(excluded) < len(view.candidate.gpus):
        return refusal
    reason = Counter(excluded.values()).most_common(1)[0][0]
    return structs.replace(
        refusal, reason=reason, message=reason.explanation, skipped=tuple(excluded.items())
    )
