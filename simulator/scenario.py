"""A node as a frozen value: its GPUs, its pods, and what each process does at each time.

Times are seconds since the story began, which may be before or after zero. What is true at a
time is computed by :mod:`simulator.state`. Load that drives a counter (power drives energy) is
described by waves with an exact integral, because a counter that is the exact integral of its gauge
can be checked: it never falls, and its rate is the gauge.
"""

import hashlib
import math
import uuid
from collections.abc import Callable, Iterator
from enum import StrEnum

import msgspec

from vgpu.model.allocation import Share
from vgpu.model.names import PodRef, Scheme
from vgpu.model.units import MIB


class Shape(StrEnum):
    """The shape of a wave between its low and its high; x counts periods."""

    SINE = "sine"  # low at x = 0, high at x = 1/2
    SAW = "saw"  # climbs from low to high, then falls at once
    BURST = "burst"  # high in the first half of a period, low in the second


def _fraction(x: float) -> float:
    return x - math.floor(x)


# Per shape: the unit wave (0-1), and its antiderivative.
_UNIT: dict[Shape, tuple[Callable[[float], float], Callable[[float], float]]] = {
    Shape.SINE: (
        lambda x: (1 - math.cos(math.tau * x)) / 2,
        lambda x: x / 2 - math.sin(math.tau * x) / (2 * math.tau),
    ),
    Shape.SAW: (_fraction, lambda x: (math.floor(x) + _fraction(x) ** 2) / 2),
    Shape.BURST: (
        lambda x: 1.0 if _fraction(x) < 0.5 else 0.0,
        lambda x: math.floor(x) / 2 + min(_fraction(x), 0.5),
    ),
}


class Waveform(msgspec.Struct, frozen=True, gc=False):
    """A periodic value between ``low`` and ``high``; ``period`` and ``phase`` in seconds."""

    low: float
    high: float
    period: float = 60.0
    phase: float = 0.0
    shape: Shape = Shape.SINE

    def value(self, t: float) -> float:
        """The value at ``t`` seconds."""
        if self.low == self.high:
            return self.low
        unit, _ = _UNIT[self.shape]
        return self.low + (self.high - self.low) * unit((t + self.phase) / self.period)

    def integral(self, since: float, until: float) -> float:
        """The exact integral over ``since`` … ``until`` seconds."""
        flat = self.low * (until - since)
        if self.low == self.high:
            return flat
        _, area = _UNIT[self.shape]
        periods = area((until + self.phase) / self.period) - area(
            (since + self.phase) / self.period
        )
        return flat + (self.high - self.low) * self.period * periods

    def last_active(self, t: float) -> float | None:
        """The latest moment up to ``t`` at which the value was above 0; None if it never is."""
        if self.high <= 0:
            return None
        if self.shape is not Shape.BURST or self.value(t) > 0:
            return t
        x = (t + self.phase) / self.period
        return (math.floor(x) + 0.5) * self.period - self.phase


def constant(value: float) -> Waveform:
    """A wave that does not move."""
    return Waveform(low=value, high=value)


HAMI_ROOT = "usr/local/vgpu/containers"
VOLCANO_ROOT = "usr/local/vgpu/vgpu/containers"
OLD_VOLCANO_ROOT = "tmp/vgpu/containers"
SHIM_ROOTS = (HAMI_ROOT, VOLCANO_ROOT, OLD_VOLCANO_ROOT)
"""Where HAMi, Volcano since v1.12 and Volcano before it keep the regions, below the root."""


def identity(name: str) -> str:
    """A UUID for ``name``, always the same."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def container_id(name: str) -> str:
    """A container id for ``name``, 64 hex digits, always the same."""
    return hashlib.sha256(name.encode()).hexdigest()


class End(StrEnum):
    """How a process ends: its exit handler ran, or it was killed and its slot stays as it was."""

    EXITED = "exited"
    KILLED = "killed"


class Process(msgspec.Struct, frozen=True, gc=False):
    """One process, on one GPU or (``gpu`` None) on none.

    Attributes:
        pid: on the host.
        container_pid: in its container.
        ``gpu``: the GPU's index; None without a GPU.
        context: bytes of the CUDA context.
        module: bytes of loaded code.
        data: bytes that it allocated.
        hidden: bytes that the driver counts and the shim does not, as NCCL's buffers.
        sm: utilisation, ratio 0-1.
        since: when it started.
        until: when it ended.
        end: how it ended.
    """

    pid: int
    container_pid: int = 1
    gpu: int | None = None
    context: int = 300 * MIB
    module: int = 12 * MIB
    data: Waveform = constant(0)
    hidden: int = 0
    sm: Waveform = constant(0)
    since: float = -math.inf
    until: float = math.inf
    end: End = End.EXITED

    def alive(self, t: float) -> bool:
        """Whether it runs at ``t``."""
        return self.since <= t < self.until

    def data_bytes(self, t: float) -> int:
        """Bytes allocated by ``t``, or by its end, in whole 2 MiB pages as the driver does."""
        return int(self.data.value(min(t, self.until)) / (2 * MIB)) * 2 * MIB

    def used_bytes(self, t: float) -> int:
        """Bytes that the driver counts for it."""
        return self.context + self.module + self.data_bytes(t) + self.hidden

    def sm_percent(self, t: float) -> int:
        """Its utilisation as the driver rounds it; 0 when it does not run."""
        return round(100 * self.sm.value(t)) if self.alive(t) else 0


class Shim(msgspec.Struct, frozen=True, gc=False):
    """The region of one container's preloaded library.

    Attributes:
        layout: the layout id of its region.
        root: the folder of regions, relative to the node's root.
        cache: the region's file name without ending.
        priority: 0 is high, 1 the default.
        preemptible: it is blocked whenever it does not run (a higher priority runs then).
        created: when the region was created.
    """

    layout: str
    root: str
    cache: str
    priority: int = 1
    preemptible: bool = False
    created: float = -3600.0


class SimulatedContainer(msgspec.Struct, frozen=True, gc=False):
    """One container, its shares and what runs in it; ``id`` is 64 hex digits.

    ``mps`` is whether its replicas of NVIDIA's own plugin are through MPS.
    """

    name: str
    id: str
    scheme: Scheme = Scheme.NONE
    shares: tuple[Share, ...] = ()
    processes: tuple[Process, ...] = ()
    shim: Shim | None = None
    cores_request_percent: int | None = None
    mps: bool = False


class SimulatedPod(msgspec.Struct, frozen=True, gc=False):
    """One pod. A ``deleted`` one has no object any more; only its regions are left.

    ``owner`` is its controller, ``<kind>/<name>``, "" if it has none; ``created`` is when it was
    made and scheduled.
    """

    ref: PodRef
    containers: tuple[SimulatedContainer, ...]
    qos: str = "burstable"
    phase: str = "Running"
    reason: str = ""
    message: str = ""
    deleted: bool = False
    owner: str = ""
    created: float = 0.0

    @property
    def admitted(self) -> bool:
        """Whether its devices were allocated to it."""
        return self.phase not in {"Pending", "Failed"}

    @property
    def running(self) -> bool:
        """Whether it has containers on the node."""
        return self.phase == "Running" and not self.deleted


class SimulatedGpu(msgspec.Struct, frozen=True, gc=False):
    """One physical GPU; ``baseline_bytes`` is what is in use when nothing runs."""

    uuid: str
    index: int
    name: str
    pci_bus_id: str
    memory_bytes: int
    reserved_bytes: int
    baseline_bytes: int
    idle_watts: float
    limit_watts: float
    sm_hertz: float
    memory_hertz: float


class Xid(msgspec.Struct, frozen=True, gc=False):
    """An error that a GPU reports once."""

    gpu: int
    xid: int
    at: float


class Damage(msgspec.Struct, frozen=True, gc=False):
    """The region of a container (by id) is cut down to ``size`` bytes for a while."""

    container_id: str
    since: float
    until: float
    size: int = 12


class Scenario(msgspec.Struct, frozen=True, gc=False):
    """A node: its GPUs, its pods, processes outside any container, and what goes wrong when."""

    node: str
    gpus: tuple[SimulatedGpu, ...]
    pods: tuple[SimulatedPod, ...]
    host_processes: tuple[Process, ...] = ()
    xids: tuple[Xid, ...] = ()
    damages: tuple[Damage, ...] = ()

    def containers(self) -> Iterator[tuple[SimulatedPod, SimulatedContainer]]:
        """Every container with its pod."""
        return ((pod, container) for pod in self.pods for container in pod.containers)

    def processes(self) -> Iterator[Process]:
        """Every process that the node has at any time."""
        yield from self.host_processes
        for _, container in self.containers():
            yield from container.processes
