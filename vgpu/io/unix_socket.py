"""Unix sockets as files: checks of the path's length and of a listening server."""

import socket
from typing import Final

LONGEST_PATH: Final = 107
"""Maximum length of a path, in bytes: sun_path without its NUL, unix(7)."""

_PATIENCE_SECONDS: Final = 1.0


class SocketError(Exception):
    """The socket cannot be served.

    Attributes:
        path: the path of the socket.
        problem: what is wrong with it.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


def require_short(path: str) -> None:
    """Raises SocketError for a path that the kernel would refuse."""
    if len(path.encode()) > LONGEST_PATH:
        raise SocketError(path, f"longer than the {LONGEST_PATH} bytes of a socket's path")


def is_served(path: str) -> bool:
    """Whether a server listens on the socket. Raises OSError if that is unknown."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PATIENCE_SECONDS)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False  # left behind
        return True
