"""The placement of requests: each scheduler's arithmetic as pure functions on plain frozen values.

The device plugin uses :mod:`vgpu.placement.gaia`. The others are not used by any command
yet: they stay for the scheduler extender that is to come, which places for all schemes. Their tests
compare them with the original schedulers.
"""
