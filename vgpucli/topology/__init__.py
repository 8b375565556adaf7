"""`vgpu topology`, and gpu-manager's display service: how GPUs lie, and which pods use them."""
