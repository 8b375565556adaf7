"""vgpu: truthful metrics, repair and allocation for GPUs that are shared in Kubernetes."""

__version__ = "0.1.0"
