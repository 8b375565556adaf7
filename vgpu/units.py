"""Quantities as the books keep them: bytes and percents as integers, never floats."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

WHOLE_DEVICE_PERCENT = 100
"""All cores of one device."""

GAIA_MEMORY_BLOCK = 256 * MIB
"""Bytes of one unit of tencent.com/vcuda-memory."""
