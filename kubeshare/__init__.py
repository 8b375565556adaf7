"""KubeShare's controllers: they place SharePods, hold GPUs for them, and create their pods."""

DISTRIBUTION = "vgpu"
