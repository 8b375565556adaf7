"""TLS to the API server: certificates are verified, by the rules of Kubernetes' own tools.

Python 3.13, and urllib3 with it, also demand extensions such as the authority key identifier
(``VERIFY_X509_STRICT``). Authorities of many clusters do not have them, and kubectl does not demand
them.
"""

import ssl
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import urllib3
from urllib3.util.ssl_ import create_urllib3_context, resolve_cert_reqs


class SharedContext(ssl.SSLContext):
    """A context for connections of several threads.

    urllib3 loads certificates and key into it for each connection. OpenSSL does not allow that
    while another thread connects: a key meets another certificate, or the process ends. So a file
    is loaded once, and again if it has changed.
    """

    def __init__(self, *_: object) -> None:
        self._loading = threading.Lock()
        self._loaded: dict[str, Hashable] = {}

    def load_cert_chain(self, certfile: Any, keyfile: Any = None, password: Any = None) -> None:
        """Load the client's certificate and key, unless that was done."""
        load = super().load_cert_chain
        self._once("client", (certfile, keyfile), lambda: load(certfile, keyfile, password))

    def load_verify_locations(
        self, cafile: Any = None, capath: Any = None, cadata: Any = None
    ) -> None:
        """Load the authorities, unless that was done."""
        load = super().load_verify_locations
        self._once("authorities", (cafile, capath), lambda: load(cafile, capath, cadata), cadata)

    def set_alpn_protocols(self, alpn_protocols: Any) -> None:
        """Set the protocols, unless that was done."""
        offered = tuple(alpn_protocols)
        set_protocols = super().set_alpn_protocols
        self._once("protocols", (), lambda: set_protocols(offered), offered)

    def _once(
        self,
        what: str,
        files: tuple[str | None, ...],
        load: Callable[[], object],
        content: Hashable = None,
    ) -> None:
        """Load what has not been loaded in this state. Raises OSError."""
        with self._loading:
            state = files, tuple(map(_state, files)), content
            if self._loaded.get(what) != state:
                load()
                self._loaded[what] = state


def _state(file: str | None) -> Hashable:
    """What differs once a file has another content; a kubelet's file is a link."""
    if not file:
        return None
    status = Path(file).stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def without_strict_extensions(pool: urllib3.PoolManager) -> urllib3.PoolManager:
    """The pool, whose connections verify as kubectl does; its other settings stay."""
    settings = pool.connection_pool_kw
    usual = create_urllib3_context(cert_reqs=resolve_cert_reqs(settings.get("cert_reqs")))
    context = SharedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = usual.check_hostname, usual.verify_mode
    context.options, context.minimum_version = usual.options, usual.minimum_version
    context.hostname_checks_common_name = usual.hostname_checks_common_name
    context.post_handshake_auth = usual.post_handshake_auth
    context.verify_flags = usual.verify_flags & ~ssl.VERIFY_X509_STRICT
    if not settings.get("ca_certs"):
        context.load_default_certs()
    settings["ssl_context"] = context
    return pool
