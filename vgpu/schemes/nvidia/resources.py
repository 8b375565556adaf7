"""The extended resources of NVIDIA's own device plugin: which they are is decided here alone.

Pure, but for the other names in force: the plugin may be built to advertise its GPUs under other
names, which only the operator knows.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

PREFIX: Final = "nvidia.com/"
"""Prefix of the resources of NVIDIA's own plugin, and of HAMi's."""

GPU: Final = "nvidia.com/gpu"
"""The resource that both plugins register."""

RENAMED: Final = ".shared"
"""What the plugin appends to a resource's name with ``renameByDefault``."""

SHARED: Final = GPU + RENAMED
"""Replicas of GPUs with ``renameByDefault``."""

INSTANCES: Final = "nvidia.com/mig-"
"""The prefix of resources for MIG profiles."""

_others: frozenset[str] = frozenset()


@contextmanager
def other_names(names: Iterable[str]) -> Iterator[None]:
    """These resources are NVIDIA's plugin's, too: inside of the ``with`` and for all threads."""
    global _others  # noqa: PLW0603  # of the process, as the registry is
    before, _others = _others, frozenset(names)
    try:
        yield
    finally:
        _others = before


def others() -> frozenset[str]:
    """The other names in force."""
    return _others


def is_only_nvidias(resource: str) -> bool:
    """Whether NVIDIA's own plugin, and no other, advertises a resource of this name."""
    return resource == SHARED or resource.startswith(INSTANCES) or resource in _others


def is_nvidia_resource(resource: str) -> bool:
    """Whether a resource has a name of NVIDIA's own plugin; ``nvidia.com/gpu`` may be HAMi's."""
    return resource == GPU or is_only_nvidias(resource)
