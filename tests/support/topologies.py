"""Topologies that gpu-manager's own tests use, and the trees of them."""

from vgpu.model.topology import TopologyGpu, grow, parse_matrix

TOPO6 = """\
       GPU0  GPU1  GPU2  GPU3  GPU4  GPU5
GPU0    X    PIX   PHB   PHB   SOC   SOC
GPU1   PIX    X    PHB   PHB   SOC   SOC
GPU2   PHB   PHB    X    PIX   SOC   SOC
GPU3   PHB   PHB   PIX    X    SOC   SOC
GPU4   SOC   SOC   SOC   SOC    X    PIX
GPU5   SOC   SOC   SOC   SOC   PIX    X
"""

ONE = " GPU0\nGPU0   x"

WHOLE = {"cores": 100, "memory": 2**30}
"""The values of an idle GPU in the drawing."""


def tree_of(matrix, busy=None):
    """The tree of GPUs of 1 GiB; ``busy`` has pids and bytes used by index."""
    levels = parse_matrix(matrix)
    processes = busy or {}
    gpus = [
        TopologyGpu(at, at, memory_bytes=2**30, pids=pids, used_bytes=used)
        for at in range(len(levels))
        for pids, used in [processes.get(at, ((), 0))]
    ]
    return grow(gpus, lambda low, high: levels[low][high])
