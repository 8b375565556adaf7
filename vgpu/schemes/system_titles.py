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
    "kai": "KAI Scheduler",
}
"""The sharing systems for people, by the names of their rows that differ."""


def system_title(*names: str) -> str:
    """Sharing systems for people."""
    titles = [SYSTEM_TITLES.get(name, name) for name in names]
    return " and ".join((", ".join(titles[:-1]), titles[-1]) if titles[1:] else titles)
