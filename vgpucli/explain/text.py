"""Shares, GPUs and times for people. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from vgpu.model.allocation import Device, Share
from vgpu.model.units import percentage, rounded_size

_UUID: Final = 12
"""Number of characters of a UUID that a person is shown."""


def gpu_text(device: Device) -> str:
    """A GPU by its index and model with its short UUID."""
    short = device.uuid[:_UUID]
    parts = [short, device.model] if device.index is None else [str(device.index)]
    parts += [] if device.index is None else [device.model, short]
    first, *inside = [part for part in parts if part] or ["without a name"]
    title = first if first.startswith("GPU-") else f"GPU {first}"
    return title + (f" ({', '.join(inside)})" if inside else "")


def share_text(share: Share, devices: Mapping[str, str]) -> str:
    """A share; ``devices`` are the GPUs of the node for people, under every name."""
    parts = [] if share.memory_bytes is None else [rounded_size(share.memory_bytes)]
    if share.cores_milli:
        parts.append(f"{percentage(share.cores_milli)} of the cores")
    device = devices.get(share.device)
    if device is None:
        device = f"GPU {share.device[:_UUID]}" if share.device else "an unknown GPU"
    return f"{' and '.join(parts) or 'a share'} of {device}"


def time_text(at: float) -> str:
    """Unix seconds as RFC 3339; the bare number if no calendar has such a time."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{at:.0f} s"
