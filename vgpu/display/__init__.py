"""gpu-manager's display of a node: how its GPUs lie, and which pods use them."""
