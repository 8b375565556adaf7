"""What every program of ours is made of: signals, flags, logs, probes, its own metrics."""
