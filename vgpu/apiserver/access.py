"""Access to an API server: its URL, connections and credentials."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import urllib3

from vgpu.apiserver.tls import with_own_connections

CONNECTIONS: Final = 8
"""Default number of connections that are kept open, one for each thread that makes requests. A
request beyond it opens a connection of its own, with its TLS handshake."""


class NoAccess(Exception):  # noqa: N818  # a state of the machine, not a failure of ours
    """No cluster is configured, or its access is unusable; the message has the reason."""


class Access(msgspec.Struct, frozen=True):
    """One API server, as one user.

    Attributes:
        server: its URL.
        pool: connections to it.
        credentials: returns the current headers that prove the user.
    """

    server: str
    pool: urllib3.PoolManager
    credentials: Callable[[], Mapping[str, str]] = dict

    @classmethod
    def anonymous(cls, server: str) -> "Access":
        """A server without authentication."""
        pool = with_own_connections(urllib3.PoolManager(maxsize=CONNECTIONS))
        return cls(server.rstrip("/"), pool)
