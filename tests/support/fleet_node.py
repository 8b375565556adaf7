"""Nodes of any size for benchmarks and dashboards: HAMi containers of two processes each."""

from vgpu.model import PodRef, Scheme, Share
from vgpu.simulator.scenario import (
    HAMI_ROOT,
    Process,
    Scenario,
    Shim,
    SimulatedContainer,
    SimulatedGpu,
    SimulatedPod,
    container_id,
    identity,
)
from vgpu.simulator.waveform import Waveform
from vgpu.units import MIB, MILLI_PER_PERCENT, WHOLE_DEVICE_MILLI

PROCESSES = 2
"""Processes of each container."""

_FIRST_PID = 100_000
_FILL = 0.9  # of a GPU's free memory is promised to containers


def fleet_node(cards: int = 8, containers: int = 80, index: int = 0) -> Scenario:
    """A node of equal ``cards`` that ``containers`` share evenly; ``index`` distinguishes nodes.

    Both processes of a container are on its one GPU. Nothing is wrong with any of them.
    """
    node = f"gpu-node-{index}"
    fleet = tuple(_card(node, number) for number in range(cards))
    per_card = -(-containers // cards)
    return Scenario(
        node=node,
        cards=fleet,
        pods=tuple(
            _pod(node, number, fleet[number % cards], per_card) for number in range(containers)
        ),
    )


def _card(node: str, number: int) -> SimulatedGpu:
    return SimulatedGpu(
        uuid=f"GPU-{identity(f'{node}/card/{number}')}",
        index=number,
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"00000000:{0x19 + 0x11 * number:02X}:00.0",
        memory_bytes=81559 * MIB,
        reserved_bytes=552 * MIB,
        baseline_bytes=16 * MIB,
        idle_watts=70.0,
        limit_watts=700.0,
        sm_hertz=1.98e9,
        memory_hertz=2.619e9,
    )


def _pod(node: str, number: int, card: SimulatedGpu, per_card: int) -> SimulatedPod:
    name = f"train-{node}-{number:03d}"
    free = card.memory_bytes - card.reserved_bytes - card.baseline_bytes
    limit = int(_FILL * free / per_card) // MIB * MIB
    share = Share(
        device=card.uuid,
        memory_bytes=limit,
        cores_milli=max(WHOLE_DEVICE_MILLI // per_card, MILLI_PER_PERCENT),
    )
    container = SimulatedContainer(
        name="main",
        id=container_id(name),
        scheme=Scheme.VOLCANO,
        shares=(share,),
        shim=Shim(layout="v1.2", root=HAMI_ROOT, cache=identity(f"region of {name}")),
        processes=tuple(
            _process(number, which, card, limit, per_card) for which in range(PROCESSES)
        ),
    )
    ref = PodRef(uid=identity(name), namespace=f"team-{number % 10}", name=name)
    return SimulatedPod(ref=ref, containers=(container,))


def _process(number: int, which: int, card: SimulatedGpu, limit: int, per_card: int) -> Process:
    context = limit // 16
    data = limit / PROCESSES - context
    high = 1 / (PROCESSES * per_card)
    return Process(
        pid=_FIRST_PID + PROCESSES * number + which,
        container_pid=1 + 10 * which,
        card=card.index,
        context=context,
        module=0,
        data=Waveform(low=0.3 * data, high=0.9 * data, period=60 + number % 50, phase=7 * which),
        sm=Waveform(low=0, high=high, period=30 + number % 40, phase=11 * which),
    )
