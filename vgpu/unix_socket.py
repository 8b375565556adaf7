"""Unix sockets as files: whether a path can be one, and whether somebody serves it."""

import socket
from typing import Final

LONGEST_PATH: Final = 107
"""Bytes: sun_path without its NUL, unix(7)."""

_PATIENCE_SECONDS: Final = 1.0


class SocketError(Exception):
    """The socket cannot be served.

    Attributes:
        path: where it was to be.
        problem: what is wrong with that.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


def require_short(path: str) -> None:
    """Raises SocketError for a path that the kernel would not take."""
    if len(path.encode()) > LONGEST_PATH:
        raise SocketError(path, f"longer than the {LONGEST_PATH} bytes of a socket's path")


def is_served(path: str) -> bool:
    """Whether somebody listens on the socket. Raises OSError where that is unknown."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PATIENCE_SECONDS)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False  # left behind
        return True
