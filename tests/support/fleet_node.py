"""Nodes of any size for benchmarks and dashboards: HAMi containers of a few processes each."""

import msgspec

from simulator.scenario import (
    HAMI_ROOT,
    Process,
    Scenario,
    Shim,
    SimulatedContainer,
    SimulatedGpu,
    SimulatedPod,
    Waveform,
    container_id,
    identity,
)
from vgpu.model.allocation import Share
from vgpu.model.names import PodRef, Scheme
from vgpu.model.units import MIB, MILLI_PER_PERCENT, WHOLE_DEVICE_MILLI
from vgpu.schemes.nvidia.grant import NVIDIA

PROCESSES = 2
"""Number of processes of each container, unless a node is made with another number."""

_FIRST_PID = 100_000
_FILL = 0.9  # of a GPU's free memory is promised to containers


class Fleet(msgspec.Struct, frozen=True):
    """How the nodes of a fleet are filled.

    Attributes:
        processes: of each container, on its GPUs in turn.
        gpus: of each container, beginning with its own.
        first: the number of the oldest pod; with another number, the node has other pods.
    """

    processes: int = PROCESSES
    gpus: int = 1
    first: int = 0


def fleet_node(
    gpus: int = 8,
    containers: int = 80,
    index: int = 0,
    fleet: Fleet = Fleet(),  # noqa: B008 - frozen
) -> Scenario:
    """A node of equal ``gpus`` that ``containers`` share evenly; ``index`` distinguishes nodes.

    Nothing is wrong with any of them.
    """
    node = f"gpu-node-{index}"
    node_gpus = tuple(_gpu(node, number) for number in range(gpus))
    per_gpu = -(-containers * fleet.gpus // gpus)
    return Scenario(
        node=node,
        gpus=node_gpus,
        pods=tuple(
            _pod(node, number, _in_turn(node_gpus, number, fleet.gpus), per_gpu, fleet)
            for number in range(fleet.first, fleet.first + containers)
        ),
    )


def of_nvidias_plugin(node: Scenario, *, mps: bool = False) -> Scenario:
    """The same node, with a replica of NVIDIA's own plugin in place of each share.

    ``mps`` is whether the plugin shares by MPS, and not by time-slicing.
    """

    def shared(container: SimulatedContainer) -> SimulatedContainer:
        shares = tuple(Share(share.device) for share in container.shares)
        return msgspec.structs.replace(container, scheme=NVIDIA, shares=shares, shim=None, mps=mps)

    pods = tuple(
        msgspec.structs.replace(pod, containers=tuple(map(shared, pod.containers)))
        for pod in node.pods
    )
    return msgspec.structs.replace(node, pods=pods)


def _in_turn(gpus: tuple[SimulatedGpu, ...], first: int, count: int) -> tuple[SimulatedGpu, ...]:
    return tuple(gpus[(first + position) % len(gpus)] for position in range(count))


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


def _pod(
    node: str, number: int, gpus: tuple[SimulatedGpu, ...], per_gpu: int, fleet: Fleet
) -> SimulatedPod:
    """A pod of one container with shares of ``gpus``, each of which has ``per_gpu`` shares."""
    name = f"train-{node}-{number:03d}"
    gpu = gpus[0]
    free = gpu.memory_bytes - gpu.reserved_bytes - gpu.baseline_bytes
    limit = int(_FILL * free / per_gpu) // MIB * MIB
    cores = max(WHOLE_DEVICE_MILLI // per_gpu, MILLI_PER_PERCENT)
    shares = tuple(Share(gpu.uuid, memory_bytes=limit, cores_milli=cores) for gpu in gpus)
    container = SimulatedContainer(
        name="main",
        id=container_id(name),
        scheme=Scheme.VOLCANO,
        shares=shares,
        shim=Shim(layout="v1.2", root=HAMI_ROOT, cache=identity(f"region of {name}")),
        processes=tuple(
            _process(
                _FIRST_PID + fleet.processes * number + which,
                which,
                gpus[which % len(gpus)],
                limit // fleet.processes,
                1 / (fleet.processes * per_gpu),
            )
            for which in range(fleet.processes)
        ),
    )
    ref = PodRef(uid=identity(name), namespace=f"team-{number % 10}", name=name)
    return SimulatedPod(ref=ref, containers=(container,))


def _process(pid: int, which: int, gpu: SimulatedGpu, memory: int, high: float) -> Process:
    """The ``which``-th of its container's processes, which uses up to ``memory`` bytes."""
    context = memory // 8
    data = memory - context
    return Process(
        pid=pid,
        container_pid=1 + 10 * which,
        gpu=gpu.index,
        context=context,
        module=0,
        data=Waveform(low=0.3 * data, high=0.9 * data, period=60 + pid % 50, phase=7 * which),
        sm=Waveform(low=0, high=high, period=30 + pid % 40, phase=11 * which),
    )
