"""The GPU kit: one prepared command that checks vgpu on a real GPU and its driver.

``make gpu-kit`` packs it (:mod:`deploy.release.gpu_kit`); ``make test-gpu`` runs it from a
checkout. The checks are a table in :mod:`deploy.gpu_kit.checks`. The kit is no part of the wheel.
"""
