"""`vgpu demo`: all programs on a simulated cluster."""
