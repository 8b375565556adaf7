"""`vgpu bill`: what shared GPUs cost, by share, from days that are closed once."""
