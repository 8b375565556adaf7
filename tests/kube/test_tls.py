"""How certificates of API servers are verified, whatever the Python."""

import shutil
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import urllib3

from tests.support.bed.pki import Authority
from tests.support.waiting import WAIT_SECONDS
from vgpu.kube.tls import without_strict_extensions

AT_ONCE, ROUNDS = 32, 4


@pytest.mark.parametrize("required", [True, False])
def test_extensions_that_many_authorities_lack_are_not_demanded(required):
    mode = ssl.CERT_REQUIRED if required else ssl.CERT_NONE
    pool = without_strict_extensions(urllib3.PoolManager(cert_reqs=mode))
    context = pool.connection_pool_kw["ssl_context"]
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert (context.verify_mode, context.check_hostname) == (mode, required)


def test_the_strict_flag_goes_where_the_library_sets_it(monkeypatch):
    def strict(**_):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr("vgpu.kube.tls.create_urllib3_context", strict)
    pool = without_strict_extensions(urllib3.PoolManager(cert_reqs="CERT_REQUIRED"))
    assert not pool.connection_pool_kw["ssl_context"].verify_flags & ssl.VERIFY_X509_STRICT


class Named(BaseHTTPRequestHandler):
    """Answers with the common name of the client's certificate, and closes the connection."""

    def do_GET(self):
        subject = dict(pair for (pair,) in self.connection.getpeercert()["subject"])
        body = subject["commonName"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Silence."""


class TlsServer(ThreadingHTTPServer):
    request_queue_size = 2 * AT_ONCE

    def __init__(self, context):
        super().__init__(("127.0.0.1", 0), Named)
        self.context = context

    def finish_request(self, request, client_address):
        with self.context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)


@contextmanager
def tls_server(authority):
    """The URL of a server that demands a client certificate of the authority."""
    pair = authority.server("server", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.load_verify_locations(authority.ca.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    with TlsServer(context) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(WAIT_SECONDS)


def client_pool(authority, pair):
    return without_strict_extensions(
        urllib3.PoolManager(
            maxsize=1,
            cert_reqs="CERT_REQUIRED",
            ca_certs=str(authority.ca.certificate),
            cert_file=str(pair.certificate),
            key_file=str(pair.key),
        )
    )


def asked(pool, url):
    answer = pool.request("GET", url, retries=False, timeout=WAIT_SECONDS)
    return answer.data.decode()


def test_threads_that_connect_at_once_do_not_disturb_each_other(tmp_path):
    """urllib3 loads the client's files for each connection, into the one context of the pool."""
    authority = Authority(tmp_path / "pki")
    pool = client_pool(authority, authority.client("client", "somebody"))
    with tls_server(authority) as url, ThreadPoolExecutor(AT_ONCE) as threads:
        for _ in range(ROUNDS):
            barrier = threading.Barrier(AT_ONCE)

            def at_once(_, barrier=barrier):
                barrier.wait(WAIT_SECONDS)
                return asked(pool, url)

            assert list(threads.map(at_once, range(AT_ONCE))) == ["somebody"] * AT_ONCE


def test_a_certificate_that_was_renewed_in_its_file_is_used_for_the_next_connection(tmp_path):
    authority = Authority(tmp_path / "pki")
    pair = authority.client("client", "before")
    pool = client_pool(authority, pair)
    with tls_server(authority) as url:
        assert asked(pool, url) == "before"
        for new, old in zip(authority.client("new", "after"), pair, strict=True):
            shutil.move(new, old)
        assert asked(pool, url) == "after"
