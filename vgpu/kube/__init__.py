"""Kubernetes' objects: kinds, their decoding, what is kept of them. No I/O."""
