"""Metric families as data: the table type, its lint, the renderer."""
