"""Whatever a server sends, and however slowly: an exchange ends in time, and in little memory."""

import ast
import gzip
import socket
import ssl
from contextlib import contextmanager

import pytest
import urllib3
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from reconciler.webhook import Webhook
from tests.commands.test_printed_text import PACKAGES, ROOT
from tests.reconciler.test_notify import DONE, SERVER, cycle
from tests.support.answering_server import anonymous_access
from tests.support.hostile_server import answering_all, serving_each
from vgpu.apiserver.access import Access, with_own_connections
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import STREAM_GRACE_SECONDS, ClusterError
from vgpu.apiserver.retries import ONCE
from vgpu.io.http_client import BadUrl, HttpClient, HttpError, HttpFailure, HttpUrl
from vgpu.kube.kinds import NODES
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources import token_page
from vgpu.sources.http_access import NO_CREDENTIALS
from vgpu.sources.token_page import TokenPage
from vgpucli.main import main
from vgpucli.measured_use import Prometheus
from vgpucli.top import source as http_source
from vgpucli.top.reading import PageError, read_page
from vgpucli.top.source import Exporter

SECONDS = 0.15
OK = b"HTTP/1.1 200 OK\r\n"
CONTENT = OK + b"Content-Length: 1000000\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def trickled(start, piece):
    """A server that begins with ``start`` and then sends a byte now and then, for ever."""

    def answer(peer, ended):
        peer.sendall(start)
        at = 0
        while not ended.wait(0.01):
            peer.sendall(piece[at : at + 1])
            at = (at + 1) % len(piece)

    return answer


def poured(start, piece):
    """A server that begins with ``start`` and then sends as much as is taken, for ever."""

    def answer(peer, ended):
        peer.settimeout(0.05)
        peer.sendall(start)
        while not ended.is_set():
            try:
                peer.sendall(piece)
            except TimeoutError:  # the client has ended, or it is slow
                continue

    return answer


SLOW = {
    "no answer": lambda _, ended: ended.wait(60),
    "status line": trickled(b"", b"HTTP/1.1 200 OK"),
    "header": trickled(OK + b"X: ", b"y"),
    "headers": trickled(OK, b"X: y\r\n"),
    "continue": trickled(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "content": trickled(CONTENT, b"x"),
    "content without length": trickled(OK + b"\r\n", b"x"),
    "chunks": trickled(CHUNKED, b"1\r\nx\r\n"),
    "length of a chunk": trickled(CHUNKED, b"0"),
    "trailers": trickled(CHUNKED + b"0\r\n", b"X: y\r\n"),
}
"""Servers that send a byte now and then."""

ENDLESS = {
    "continue": poured(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "headers": poured(OK, b"X: y\r\n" * 1000),
    "header": poured(OK + b"X: ", b"y" * 10000),
    "status line": poured(b"", b"y" * 10000),
    "content": poured(OK + b"\r\n", b"x" * 100_000),
    "chunks": poured(CHUNKED, b"1000\r\n" + b"x" * 0x1000 + b"\r\n"),
    "trailers": poured(CHUNKED + b"0\r\n", b"X: y\r\n" * 1000),
}
"""Servers that send as much as is taken, for ever."""


def client(address, seconds=SECONDS, limit=1 << 20):
    return HttpClient(HttpUrl.parse(f"http://{address}/x"), None, seconds, limit)


def failure(address, **options):
    with pytest.raises(HttpError) as failed:
        client(address, **options).exchange({})
    return failed.value.failure


@pytest.mark.parametrize("server", SLOW)
def test_a_server_that_sends_a_byte_now_and_then_is_left_at_the_deadline(server):
    with serving_each(SLOW[server]) as address:
        assert failure(address) is HttpFailure.TIMEOUT


@pytest.mark.parametrize("server", ENDLESS)
def test_an_answer_without_end_is_left_at_its_limit_or_at_the_deadline(server):
    with serving_each(ENDLESS[server]) as address:
        assert failure(address) in (
            HttpFailure.TIMEOUT,
            HttpFailure.TOO_LARGE,
            HttpFailure.MALFORMED,
        )


def test_a_server_that_takes_no_request_is_left_at_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(HttpError) as failed:
            client(address).exchange({}, method="POST", body=b"x" * (64 << 20))
    assert failed.value.failure is HttpFailure.TIMEOUT


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x03\x40\x00"])
def test_a_handshake_without_end_is_left_at_the_deadline(first):
    with serving_each(trickled(first, b"\x00")) as address:
        url = HttpUrl.parse(f"https://{address}")
        with pytest.raises(HttpError) as failed:
            HttpClient(url, ssl.create_default_context(), SECONDS, 1).exchange({})
    assert failed.value.failure in (HttpFailure.TIMEOUT, HttpFailure.UNREACHABLE)


def test_compressed_content_is_not_unpacked():
    bomb = gzip.compress(b"0" * (8 << 20))
    head = OK + f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
    with answering_all(head + bomb) as address:
        assert failure(address, seconds=60) is HttpFailure.MALFORMED


def test_headers_of_more_than_their_limit_are_refused():
    with answering_all(OK + b"X: y\r\n" * 50 + b"Y: " + b"z" * 60000 + b"\r\n" * 2) as address:
        client(address, seconds=60).exchange({})
    more = (OK[:-2] + b"\r\nY: " + b"z" * 40000 + b"\r\n\r\n").replace(b"200", b"100")
    with answering_all(more * 3) as address:
        assert failure(address, seconds=60) is HttpFailure.TOO_LARGE


@given(st.text(max_size=30) | st.text("ht:p/@[]?#%\\\n x1", max_size=30))
def test_any_text_is_a_url_that_can_be_requested_or_is_refused_without_it(text):
    try:
        url = HttpUrl.parse(f"http://{text}")
    except BadUrl as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert refused in MESSAGES
        return
    assert 0 < url.port < 65536
    assert "@" not in url.origin
    assert url.origin.isprintable()
    assert url.target.isascii()


MESSAGES = {
    "host or port are not those of a URL",
    "a password in it would be seen",
    "give http://HOST:PORT or https://HOST:PORT",
    "its path has characters that need %-encoding",
}


# ---------------------------------------------------------------- all who use it


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(http_source, "TIMEOUT_SECONDS", SECONDS)
    monkeypatch.setattr("vgpucli.measured_use.PROMETHEUS_SECONDS", SECONDS)
    monkeypatch.setattr(token_page, "TIMEOUT_SECONDS", SECONDS)
    monkeypatch.setattr("reconciler.webhook.SECONDS", SECONDS)


@pytest.fixture(params=["header", "continue", "content"])
def slow(request):
    with serving_each(SLOW[request.param]) as address:
        yield address


def test_everybody_leaves_a_slow_server(impatient, slow, caplog):
    with pytest.raises(http_source.Unanswered, match="no answer within"):
        Exporter(slow, NO_CREDENTIALS, SECONDS).page()
    with pytest.raises(http_source.Unanswered, match="no answer within"):
        Prometheus(slow, NO_CREDENTIALS).measured()
    with pytest.raises(SourceError) as failed:
        TokenPage(f"http://{slow}/metrics").sample()
    assert failed.value.reason is Reason.TIMEOUT
    Webhook(f"http://{slow}/TOKEN", SERVER).post(cycle(outcomes=DONE))


def test_the_webhook_is_left_too(impatient, caplog):
    with serving_each(SLOW["headers"]) as address:
        Webhook(f"http://{address}/TOKEN", SERVER).post(cycle(outcomes=DONE))
    (record,) = caplog.records
    assert record.reason == f"{HttpFailure.TIMEOUT.value}: within {SECONDS:g} s"
    assert "TOKEN" not in str(vars(record))


@pytest.mark.parametrize("server", SLOW)
def test_an_api_server_that_sends_a_byte_now_and_then_is_left(server):
    with (
        serving_each(SLOW[server]) as address,
        ApiClient(anonymous_access(f"http://{address}"), patience=SECONDS) as cluster,
        pytest.raises(ClusterError, match=f"no answer within {SECONDS:g} s"),
    ):
        list(cluster.pages(NODES))


def test_a_watch_is_left_for_a_slow_head_or_refusal_and_not_for_slow_events():
    forbidden = trickled(b"HTTP/1.1 403 no\r\nContent-Length: 1000000\r\n\r\n", b"x")
    for answer in (SLOW["headers"], forbidden):
        with (
            serving_each(answer) as address,
            watching(address) as lines,
            pytest.raises(ClusterError, match="no answer within"),
        ):
            next(lines)
    event = b"5\r\nabcd\n\r\n"
    with serving_each(trickled(CHUNKED, event)) as address, watching(address) as lines:
        assert [next(lines) for _ in range(3)] == [b"abcd"] * 3  # 300 ms, which is longer


class LineClient(ApiClient):
    """A client that reads a stream of any lines."""

    def lines(self, seconds):
        return self._stream("/x", {}, seconds)


@contextmanager
def watching(address):
    """The lines of a stream for which the server has SECONDS."""
    access = anonymous_access(f"http://{address}")
    with LineClient(access, gather=0, retries=ONCE) as cluster:
        lines = cluster.lines(SECONDS - STREAM_GRACE_SECONDS)
        yield lines
        lines.close()


def test_a_command_leaves_an_api_server_that_sends_a_byte_now_and_then(tmp_path):
    path = tmp_path / "kubeconfig"
    with serving_each(SLOW["content"]) as address:
        path.write_text(
            "current-context: a\n"
            "contexts: [{name: a, context: {cluster: a, user: a}}]\n"
            f'clusters: [{{name: a, cluster: {{server: "http://{address}"}}}}]\n'
            "users: [{name: a, user: {}}]\n"
        )
        words = ["inspect", "--kubeconfig", str(path), "--request-timeout", "150ms"]
        result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert "no answer within 0.15 s" in result.stderr


def test_a_page_of_too_many_series_is_not_parsed(monkeypatch):
    monkeypatch.setattr("vgpucli.top.reading.MOST_SERIES", 10)
    with pytest.raises(PageError, match="more than 10 series"):
        read_page("vgpu_gpus 1\n" * 11)


def test_the_size_of_an_answer_is_bounded_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr(http_source, "BODY_LIMIT", 1 << 20)
    with (
        serving_each(ENDLESS["content"]) as address,
        pytest.raises(http_source.Unanswered, match="the answer is too large"),
    ):
        Exporter(address, NO_CREDENTIALS, 60).page()


# ---------------------------------------------------------------- proxies


@contextmanager
def beyond_proxy(address):
    """A cluster that is reached by the proxy that listens there."""
    proxied = with_own_connections(urllib3.ProxyManager(f"http://{address}"))
    access = Access("https://cluster.example:6443", proxied)
    with ApiClient(access, patience=SECONDS) as cluster:
        yield cluster


@pytest.mark.parametrize("server", ["no answer", "status line", "header", "headers"])
def test_a_proxy_whose_answer_to_connect_trickles_is_left(server):
    with (
        serving_each(SLOW[server]) as address,
        beyond_proxy(address) as cluster,
        pytest.raises(ClusterError, match=f"the proxy: no connection within {SECONDS:g} s"),
    ):
        list(cluster.pages(NODES))


@pytest.mark.parametrize("server", ["headers", "header", "status line"])
def test_a_proxy_whose_answer_to_connect_has_no_end_is_left(server):
    with (
        serving_each(ENDLESS[server]) as address,
        beyond_proxy(address) as cluster,
        pytest.raises(ClusterError),
    ):
        list(cluster.pages(NODES))


def test_what_a_proxy_answers_to_connect_is_bounded_in_bytes():
    more = OK[:-2] + b"\r\n" + (b"X: " + b"y" * 1000 + b"\r\n") * 70
    with (
        answering_all(more + b"\r\n") as address,
        beyond_proxy(address) as cluster,
        pytest.raises(ClusterError, match="more bytes than allowed"),
    ):
        list(cluster.pages(NODES))


def test_a_proxy_that_refuses_is_quoted():
    with (
        answering_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n") as address,
        beyond_proxy(address) as cluster,
        pytest.raises(ClusterError, match="407 Proxy Authentication Required"),
    ):
        list(cluster.pages(NODES))


def test_a_proxy_that_is_not_there_is_named_as_one():
    with (
        socket.create_server(("127.0.0.1", 0)) as closed,
        beyond_proxy(f"127.0.0.1:{closed.getsockname()[1]}") as cluster,
    ):
        closed.close()
        with pytest.raises(ClusterError, match=": the proxy: connection refused"):
            list(cluster.pages(NODES))


def test_a_handshake_beyond_a_proxy_is_left_too():
    with (
        serving_each(trickled(b"HTTP/1.1 200 OK\r\n\r\n", b"\x16\x03\x03\x40")) as address,
        beyond_proxy(address) as cluster,
        pytest.raises(ClusterError),
    ):
        list(cluster.pages(NODES))


SPEAKERS = {
    "vgpu/io/http_client.py": {"http.client"},
    "vgpucli/demo/walkthrough.py": {"urllib.request"},  # to the extender that it has started
    "vgpu/apiserver/": {"urllib3"},
}
"""Modules of HTTP clients, by the files that may import them."""


def test_no_other_module_speaks_http():
    found = set()
    for path in (each for package in PACKAGES for each in (ROOT / package).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        allowed = next((SPEAKERS[each] for each in SPEAKERS if name.startswith(each)), set())
        text = path.read_text()
        if not any(word in text for word in ("http.client", "urllib", "requests", "aiohttp")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                modules = {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules = {node.module or ""}
            else:
                continue
            clients = {"http.client", "urllib3", "urllib.request", "requests", "aiohttp"}
            found |= {f"{name}: {each}" for each in modules & clients - allowed}
    assert not found, "use vgpu.io.http_client"
