"""Asking an exporter for a page: as its web config demands it, and every way to get none."""

import socket
import threading
from contextlib import contextmanager

import pytest

from tests.support.environment import own_loopback
from tests.support.waiting import wait_ended
from tests.support.web_helpers import Pki, hashed
from vgpu.sources.http_access import BadOption, ClientOptions
from vgpu.web.config import WebConfigFile
from vgpu.web.message import HttpResponse
from vgpu.web.server import WebServer
from vgpucli.top import source as http_source
from vgpucli.top.source import Exporter, Unanswered

PAGE = "vgpu_snapshot_timestamp_seconds 1\n"


@contextmanager
def served(*addresses, config=None, path="/metrics", status=200, body=PAGE):
    """A server with one page; where it listens."""
    headers = (("Content-Type", "text/plain"),)
    routes = {path: lambda _: HttpResponse(status, headers, body.encode())}
    server = WebServer(routes, addresses or ["127.0.0.1:0"], config)
    server.start()
    try:
        yield server.addresses[0]
    finally:
        server.stop(grace=1)


@contextmanager
def answering(data):
    """A server that sends these bytes to whoever comes, and hangs up or not; where it listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            peer, _ = listening.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        wait_ended(thread, "the server has answered")


def why(exporter):
    with pytest.raises(Unanswered) as error:
        exporter.page()
    return str(error.value)


@pytest.mark.parametrize("form", ["http://{}", "http://{}/", "http://{}/metrics", "{}"])
def test_a_url_needs_no_path(form):
    with served() as address:
        exporter = Exporter(form.format(address), ClientOptions())
        assert exporter.page() == PAGE
        assert exporter.name == f"http://{address}"


def test_another_path_is_asked_for_as_it_is():
    with served(path="/gpu/metrics") as address:
        assert Exporter(f"http://{address}/gpu/metrics", ClientOptions()).page() == PAGE
        assert why(Exporter(f"http://{address}", ClientOptions())) == (
            "HTTP status 404: the path of its metrics belongs into --url"
        )


@pytest.mark.parametrize("folder", ["", "/gpu"])
def test_the_processes_are_beside_the_metrics(folder):
    with served(path=f"{folder}/processes", body="[]") as address:
        assert Exporter(f"http://{address}{folder}/metrics", ClientOptions()).processes() == "[]"
        with pytest.raises(Unanswered, match="HTTP status 404: the exporter is older"):
            Exporter(f"http://{address}/elsewhere/metrics?x=1", ClientOptions()).processes()


def test_no_proxy_of_the_environment_is_asked(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with served() as address:
        assert Exporter(f"http://{address}", ClientOptions()).page() == PAGE


# ---------------------------------------------------------------- secured


@pytest.fixture
def pki(tmp_path):
    return Pki(tmp_path, "test")


@pytest.fixture
def secured(tmp_path, pki):
    """An exporter's server that demands a certificate and a password; its https URL."""
    certificate, key = pki.issue("server")
    file = tmp_path / "web.yml"
    file.write_text(
        f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n"
        f"  client_ca_file: {pki.ca}\n  client_auth_type: RequireAndVerifyClientCert\n"
        f"basic_auth_users:\n  sre: {hashed('secret')}\n"
    )
    with served(config=WebConfigFile(str(file))) as address:
        yield f"https://{address}"


def access(tmp_path, pki, password="secret\n", **other):
    certificate, key = map(str, pki.issue("sre"))
    (tmp_path / "password").write_text(password)
    return ClientOptions(
        **{
            "ca_file": str(pki.ca),
            "cert": certificate,
            "key": key,
            "username": "sre",
            "password_file": str(tmp_path / "password"),
            **other,
        }
    )


def test_certificates_and_a_password_open_a_secured_exporter(tmp_path, pki, secured):
    assert Exporter(secured, access(tmp_path, pki)).page() == PAGE


def test_a_wrong_password_is_reported_with_what_to_do(tmp_path, pki, secured):
    exporter = Exporter(secured, access(tmp_path, pki, password="guess"))
    assert why(exporter) == (
        "HTTP status 401: it asks for a password: --username and --password-file"
    )


def test_an_unknown_authority_is_reported_with_what_to_do(tmp_path, pki, secured):
    (tmp_path / "other").mkdir()
    other = Pki(tmp_path / "other", "other")
    exporter = Exporter(secured, access(tmp_path, pki, ca_file=str(other.ca)))
    assert why(exporter).startswith("its certificate: ")
    assert why(exporter).endswith(" (--ca-file)")


def test_without_the_certificate_it_asks_for_there_is_no_page(tmp_path, pki, secured):
    assert why(Exporter(secured, access(tmp_path, pki, cert=None, key=None)))


# ---------------------------------------------------------------- no answer


def test_an_address_without_a_listener_is_reported():
    with socket.create_server((own_loopback(), 0)) as taken:
        host, port = taken.getsockname()
    with pytest.raises(Unanswered) as error:
        Exporter(f"http://{host}:{port}", ClientOptions()).page()
    assert error.value.refused
    assert str(error.value) == "connection refused"


def test_an_exporter_that_is_silent_times_out():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert why(Exporter(url, ClientOptions(), timeout=0.2)) == "no answer within 0.2 s"


@pytest.mark.parametrize(
    "data", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort"]
)
def test_what_is_no_answer_is_an_unanswered_question(data):
    with answering(data) as address:
        assert why(Exporter(f"http://{address}", ClientOptions()))


def test_a_page_without_end_is_cut_off(monkeypatch):
    monkeypatch.setattr(http_source, "BODY_LIMIT", 1 << 20)
    with served(body="x" * (3 << 20)) as address:
        assert (
            why(Exporter(f"http://{address}", ClientOptions()))
            == "the answer is too large: more than 1 MiB"
        )


# ---------------------------------------------------------------- flags


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host", "give http://HOST:PORT"),
        ("http://", "give http://HOST:PORT"),
        ("http://host:port", "--url"),
        ("http://host:99999", "--url"),
        ("http://[::1", "--url"),
        ("http://user:secret@host", "--password-file"),
        ("http://host/a b", "%-encoding"),
        ("http://ho\x1bst", "give http://HOST:PORT"),
        ("", "give http://HOST:PORT"),
    ],
)
def test_a_url_that_cannot_be_is_refused_at_once(url, words):
    with pytest.raises(BadOption) as error:
        Exporter(url, ClientOptions())
    assert words in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "given", "words"),
    [
        ("http://host", {"ca_file": "ca.pem"}, "need an https --url"),
        ("https://host", {"ca_file": "/nowhere/ca.pem"}, "--ca-file /nowhere/ca.pem: No such file"),
        ("https://host", {"ca_file": __file__}, f"--ca-file {__file__}"),
        ("https://host", {"key": "k.pem"}, "--key needs --cert"),
        ("https://host", {"cert": __file__}, f"--cert {__file__}"),
        ("http://host", {"username": "sre"}, "belong together"),
        (
            "http://host",
            {"username": "sre", "password_file": "/nowhere/p"},
            "--password-file: /now",
        ),
    ],
)
def test_flags_that_cannot_work_are_refused_by_name(url, given, words):
    with pytest.raises(BadOption) as error:
        Exporter(url, ClientOptions(**given))
    assert words in str(error.value)
