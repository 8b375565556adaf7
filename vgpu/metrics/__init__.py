"""Metric families as data: the table type and the renderer."""
