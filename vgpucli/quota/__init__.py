"""`vgpu quota`: quotas of shared GPUs in the form of Kubernetes itself."""
