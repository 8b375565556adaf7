"""Access to an API server: its URL, verified connections and credentials; that of a pod.

Certificates are verified by the rules of Kubernetes' own tools. Python 3.13, and urllib3 with it,
also demand extensions such as the authority key identifier (``VERIFY_X509_STRICT``). Authorities of
many clusters do not have them, and kubectl does not demand them.

A pod has two files and two variables, which are read here: the official client would take 18 MiB on
every node. :mod:`vgpu.apiserver.kubeconfig` reads kubeconfigs.
"""

import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import urllib3
from urllib3.connection import HTTPSConnection
from urllib3.util.ssl_ import create_urllib3_context, resolve_cert_reqs

from vgpu.apiserver.bounded_connection import BoundedAnswers, BoundedPool


def with_own_connections(pool: urllib3.PoolManager) -> urllib3.PoolManager:
    """The pool, whose connections verify as kubectl does, and whose answers end in time."""
    pool.pool_classes_by_scheme = {"http": BoundedPool, "https": _Pool}
    return pool


class _Connection(BoundedAnswers, HTTPSConnection):
    """Has a context of its own.

    urllib3 loads authorities and the client's certificate into the context each time that it
    connects, so that renewed files count. OpenSSL forbids that while another thread uses the
    context: two threads that shared one got wrong errors ("ee key too small") or a crash.
    """

    def connect(self) -> None:
        context = create_urllib3_context(cert_reqs=resolve_cert_reqs(self.cert_reqs))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not (self.ca_certs or self.ca_cert_dir or self.ca_cert_data):
            context.load_default_certs()
        self.ssl_context = context
        super().connect()


class _Pool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Connection


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


ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The folder of a pod's token, and of the certificate authority of the server."""

TOKEN_SECONDS: Final = 60.0
"""Maximum time that a token is used before its file is read again, in seconds: the kubelet renews
it before it expires."""


def as_pod(environ: Mapping[str, str], account: str = "", connections: int = CONNECTIONS) -> Access:
    """The cluster of a pod, as its ServiceAccount, without any proxy.

    ``account`` is the folder in place of :data:`ACCOUNT`; ``connections`` are kept open.

    Raises KeyError, OSError, ValueError for a missing part or an invalid token.
    """
    host, port = (environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
    folder = account or ACCOUNT
    authority = Path(folder, "ca.crt")
    if not authority.stat().st_size:
        raise ValueError(f"{authority} is empty")
    token = _Token(Path(folder, "token"))
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
