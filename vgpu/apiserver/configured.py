"""The API server to use: that of a kubeconfig, or of the pod that this runs in.

A kubeconfig can ask for proxies, other programs and more, so the official client reads it; it is
imported only then. A pod has two files and two variables, which are read here: the official client
would take 18 MiB on every node.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import urllib3

from vgpu.apiserver.access import CONNECTIONS, Access, NoAccess
from vgpu.apiserver.tls import with_own_connections

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The folder of a pod's token, and of the certificate authority of the server."""

TOKEN_SECONDS: Final = 60.0
"""Maximum time that a token is used before its file is read again, in seconds: the kubelet renews
it before it expires."""


def as_pod(environ: Mapping[str, str], account: str, connections: int = CONNECTIONS) -> Access:
    """The cluster of a pod, as its ServiceAccount, without any proxy.

    ``connections`` are kept open.

    Raises KeyError, OSError, ValueError for a missing part or an invalid token.
    """
    host, port = (environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
    authority = Path(account, "ca.crt")
    if not authority.stat().st_size:
        raise ValueError(f"{authority} is empty")
    token = _Token(Path(account, "token"))
    pool = urllib3.PoolManager(
        maxsize=connections,
        cert_reqs="CERT_REQUIRED",
        ca_certs=str(authority),
    )
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Access(server, with_own_connections(pool), token.headers)


class _Token:
    """A token that is renewed in its file. Any thread may use it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, ValueError."""
        self._path = path
        self._read = self._now()

    def headers(self) -> Mapping[str, str]:
        """The header with the token; the previous token if the file has none now."""
        if time.monotonic() - self._read[1] > TOKEN_SECONDS:
            try:
                self._read = self._now()
            except (OSError, ValueError):
                self._read = (
                    self._read[0],
                    time.monotonic(),
                )  # the server refuses it if it is too old
        return {"authorization": f"Bearer {self._read[0]}"}

    def _now(self) -> tuple[str, float]:
        """Raises OSError, ValueError."""
        token = self._path.read_text("ascii", "replace").strip()
        if not token or not (token.isascii() and token.isprintable()):
            raise ValueError(f"{self._path} has no token")
        return token, time.monotonic()


def find(kubeconfig: str = "", context: str = "", connections: int = CONNECTIONS) -> Access:
    """The access, as ``ApiConnection.connect`` describes it. Raises NoAccess."""
    path = kubeconfig or os.environ.get("KUBECONFIG", "")
    home = Path.home() / ".kube" / "config"
    if not path and (context or home.exists()):
        path = str(home)
    if path:
        from vgpu.apiserver.kubeconfig import access  # noqa: PLC0415  # it is large

        return access(path, context, connections)
    try:
        return as_pod(os.environ, ACCOUNT, connections)
    except (KeyError, OSError, ValueError) as error:
        why = f"{error.args[0]} is not set" if isinstance(error, KeyError) else str(error)
        raise NoAccess(
            "no cluster is configured: pass --kubeconfig FILE or set KUBECONFIG"
            f" ({home} does not exist, and this is not a pod: {why})"
        ) from error
