"""The names under which containers are bound: fresh and random for each answer to the kubelet."""

import re
from typing import Final

KIND: Final = "vgpu.dev/share"
"""The CDI kind: a container's device is called ``<kind>=<name>``."""

_NAME: Final = re.compile(r"[0-9a-f]{24}")


def is_name(text: str) -> bool:
    """Whether the text may be one of our names, and so a part of a file's name."""
    return _NAME.fullmatch(text) is not None


def checked(text: str) -> str:
    """The same text. Raises ValueError if it can be no name, so that it never becomes a path."""
    if not is_name(text):
        raise ValueError(f"no name of a binding: {text[:64]!r}")
    return text
