"""The controllers' metric families as tables, and the counters behind them."""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from kubeshare.model import ClusterNode, ConditionType, SharePod
from kubeshare.reasons import UnplacedReason
from kubeshare.virtual_gpu import VirtualGpuState
from vgpu.metrics.family import Family, FamilyTable, MetricType
from vgpu.model.objects import NODE_KIND, POD_KIND, SHARE_POD_KIND

GAUGE: Final = MetricType.GAUGE
COUNTER: Final = MetricType.COUNTER


FOLLOWED_KINDS: Final = (NODE_KIND, POD_KIND, SHARE_POD_KIND)
"""The kinds of object that the controllers follow."""


class StepOutcome(StrEnum):
    """The result of a write."""

    SUCCESS = "success"
    CONFLICT = "conflict"
    ERROR = "error"


class SharePodState(StrEnum):
    """How far a SharePod has come."""

    INVALID = "invalid"
    WAITING = "waiting"
    PLACED = "placed"
    BOUND = "bound"
    READY = "ready"
    FINISHED = "finished"


class VirtualGpuPhase(StrEnum):
    """How far a virtual GPU has come."""

    PENDING = "pending"
    ACTIVE = "active"
    IDLE = "idle"
    CONFLICT = "conflict"


def state_of(share_pod: SharePod) -> SharePodState:
    """How far a SharePod has come."""
    ready = share_pod.condition(ConditionType.READY)
    checks = (
        (bool(share_pod.problem), SharePodState.INVALID),
        (share_pod.is_finished, SharePodState.FINISHED),
        (share_pod.needs_place, SharePodState.WAITING),
        (ready is not None and ready.status == "True", SharePodState.READY),
        (bool(share_pod.bound), SharePodState.BOUND),
    )
    return next((state for is_so, state in checks if is_so), SharePodState.PLACED)


def phase_of(gpu: VirtualGpuState) -> VirtualGpuPhase:
    """How far a virtual GPU has come."""
    checks = (
        (gpu.is_torn, VirtualGpuPhase.CONFLICT),
        (not gpu.uuid, VirtualGpuPhase.PENDING),
        (bool(gpu.users), VirtualGpuPhase.ACTIVE),
    )
    return next((phase for is_so, phase in checks if is_so), VirtualGpuPhase.IDLE)


def connected_nodes(
    nodes: Iterable[ClusterNode], gpus: Iterable[VirtualGpuState]
) -> Mapping[tuple[str, ...], int]:
    """Node -> 1 if its node component has reported its GPUs and those of all holder pods.

    A node without GPUs of KubeShare is not in it.
    """
    names, silent = set(), set()
    for gpu in gpus:
        names.add(gpu.name.node)
        if gpu.awaits_report:
            silent.add(gpu.name.node)
    reported = {node.name for node in nodes if node.gpu_bytes}
    return {(name,): int(name in reported - silent) for name in sorted(names | reported)}


class ControllerView(msgspec.Struct, frozen=True):
    """All values of a page.

    Attributes:
        leads: whether this process writes.
        ready: whether the cluster was read completely and events arrive.
        ages: seconds since the last event, by kind of object.
        malformed: number of objects that cannot be read, by kind.
        share_pods, gpus, nodes: the SharePods, virtual GPUs and nodes.
        unplaced: waiting SharePods by the reason of most nodes.
        placements, holder_starts: number of placements, and of holder pods whose GPU became known,
            each with their seconds together.
        steps: number of writes, by step and outcome.
        api_requests: requests to the API server by verb and HTTP status.
    """

    leads: bool
    ready: bool
    ages: Mapping[str, float]
    malformed: Mapping[str, int]
    share_pods: tuple[SharePod, ...]
    gpus: tuple[VirtualGpuState, ...]
    nodes: tuple[ClusterNode, ...]
    unplaced: Mapping[UnplacedReason, int]
    placements: tuple[int, float]
    holder_starts: tuple[int, float]
    steps: Mapping[tuple[str, StepOutcome], int]
    api_requests: Mapping[tuple[str, str], int]


class ControllerMetrics:
    """The counters. Any thread may call every method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unplaced: dict[str, UnplacedReason] = {}
        self._placements = (0, 0.0)
        self._holder_starts = (0, 0.0)
        self._steps: Counter[tuple[str, StepOutcome]] = Counter()

    def note_placement(self, seconds: float) -> None:
        """Count a SharePod that was placed, with the time that this took."""
        with self._lock:
            count, total = self._placements
            self._placements = count + 1, total + seconds

    def note_holder_start(self, seconds: float) -> None:
        """Count a holder pod whose GPU has become known, with its age at that time."""
        with self._lock:
            count, total = self._holder_starts
            self._holder_starts = count + 1, total + seconds

    def note_unplaced(self, uid: str, reason: UnplacedReason) -> None:
        """Remember why a SharePod is not placed."""
        with self._lock:
            self._unplaced[uid] = reason

    def note_placed(self, uid: str) -> None:
        """Forget why a SharePod was not placed."""
        with self._lock:
            self._unplaced.pop(uid, None)

    def note_step(self, step: str, outcome: StepOutcome) -> None:
        """Count a write."""
        with self._lock:
            self._steps[step, outcome] += 1

    def counts(self, waiting: frozenset[str]) -> dict[str, Any]:
        """The fields of :class:`ControllerView` that are counted; of the ``waiting`` SharePods."""
        with self._lock:
            self._unplaced = {uid: why for uid, why in self._unplaced.items() if uid in waiting}
            return {
                "unplaced": Counter(self._unplaced.values()),
                "placements": self._placements,
                "holder_starts": self._holder_starts,
                "steps": dict(self._steps),
            }


def _share_pods(view: ControllerView) -> Mapping[tuple[str, ...], int]:
    counts = Counter(map(state_of, view.share_pods))
    return {(state,): counts[state] for state in SharePodState}


def _virtual_gpus(view: ControllerView) -> Mapping[tuple[str, ...], int]:
    return Counter((gpu.name.node, phase_of(gpu)) for gpu in view.gpus)


CONTROLLERS: Final = FamilyTable(
    "KubeShare's controllers",
    lambda view: (view,),
    (),
    lambda _: (),
    (
        Family(
            "vgpu_kubeshare_leader",
            GAUGE,
            "1 if this process holds the Lease and writes.",
            lambda view: int(view.leads),
        ),
        Family(
            "vgpu_kubeshare_ready",
            GAUGE,
            "1 if the cluster was read completely and events arrive.",
            lambda view: int(view.ready),
        ),
        Family(
            "vgpu_kubeshare_view_age_seconds",
            GAUGE,
            "Time since the last event about a kind of object; a bookmark comes every minute.",
            lambda view: {(kind,): age for kind, age in view.ages.items()},
            ("kind",),
            unit="seconds",
        ),
        Family(
            "vgpu_kubeshare_malformed_objects",
            GAUGE,
            "Objects that cannot be read, by kind: SharePods are not placed, nodes take none.",
            lambda view: {(kind,): view.malformed.get(kind, 0) for kind in FOLLOWED_KINDS},
            ("kind",),
        ),
        Family(
            "vgpu_kubeshare_sharepods",
            GAUGE,
            "SharePods, and pods with KubeShare 2's labels, by how far they have come.",
            _share_pods,
            ("state",),
        ),
        Family(
            "vgpu_kubeshare_virtual_gpus",
            GAUGE,
            "Virtual GPUs by node: pending (its GPU is unknown), active, idle, or conflict (its"
            " pods use another GPU than its holder pod).",
            _virtual_gpus,
            ("node", "state"),
        ),
        Family(
            "vgpu_kubeshare_unschedulable",
            GAUGE,
            "SharePods that no node takes, by the reason of most nodes; affinity decides alone.",
            lambda view: {(reason,): count for reason, count in view.unplaced.items()},
            ("reason",),
        ),
        Family(
            "vgpu_kubeshare_placements_total",
            COUNTER,
            "SharePods that were placed.",
            lambda view: view.placements[0],
        ),
        Family(
            "vgpu_kubeshare_placement_seconds_total",
            COUNTER,
            "Time that placements took together, with their writes.",
            lambda view: view.placements[1],
            unit="seconds",
        ),
        Family(
            "vgpu_kubeshare_holder_starts_total",
            COUNTER,
            "Holder pods whose GPU became known; a process counts those that it has seen without.",
            lambda view: view.holder_starts[0],
        ),
        Family(
            "vgpu_kubeshare_holder_start_seconds_total",
            COUNTER,
            "Time from the creation of these holder pods until their GPU was known, together.",
            lambda view: view.holder_starts[1],
            unit="seconds",
        ),
        Family(
            "vgpu_kubeshare_node_connected",
            GAUGE,
            "1 if the node component of the node has reported its GPUs, and the GPU of each holder"
            " pod that runs there.",
            lambda view: connected_nodes(view.nodes, view.gpus),
            ("node",),
        ),
        Family(
            "vgpu_kubeshare_steps_total",
            COUNTER,
            "Writes of the controllers; a conflict is repeated with the newer object.",
            lambda view: view.steps,
            ("step", "result"),
        ),
        Family(
            "vgpu_kubeshare_api_requests_total",
            COUNTER,
            "Requests to the API server; code 0 is no answer.",
            lambda view: view.api_requests,
            ("verb", "code"),
        ),
    ),
)

TABLES: Final = (CONTROLLERS,)


class NodeComponentView(msgspec.Struct, frozen=True):
    """All values of the node component's page.

    Attributes:
        ready: whether files and reports are new.
        parts: number of parts of rounds, by part and outcome.
        api_requests: requests to the API server by verb and HTTP status.
    """

    ready: bool
    parts: Mapping[tuple[str, StepOutcome], int]
    api_requests: Mapping[tuple[str, str], int]


NODE_COMPONENT: Final = FamilyTable(
    "The node component of KubeShare's controllers",
    lambda view: (view,),
    (),
    lambda _: (),
    (
        Family(
            "vgpu_kubeshare_node_ready",
            GAUGE,
            "1 if the files of the node and its reports are new.",
            lambda view: int(view.ready),
        ),
        Family(
            "vgpu_kubeshare_node_parts_total",
            COUNTER,
            "Parts of rounds, one round a second at least: address, gpus, holders and files.",
            lambda view: view.parts,
            ("part", "result"),
        ),
        Family(
            "vgpu_kubeshare_node_api_requests_total",
            COUNTER,
            "Requests to the API server; code 0 is no answer.",
            lambda view: view.api_requests,
            ("verb", "code"),
        ),
    ),
)

NODE_TABLES: Final = (NODE_COMPONENT,)
