"""The first view: one sentence, what needs action, capacity by model, the tabs of pods. Pure."""

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from fleet.measured import known_as
from fleet.problems import NEEDS_ACTION, FleetProblem
from fleet.snapshot import FleetSnapshot
from fleet.waiting import PodTab, SimilarPods
from vgpucli.inspect.document import DeviceDocument, NodeDocument


class Sentence(msgspec.Struct, frozen=True, rename="camel"):
    """The numbers of the first sentence.

    ``freeBytes``, ``memoryBytes`` and ``largestFreeBytes`` are of GPUs that sharing systems have
    registered, each once; free is what neither a pod holds nor a scheduler keeps for one;
    ``maybeHeldBytes`` of it pods may hold, whose GPU is not known.
    """

    needing_action: int
    waiting_pods: int
    waiting_since: datetime | None
    free_bytes: int
    memory_bytes: int
    largest_free_bytes: int
    maybe_held_bytes: int


class ModelCapacity(msgspec.Struct, frozen=True, rename="camel"):
    """The GPUs of one model, each once; ``usable`` are those whose node takes new pods.

    ``usedBytes`` is what pods use on ``measuredGpus`` of them, null if none is measured, and
    ``idleBytes`` what is held on these GPUs and not used.
    """

    model: str
    gpus: int
    usable_gpus: int
    memory_bytes: int
    held_bytes: int
    kept_bytes: int
    free_bytes: int
    largest_free_bytes: int
    maybe_held_bytes: int
    measured_gpus: int = 0
    used_bytes: int | None = None
    idle_bytes: int | None = None


class Tab(msgspec.Struct, frozen=True, rename="camel"):
    """A tab with the numbers of its groups and of their pods."""

    name: str
    groups: int
    pods: int


def sentence(
    problems: Iterable[FleetProblem],
    groups: Iterable[SimilarPods],
    models: Iterable[ModelCapacity],
) -> Sentence:
    """The numbers of the first sentence."""
    waiting = [group for group in groups if group.tab == PodTab.WAITING]
    since = [group.since for group in waiting if group.since is not None]
    models = tuple(models)
    return Sentence(
        sum(problem.severity in NEEDS_ACTION for problem in problems),
        sum(group.pods for group in waiting),
        min(since, default=None),
        sum(model.free_bytes for model in models),
        sum(model.memory_bytes for model in models),
        max((model.largest_free_bytes for model in models), default=0),
        sum(model.maybe_held_bytes for model in models),
    )


def takes_pods(node: NodeDocument, device: DeviceDocument) -> bool:
    """Whether new shares may come to a GPU."""
    return node.ready and not node.unschedulable and not node.closed and device.healthy


def model_capacities(
    snapshot: FleetSnapshot, used: Mapping[tuple[str, str], int]
) -> tuple[ModelCapacity, ...]:
    """The capacity by model, that with the most memory first; sums of ``vgpu inspect``'s GPUs."""
    by_model: dict[str, list[tuple[NodeDocument, DeviceDocument]]] = {}
    for node in snapshot.inspect.nodes:
        for device in node.devices:
            if device.system:
                by_model.setdefault(device.model, []).append((node, device))
    models = (_capacity(model, devices, used) for model, devices in by_model.items())
    return tuple(sorted(models, key=lambda model: (-model.memory_bytes, model.model)))


def _capacity(
    model: str,
    devices: list[tuple[NodeDocument, DeviceDocument]],
    used: Mapping[tuple[str, str], int],
) -> ModelCapacity:
    open_to = [device for node, device in devices if takes_pods(node, device)]
    every = [device for _, device in devices]
    measured = [
        (device.memory_held_bytes, used[node.name, known_as(device)])
        for node, device in devices
        if (node.name, known_as(device)) in used
    ]
    return ModelCapacity(
        model,
        len(every),
        len(open_to),
        sum(device.memory_bytes or 0 for device in every),
        sum(device.memory_held_bytes for device in every),
        sum(device.memory_kept_bytes for device in every),
        sum(device.memory_free_bytes or 0 for device in open_to),
        max((device.memory_free_bytes or 0 for device in open_to), default=0),
        sum(device.memory_maybe_held_bytes for device in open_to),
        len(measured),
        sum(use for _, use in measured) if measured else None,
        sum(max(0, held - use) for held, use in measured) if measured else None,
    )


def tabs(groups: Iterable[SimilarPods]) -> tuple[Tab, ...]:
    """All tabs, in their order, also the empty ones."""
    by_tab: Mapping[str, list[SimilarPods]] = {tab.value: [] for tab in PodTab}
    for group in groups:
        by_tab[group.tab].append(group)
    return tuple(
        Tab(name, len(members), sum(group.pods for group in members))
        for name, members in by_tab.items()
    )
