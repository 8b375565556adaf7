"""The columns of `vgpu top` that can be hidden."""

OPTIONAL = ("acct", "scheme", "sm")
"""Columns that can be hidden; on narrow terminals they go in this order."""
