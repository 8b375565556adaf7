"""How an API server is reached, and as whom: by a kubeconfig, or as the pod that this runs in.

A kubeconfig can ask for proxies, other programs and more, so the official client reads it. What a
pod is given are two files and two variables, read here: to import the client for that would take
18 MiB on every node.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import urllib3

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where the kubelet puts a pod's token, and the certificate of who has signed the server's."""

TOKEN_SECONDS: Final = 60.0
"""So long a token is used before its file is read again: the kubelet renews it while it is good."""

_CONNECTIONS: Final = 8
"""Connections that are kept open for the next request: as many as a program has threads for it."""


class NoAccess(Exception):  # noqa: N818  # a state of the machine, not a failure of ours
    """No cluster is configured, or what is configured cannot be used; the message says why."""


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
        return cls(server.rstrip("/"), urllib3.PoolManager(maxsize=_CONNECTIONS))


def find(kubeconfig: str = "", context: str = "") -> Access:
    """As :meth:`vgpu.cluster.connection.Connection.connect` says. Raises NoAccess."""
    path = kubeconfig or os.environ.get("KUBECONFIG", "")
    home = Path.home() / ".kube" / "config"
    if not path and (context or home.exists()):
        path = str(home)
    if path:
        from vgpu.cluster.kubeconfig import access  # noqa: PLC0415  # 18 MiB, see above

        return access(path, context)
    try:
        return as_pod(os.environ, ACCOUNT)
    except (KeyError, OSError, ValueError) as error:
        raise NoAccess(
            "no cluster is configured: pass --kubeconfig FILE or set KUBECONFIG"
            f" ({home} does not exist, and this is not a pod: {error})"
        ) from error


def as_pod(environ: Mapping[str, str], account: str) -> Access:
    """The cluster of a pod, as its ServiceAccount; reached directly, whatever proxy there is.

    Raises KeyError, OSError, ValueError for what is missing or no token.
    """
    host, port = (environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
    authority = Path(account, "ca.crt")
    if not authority.stat().st_size:
        raise ValueError(f"{authority} is empty")
    token = _Token(Path(account, "token"))
    pool = urllib3.PoolManager(
        maxsize=_CONNECTIONS, cert_reqs="CERT_REQUIRED", ca_certs=str(authority)
    )
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Access(server, pool, token.headers)


class _Token:
    """A token that is renewed in its file. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, ValueError."""
        self._path = path
        self._read = self._now()

    def headers(self) -> Mapping[str, str]:
        """With the token; the one of before where there is none at the moment."""
        if time.monotonic() - self._read[1] > TOKEN_SECONDS:
            try:
                self._read = self._now()
            except (OSError, ValueError):
                self._read = self._read[0], time.monotonic()  # the server will say if it is too old
        return {"authorization": f"Bearer {self._read[0]}"}

    def _now(self) -> tuple[str, float]:
        """Raises OSError, ValueError."""
        token = self._path.read_text("ascii", "replace").strip()
        if not token or not (token.isascii() and token.isprintable()):
            raise ValueError(f"{self._path} has no token")
        return token, time.monotonic()
