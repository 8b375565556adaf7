"""gpu-manager's display of a node: how its cards lie, and which pods use them."""
