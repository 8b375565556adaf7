"""Tencent's gpu-manager (scheme `gaia`)."""
