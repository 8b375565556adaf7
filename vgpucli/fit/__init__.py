"""`vgpu fit`: how many more pods fit on shared GPUs."""
