"""The names of sharing systems for people. Pure."""

from collections.abc import Mapping
from typing import Final

SYSTEM_TITLES: Final[Mapping[str, str]] = {
    "hami": "HAMi",
    "volcano": "Volcano",
    "gaia": "gpu-manager",
    "kubeshare": "KubeShare",
    "nvidia": "NVIDIA's device plugin",
    "dra": "a DRA driver",
}
"""The sharing systems for people, by the names of their rows that differ."""


def system_title(*names: str) -> str:
    """Sharing systems for people."""
    return " and ".join(SYSTEM_TITLES.get(name, name) for name in names)
