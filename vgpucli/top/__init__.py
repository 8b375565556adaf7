"""`vgpu top`: the GPUs of nodes and the containers on them, live."""
