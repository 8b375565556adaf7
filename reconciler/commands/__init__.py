"""The commands of `vgpu reconcile`, one a file."""
