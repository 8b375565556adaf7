"""`vgpu inspect`: who holds what on the cluster's GPUs."""
