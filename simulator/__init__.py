"""The embedded simulated node: GPUs, containers, real-format files, faults."""

DISTRIBUTION = "vgpu"
