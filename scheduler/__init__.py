"""The scheduler: an HTTP extender of a stock kube-scheduler that places pods on shared GPUs."""

DISTRIBUTION = "vgpu"
