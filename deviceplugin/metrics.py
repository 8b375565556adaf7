"""The plugin's metric families as tables, and the numbers behind them.

Counters are in :class:`PluginMetrics`, which every thread may use; all other numbers are collected
from their owners when a page is made.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from deviceplugin.reasons import BindRefusal
from vgpu.metrics.family import Family, FamilyTable, Labelled, MetricType
from vgpu.metrics.process_families import BUILD_INFO, NODE_TOKEN, PROCESS, WEB

GAUGE: Final = MetricType.GAUGE
COUNTER: Final = MetricType.COUNTER


class Wait(StrEnum):
    """The steps that the kubelet or a container waits for."""

    ALLOCATE = "allocate"  # the answer to Allocate
    BIND = "bind"  # from the answer until all files of the container are written
    PRESTART = "prestart"  # the answer to PreStartContainer


class Offer(msgspec.Struct, frozen=True):
    """One resource as the plugin offers it to the kubelet.

    Attributes:
        resource: its name.
        registered: whether the kubelet takes it from us now.
        healthy, unhealthy: numbers of device IDs.
        list_bytes: length of the ListAndWatch message at its longest; 0 if not known.
        unit_bytes: size of a unit of memory that would fit if the list is too long; else 0.
    """

    resource: str
    registered: bool
    healthy: int = 0
    unhealthy: int = 0
    list_bytes: int = 0
    unit_bytes: int = 0


class GpuStatus(msgspec.Struct, frozen=True):
    """One GPU, and the reasons why it is unhealthy; it is healthy without a reason."""

    uuid: str
    index: str
    reasons: tuple[str, ...] = ()


class PluginView(msgspec.Struct, frozen=True):
    """All values of a page."""

    scheme: str
    mode: str
    node: str
    ready: bool
    recovered: bool
    offers: tuple[Offer, ...]
    gpus: tuple[GpuStatus, ...]
    registrations: Mapping[tuple[str, str], int]
    allocations: Mapping[str, int]
    refusals: Mapping[tuple[str, BindRefusal], int]
    waits: Mapping[Wait, tuple[int, float]]
    admitted_pods: Mapping[str, int]
    expecting: int
    unbound: Mapping[BindRefusal, int]
    conflicts: int
    remarks: int
    checkpoint_problem: str
    checkpoint_failures: int
    health_events: Mapping[tuple[str, str], int]
    write_counts: Mapping[tuple[str, str], int]
    requests: Mapping[tuple[str, str], int]
    build: Mapping[str, str]
    own: Mapping[str, float]


def _one_row(title: str, *families: Family, note: str = "") -> FamilyTable:
    return FamilyTable(title, lambda view: (view,), (), lambda _: (), families, note)


def _waited(position: int) -> Callable[[PluginView], Labelled]:
    return lambda view: {(wait.value,): counts[position] for wait, counts in view.waits.items()}


OFFERS: Final = FamilyTable(
    "Resources",
    lambda view: view.offers,
    ("resource",),
    lambda offer: (offer.resource,),
    (
        Family(
            "vgpu_plugin_resource_registered",
            GAUGE,
            "1 if the kubelet takes the resource from this plugin now.",
            lambda offer: int(offer.registered),
        ),
        Family(
            "vgpu_plugin_resource_devices",
            GAUGE,
            "Device IDs that are advertised to the kubelet.",
            lambda offer: {("healthy",): offer.healthy, ("unhealthy",): offer.unhealthy},
            ("health",),
        ),
        Family(
            "vgpu_plugin_resource_list_bytes",
            GAUGE,
            "Maximum length of the list of device IDs; the kubelet accepts 4 MiB.",
            lambda offer: offer.list_bytes or None,
            unit="bytes",
        ),
        Family(
            "vgpu_plugin_resource_smallest_unit_bytes",
            GAUGE,
            "The smallest unit of memory with which the list of device IDs would fit; only where"
            " the list is too long, so that the resource is not registered.",
            lambda offer: offer.unit_bytes or None,
            unit="bytes",
        ),
    ),
)

GPUS: Final = FamilyTable(
    "GPUs",
    lambda view: view.gpus,
    ("uuid", "gpu"),
    lambda gpu: (gpu.uuid, gpu.index),
    (
        Family(
            "vgpu_plugin_device_healthy",
            GAUGE,
            "1 if new shares of the GPU may be allocated.",
            lambda gpu: int(not gpu.reasons),
        ),
        Family(
            "vgpu_plugin_device_unhealthy_info",
            GAUGE,
            "Always 1; why the GPU is unhealthy, one for each reason.",
            lambda gpu: {(reason,): 1 for reason in gpu.reasons},
            ("reason",),
        ),
    ),
)

SERVICE: Final = _one_row(
    "Answers to the kubelet",
    Family(
        "vgpu_plugin_registrations_total",
        COUNTER,
        "Registrations with the kubelet, by resource and result.",
        lambda view: view.registrations,
        ("resource", "result"),
    ),
    Family(
        "vgpu_plugin_allocations_total",
        COUNTER,
        "Answers to Allocate, by resource.",
        lambda view: {(resource,): count for resource, count in view.allocations.items()},
        ("resource",),
    ),
    Family(
        "vgpu_plugin_refusals_total",
        COUNTER,
        "Refusals, by step (allocate, bind, prestart) and reason.",
        lambda view: {(step, why.value): count for (step, why), count in view.refusals.items()},
        ("step", "reason"),
    ),
    Family(
        "vgpu_plugin_waits_total",
        COUNTER,
        "How often the kubelet or a container had to wait: for the answer to Allocate, from there"
        " to its binding, for the answer to PreStartContainer.",
        _waited(0),
        ("step",),
    ),
    Family(
        "vgpu_plugin_wait_seconds_total",
        COUNTER,
        "Total time of these waits.",
        _waited(1),
        ("step",),
        unit="seconds",
    ),
)

STATE: Final = _one_row(
    "Allocations",
    Family(
        "vgpu_plugin_tenants",
        GAUGE,
        "Pods that hold devices here: bound by this plugin, adopted from another one (foreign), or"
        " holding more than the devices have (unbooked).",
        lambda view: {(kind,): count for kind, count in view.admitted_pods.items()},
        ("kind",),
    ),
    Family(
        "vgpu_plugin_expected_bindings",
        GAUGE,
        "Answers to Allocate that are not in the kubelet's checkpoint yet.",
        lambda view: view.expecting,
    ),
    Family(
        "vgpu_plugin_unbound_containers",
        GAUGE,
        "Containers that have an answer and are not bound, by reason.",
        lambda view: {(why.value,): count for why, count in view.unbound.items()},
        ("reason",),
    ),
    Family(
        "vgpu_plugin_conflicts",
        GAUGE,
        "Current contradictions about allocations: containers hold more than a GPU has, a GPU is"
        " lost, a container uses a GPU that was not allocated to it, or trusted sources differed"
        " at start about pods that still hold something; the log names each.",
        lambda view: view.conflicts,
    ),
    Family(
        "vgpu_plugin_remarks",
        GAUGE,
        "Contradictions at start, about pods that still exist, that only regions, limit files or"
        " annotations report, which tenants can write; neither the driver nor the kubelet confirms"
        " them. They are no errors; the log names each.",
        lambda view: view.remarks,
    ),
    Family(
        "vgpu_plugin_checkpoint_problem_info",
        GAUGE,
        "Always 1; the problem of the plugin's own checkpoint at start.",
        lambda view: {(view.checkpoint_problem,): 1} if view.checkpoint_problem else {},
        ("problem",),
    ),
    Family(
        "vgpu_plugin_checkpoint_write_failures_total",
        COUNTER,
        "Failed attempts to write the plugin's own checkpoint; nothing is bound meanwhile.",
        lambda view: view.checkpoint_failures,
    ),
)

SELF: Final = _one_row(
    "The plugin itself",
    Family(
        "vgpu_plugin_info",
        GAUGE,
        "Always 1; the scheme that is served, how shares are injected (cdi, or files without"
        " CDI), and the node's name (--node-name).",
        lambda view: {(view.scheme, view.mode, view.node): 1},
        ("scheme", "mode", "node"),
    ),
    Family(
        "vgpu_plugin_ready",
        GAUGE,
        "1 if allocations are recovered and all possible resources are registered.",
        lambda view: int(view.ready),
    ),
    Family(
        "vgpu_plugin_recovered",
        GAUGE,
        "1 if allocations are recovered: the plugin knows which pod holds what.",
        lambda view: int(view.recovered),
    ),
    Family(
        "vgpu_plugin_health_events_total",
        COUNTER,
        "Health events against a GPU, by GPU and reason; the GPU is empty where the driver does"
        " not name it.",
        lambda view: view.health_events,
        ("uuid", "reason"),
    ),
    Family(
        "vgpu_plugin_told_total",
        COUNTER,
        "Writes to the API server, by object (label subject) and result.",
        lambda view: view.write_counts,
        ("subject", "result"),
    ),
    Family(
        "vgpu_plugin_api_requests_total",
        COUNTER,
        "Requests to the API server; code 0 means that no answer came.",
        lambda view: view.requests,
        ("verb", "code"),
    ),
    BUILD_INFO,
)

TABLES: Final = (SELF, OFFERS, GPUS, SERVICE, STATE, WEB, NODE_TOKEN, PROCESS)


class PluginMetrics:
    """The plugin's counters. Any thread may use them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allocations: Counter[str] = Counter()
        self._refusals: Counter[tuple[str, BindRefusal]] = Counter()
        self._waits: dict[Wait, tuple[int, float]] = dict.fromkeys(Wait, (0, 0.0))
        self._conflicts = self._remarks = 0
        self._checkpoint_problem = ""
        self._checkpoint_failures = 0

    def allocated(self, resource: str) -> None:
        """Allocate was answered."""
        with self._lock:
            self._allocations[resource] += 1

    def refused(self, step: str, why: BindRefusal) -> None:
        """An answer was refused at this step."""
        with self._lock:
            self._refusals[step, why] += 1

    def waited(self, wait: Wait, seconds: float) -> None:
        """The kubelet or a container has waited for ``seconds``."""
        with self._lock:
            count, total = self._waits[wait]
            self._waits[wait] = count + 1, total + seconds

    def conflicts(self, count: int, remarks: int) -> None:
        """Set the current numbers of contradictions and of remarks."""
        with self._lock:
            self._conflicts, self._remarks = count, remarks

    def checkpoint_read(self, problem: str) -> None:
        """What was wrong with our own checkpoint when the plugin started; "" if nothing."""
        with self._lock:
            self._checkpoint_problem = problem

    def checkpoint_failed(self) -> None:
        """Our own checkpoint could not be written."""
        with self._lock:
            self._checkpoint_failures += 1

    def counted(self) -> Mapping[str, Any]:
        """The fields of a :class:`PluginView` that are counted here."""
        with self._lock:
            return {
                "allocations": self._allocations.copy(),
                "refusals": self._refusals.copy(),
                "waits": self._waits.copy(),
                "conflicts": self._conflicts,
                "remarks": self._remarks,
                "checkpoint_problem": self._checkpoint_problem,
                "checkpoint_failures": self._checkpoint_failures,
            }
