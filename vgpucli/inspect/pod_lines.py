"""Lines of ``vgpu inspect``'s table about pods: their names and states, and those in no GPU's list.

The pods of NVIDIA's own device plugin and of other GPU schedulers have parts of their own, since
the API server does not know their GPUs or shares. Pure.
"""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from vgpu.inventory.nvidia import NvidiaDevices
from vgpu.inventory.other_schedulers import OtherPod
from vgpu.kube.pod_state import STARTING, PodState
from vgpu.model.durations import age
from vgpu.model.names import PodRef, Sharing
from vgpu.model.units import count, rounded_size
from vgpu.program.terminal import BAD, BOLD, DIM, DOUBTFUL, PLAIN, Line
from vgpu.schemes.nvidia.node import AdvertisedDevices


def who(pod: PodRef, container: str) -> str:
    """The name of a container with its pod's."""
    name = f"{pod.namespace}/{pod.name}" if pod.name else f"pod {pod.uid}"
    return f"{name}/{container}" if container else name


def state_text(state: PodState, as_of: float) -> str:
    """The state of a pod that does not simply run; "" for one that does."""
    parts = []
    if state.deleting_since is not None:
        parts.append(f"Terminating for {age(as_of - state.deleting_since) or '0s'}")
    if state.waiting_reason:
        message = f": {state.waiting_message}" if state.waiting_message else ""
        restarts = f", {state.restarts} restarts" if state.restarts > 1 else ""
        parts.append(f"{state.waiting_reason}{restarts}{message}")
    elif state.phase not in ("Running", "Pending", ""):
        parts.append(f"pod {state.phase}")
    return "; ".join(parts)


def is_stuck(state: PodState) -> bool:
    """Whether the pod waits for more than its start."""
    return state.deleting_since is not None or state.waiting_reason not in STARTING


class _Way(msgspec.Struct, frozen=True):
    """A way of sharing in words.

    Attributes:
        text: the way, with its limit.
        unit: what a unit of the resource is.
        limit: the limit of a container; "" is the memory of its devices.
    """

    text: str
    unit: str
    limit: str = ""


_UNLIMITED: Final = "unlimited"

_WAYS: Final[Mapping[Sharing, _Way]] = {
    Sharing.EXCLUSIVE: _Way("whole GPUs", "GPU"),
    Sharing.TIME_SLICING: _Way("time-slicing, no limit", "replica", _UNLIMITED),
    Sharing.MPS: _Way("MPS, a limit of each process", "replica", "limit on the node"),
    Sharing.MIG: _Way("MIG", "instance"),
    Sharing.MIG_TIME_SLICING: _Way(
        "MIG with time-slicing, no limit inside an instance", "replica", _UNLIMITED
    ),
    Sharing.UNKNOWN: _Way("the node's labels do not show how they are shared", "unit", "unknown"),
}

_NVIDIA_NOTE: Final = (
    "The way of sharing is by the node's labels. The API server has neither the GPU of these"
    " containers nor the limits of MPS: vgpu top shows both on the node."
)


def nvidia_lines(
    shown: Sequence[NvidiaDevices],
    as_of: float,
    name: Callable[[PodRef, str], str],
    *,
    width: int,
    dash: str,
    times: str,
) -> Iterator[Line]:
    """The lines, at most ``width`` wide but for names; ``name`` pads the names of containers.

    ``dash`` stands for what is not known.
    """
    if not shown:
        return
    yield [("NVIDIA's device plugin", BOLD)]
    for of_node in shown:
        devices = of_node.devices
        way = _WAYS[devices.sharing]
        facts = filter(None, [_devices(devices, times)])
        node = of_node.node or "not scheduled"
        yield [(f"  {node}  ", BOLD), ("  ".join((devices.resource, *facts)), DIM)]
        if of_node.node:
            yield [(f"    {way.text}: {_held(of_node, way)}", PLAIN)]
        for holder in of_node.holders:
            limit = (_limit(devices, way, holder.number) if of_node.node else "") or dash
            since = "" if holder.since is None else age(as_of - holder.since)
            cells = f"{count(holder.number, way.unit):>12}  {limit:<17} {since:>5}"
            yield [(f"    {name(holder.pod, holder.container)} {cells}".rstrip(), PLAIN)]
            if text := state_text(holder.state, as_of):
                yield [(f"      {text}", BAD if is_stuck(holder.state) else DOUBTFUL)]
    for line in textwrap.wrap(_NVIDIA_NOTE, width, initial_indent="  ", subsequent_indent="  "):
        yield [(line, DIM)]
    yield []


def _devices(devices: AdvertisedDevices, times: str) -> str:
    """Number, model and memory of the devices, as far as labels have them."""
    number = f"{devices.devices} {times} " if devices.devices and devices.model else ""
    size = f"{rounded_size(devices.memory_bytes)} each" if devices.memory_bytes else ""
    return ", ".join(filter(None, (number + devices.model, size)))


def _held(of_node: NvidiaDevices, way: _Way) -> str:
    devices = of_node.devices
    each = ""
    if way.unit == "replica" and devices.replicas:
        of = "instance" if devices.sharing is Sharing.MIG_TIME_SLICING else "GPU"
        each = f", {devices.replicas} of each {of}"
    if not devices.capacity and of_node.held:
        return f"{count(of_node.held, way.unit)} allocated; what the node has is not known"
    held = f"{of_node.held} of {count(devices.allocatable, way.unit)} allocated{each}"
    if devices.allocatable >= devices.capacity:
        return held
    part = "of which none is" if not devices.allocatable else f"{devices.allocatable} of them"
    return f"{held}; the node has {devices.capacity}, {part} allocatable"


def _limit(devices: AdvertisedDevices, way: _Way, number: int) -> str:
    if devices.unit_bytes:
        return rounded_size(devices.unit_bytes * number)
    if way.limit:
        return way.limit
    return rounded_size(devices.memory_bytes * number) if devices.memory_bytes else ""


_OTHERS_NOTE: Final = (
    "vgpu does not read the shares of these pods: their GPUs are in no sum, and no rule of vgpu"
    " reconcile acts on the pods."
)


def other_lines(others: Sequence[OtherPod], as_of: float, *, width: int) -> Iterator[Line]:
    """The lines, at most ``width`` wide but for names."""
    if not others:
        return
    yield [("Other GPU schedulers", BOLD)]
    for other in others:
        recognised = other.recognised
        since = "" if other.since is None else age(as_of - other.since)
        by = f"{recognised.scheduler}, by {recognised.key}"
        facts = "  ".join(filter(None, (other.node or "not scheduled", by, since)))
        yield [(f"  {who(other.pod, '')}  ", PLAIN), (facts, DIM)]
        if text := state_text(other.state, as_of):
            yield [(f"    {text}", BAD if is_stuck(other.state) else DOUBTFUL)]
    for line in textwrap.wrap(_OTHERS_NOTE, width, initial_indent="  ", subsequent_indent="  "):
        yield [(line, DIM)]
    yield []
