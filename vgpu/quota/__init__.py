"""Quotas of shared GPUs by namespace: what is declared, what pods use, and whether one more fits.

:mod:`vgpu.quota.declarations` reads the limits where they are declared, :mod:`vgpu.quota.limits`
resolves them once for a namespace with their conflicts, :mod:`vgpu.quota.usage` counts pods, and
:mod:`vgpu.quota.check` compares. All of it is pure, and all amounts are integers.
"""
