"""The per-node Prometheus exporter: sampler -> snapshot -> families -> bytes."""

DISTRIBUTION = "vgpu"
