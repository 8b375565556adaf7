"""Access to an API server: its URL, verified connections and credentials; that of a pod.

Certificates are verified by the rules of Kubernetes' own tools. Python 3.13, and urllib3 with it,
also demand extensions such as the authority key identifier (``VERIFY_X509_STRICT``). Authorities of
many clusters do not have them, and kubectl does not demand them.

A pod has two files and two variables, which are read here: the official client would take 18 MiB on
every node. :mod:`vgpu.apiserver.kubeconfig` reads kubeconfigs.
"""

import ssl
from collections.abc import Callable, Mapping
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
