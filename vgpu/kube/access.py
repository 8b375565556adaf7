"""How an API server is reached, and as whom."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import urllib3

CONNECTIONS: Final = 8
"""Connections that are kept open for the next request: as many as a program has threads for it."""


class NoAccess(Exception):  # noqa: N818  # a state of the machine, not a failure of ours
    """No cluster is configured, or it cannot be used; the message has the reason."""


class Access(msgspec.Struct, frozen=True):
    """One API server, as one user.

    Attributes:
        server: its URL.
        pool: connections to it.
        credentials: the headers that prove who asks, as of now.
    """

    server: str
    pool: urllib3.PoolManager
    credentials: Callable[[], Mapping[str, str]] = dict

    @classmethod
    def anonymous(cls, server: str) -> "Access":
        """A server that asks nobody for a name."""
        return cls(server.rstrip("/"), urllib3.PoolManager(maxsize=CONNECTIONS))
