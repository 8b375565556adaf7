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


def fleet_node(gpus: int = 8, containers: int = 80, index: int = 0) -> Scenario:
    """A node of equal ``gpus`` that ``containers`` share evenly; ``index`` distinguishes nodes.

    Both processes of a container are on its one GPU. Nothing is wrong with any of them.
    """
    node = f"gpu-node-{index}"
    fleet = tuple(_gpu(node, number) for number in range(gpus))
    per_gpu = -(-containers // gpus)
    return Scenario(
        node=node,
        gpus=fleet,
        pods=tuple(
            _pod(node, number, fleet[number % gpus], per_gpu) for number in range(containers)
        ),
    )


def _gpu(node: str, number: int) -> SimulatedGpu:
    return SimulatedGpu(
        uuid=f"GPU-{identity(f'{node}/gpu/{number}')}",
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


def _pod(node: str, number: int, gpu: SimulatedGpu, per_gpu: int) -> SimulatedPod:
    name = f"train-{node}-{number:03d}"
    free = gpu.memory_bytes - gpu.reserved_bytes - gpu.baseline_bytes
    limit = int(_FILL * free / per_gpu) // MIB * MIB
    share = Share(
        device=gpu.uuid,
        memory_bytes=limit,
        cores_milli=max(WHOLE_DEVICE_MILLI // per_gpu, MILLI_PER_PERCENT),
    )
    container = SimulatedContainer(
        name="main",
        id=container_id(name),
        scheme=Scheme.VOLCANO,
        shares=(share,),
        shim=Shim(layout="v1.2", root=HAMI_ROOT, cache=identity(f"region of {name}")),
        processes=tuple(_process(number, which, gpu, limit, per_gpu) for which in range(PROCESSES)),
    )
    ref = PodRef(uid=identity(name), namespace=f"team-{number % 10}", name=name)
    return SimulatedPod(ref=ref, containers=(container,))


def _process(number: int, which: int, gpu: SimulatedGpu, limit: int, per_gpu: int) -> Process:
    context = limit // 16
    data = limit / PROCESSES - context
    high = 1 / (PROCESSES * per_gpu)
    return Process(
        pid=_FIRST_PID + PROCESSES * number + which,
        container_pid=1 + 10 * which,
        gpu=gpu.index,
        context=context,
        module=0,
        data=Waveform(low=0.3 * data, high=0.9 * data, period=60 + number % 50, phase=7 * which),
        sm=Waveform(low=0, high=high, period=30 + number % 40, phase=11 * which),
    )
