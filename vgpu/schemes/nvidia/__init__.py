"""NVIDIA's own device plugin: whole GPUs, time-slicing, MPS and MIG. It is observed only."""
