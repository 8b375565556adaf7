"""The feedback of HAMi's monitor, for nodes without that monitor: `vgpu feedback`.

HAMi-core, the library in a container, holds kernel launches back while ``recent_kernel`` of its
region is below 0, and limits cores while ``utilization_switch`` is 1. A program on the node writes
both words. :mod:`vgpucli.feedback.decision` decides, :mod:`vgpucli.feedback.region_words` reads and
writes.
"""
