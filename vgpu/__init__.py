"""vgpu: truthful metrics, repair and allocation for GPUs that are shared in Kubernetes."""

DISTRIBUTION = "vgpu"
__version__ = "0.1.0"
