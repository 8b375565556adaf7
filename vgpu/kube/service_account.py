"""Access as the pod that this runs in.

What a pod is given are two files and two variables, read here: to import the official client for
that would take 18 MiB on every node.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import urllib3

from vgpu.kube.access import CONNECTIONS, Access

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where the kubelet puts a pod's token, and the certificate of who has signed the server's."""

TOKEN_SECONDS: Final = 60.0
"""So long a token is used before its file is read again: the kubelet renews it while it is good."""


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
        maxsize=CONNECTIONS, cert_reqs="CERT_REQUIRED", ca_certs=str(authority)
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
