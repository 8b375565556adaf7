"""How API servers are connected to by TLS, whatever the Python and however many threads."""

import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import urllib3

from tests.support.waiting import WAIT_SECONDS
from tests.support.web_helpers import Pki
from vgpu.apiserver import access
from vgpu.apiserver.access import with_own_connections

THREADS, ROUNDS = 8, 12


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Silence."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        """A client that left."""


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"), "cluster")


@pytest.fixture(scope="module")
def port(pki):
    """A server's, which demands a client certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki.ca))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*map(str, pki.issue("server")))
    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(WAIT_SECONDS)


@pytest.fixture
def settings(pki):
    certificate, key = pki.issue("client")
    return {"ca_certs": str(pki.ca), "cert_file": str(certificate), "key_file": str(key)}


@pytest.fixture
def contexts(monkeypatch):
    """The contexts of the connections that are made; each is strict at first, as from 3.13 on."""
    made = []
    create = access.create_urllib3_context

    def strict(**options):
        made.append(create(**options))
        made[-1].verify_flags |= ssl.VERIFY_X509_STRICT
        return made[-1]

    monkeypatch.setattr(access, "create_urllib3_context", strict)
    return made


def connected(pool, port):
    answer = pool.request("GET", f"https://localhost:{port}/", retries=False)
    return answer.status == 200


@pytest.mark.parametrize("required", [True, False])
def test_extensions_that_many_authorities_lack_are_not_demanded(port, settings, contexts, required):
    mode = "CERT_REQUIRED" if required else "CERT_NONE"
    pool = with_own_connections(urllib3.PoolManager(cert_reqs=mode, **settings))
    if required:
        assert connected(pool, port)
    else:
        with pytest.warns(urllib3.exceptions.InsecureRequestWarning):
            assert connected(pool, port)
    (context,) = contexts
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert (context.verify_mode, context.check_hostname) == (getattr(ssl, mode), required)


def test_a_pod_s_server_may_have_a_certificate_that_kubectl_takes(pki, port, contexts, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "ca.crt").write_bytes(pki.ca.read_bytes())
    host = {"KUBERNETES_SERVICE_HOST": "localhost", "KUBERNETES_SERVICE_PORT": str(port)}
    pool = access.as_pod(host, str(tmp_path)).pool
    with pytest.raises(urllib3.exceptions.HTTPError) as info:
        connected(pool, port)
    assert "verify failed" not in str(info.value)  # the server's is valid; it wants the client's
    (context,) = contexts
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_an_authority_that_did_not_sign_the_server_is_refused(port, settings, tmp_path):
    other = Pki(tmp_path, "other")
    pool = with_own_connections(
        urllib3.PoolManager(cert_reqs="CERT_REQUIRED", **settings | {"ca_certs": str(other.ca)})
    )
    with pytest.raises(urllib3.exceptions.SSLError, match="certificate verify failed"):
        connected(pool, port)


def test_threads_that_connect_at_once_do_not_share_a_context(port, settings, contexts):
    """Sharing one, some of a hundred connections failed for reasons that were not true."""
    barrier = threading.Barrier(THREADS)

    def connect(pool):
        barrier.wait(WAIT_SECONDS)
        return connected(pool, port)

    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(ROUNDS):
            pool = urllib3.PoolManager(maxsize=THREADS, cert_reqs="CERT_REQUIRED", **settings)
            pools = [with_own_connections(pool)] * THREADS
            assert all(threads.map(connect, pools))
    assert len({id(context) for context in contexts}) == len(contexts) > ROUNDS


def test_renewed_files_count_for_the_next_connection(pki, port, settings, tmp_path):
    """The kubelet renews certificates in their files."""
    authority = tmp_path / "ca.crt"
    authority.write_bytes(Pki(tmp_path, "old").ca.read_bytes())
    pool = with_own_connections(
        urllib3.PoolManager(cert_reqs="CERT_REQUIRED", **settings | {"ca_certs": str(authority)})
    )
    with pytest.raises(urllib3.exceptions.SSLError):
        connected(pool, port)
    authority.write_bytes(pki.ca.read_bytes())
    assert connected(pool, port)
