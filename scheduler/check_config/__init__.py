"""`vgpu scheduler check-config`: the traps in a KubeSchedulerConfiguration."""
