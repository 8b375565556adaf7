"""Pods that share a GPU by tokens: the daemon's page, read and joined to the exporter's rows."""

import http.server
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from exporter.allocations import allocation_totals
from exporter.families import OWN_TABLES
from exporter.families.containers import TOKENS
from exporter.sampler import codecs
from exporter.view import ExporterView, gpu_rows
from kubeshare.tokens.metrics import TABLES
from tests.grafana.pretended_scheduler import PretendedScheduler
from tests.grafana.pretended_tokens import UUID, sharing
from tests.support.waiting import WAIT_SECONDS
from tests.support.web_helpers import Pki, hashed
from vgpu.ledger.container_usage import ContainerUsage, NodeUsage, ShareUsage, token_uses
from vgpu.metrics.render import Format, Renderer
from vgpu.model.facts import TokenClient, TokenSample
from vgpu.model.names import PodRef, Scheme, Source
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import GIB
from vgpu.sources import token_page
from vgpu.sources.http_access import BadOption, ClientOptions
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.observation import observe
from vgpu.sources.token_page import FIELDS, MAX_CLIENTS, TokenPage, parse_token_page
from vgpu.web.config import WebConfigFile
from vgpu.web.metrics import LiveMetrics, metrics_page
from vgpu.web.server import WebServer

READY = "vgpu_token_ready 1\n"
WHO = f'uuid="{UUID}",namespace="ml",pod="train-0"'
TENANTS = TokenSample((TokenClient(UUID, "ml", "train-0", 0.5, 0.8, 0.4, 7.5),))


def page(**fields):
    """A pod's series, by the name's end."""
    return READY + "".join(f"vgpu_token_{name}{{{WHO}}} {text}\n" for name, text in fields.items())


# ---------------------------------------------------------------- the page


def test_what_the_daemon_serves_is_what_the_exporter_reads():
    with PretendedScheduler(lambda _: sharing(99), TABLES) as daemon:
        sample = TokenPage(f"http://{daemon.target}/metrics").sample()
    train, notebook = sample.clients
    assert sample.rejections == ()
    assert train == TokenClient(UUID, "research", "train-0", 0.5, 0.8, 0.5, train.wait_seconds)
    assert (notebook.request_ratio, notebook.limit_ratio) == (0.2, 1.0)
    assert notebook.wait_seconds == pytest.approx(49.6)


def test_a_pod_whose_share_is_unknown_has_no_request():
    assert parse_token_page(page(window_share_ratio="0.25"), "url").clients == (
        TokenClient(UUID, "ml", "train-0", window_share_ratio=0.25),
    )


@pytest.mark.parametrize("text", ["2", "-0.1", "NaN", "+Inf"])
def test_an_impossible_number_costs_its_pod_alone(text):
    good = page(request_ratio="0.5").replace("train-0", "good-0")
    sample = parse_token_page(page(window_share_ratio=text) + good, "url")
    assert [each.pod for each in sample.clients] == ["good-0"]
    assert [each.reason for each in sample.rejections] == [Reason.IMPLAUSIBLE]


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        (WHO.replace(UUID, "0"), Reason.BAD_UUID),
        (WHO.replace("ml", "No Namespace"), Reason.MALFORMED),
        (WHO.replace("train-0", "../x"), Reason.MALFORMED),
    ],
)
def test_a_name_that_kubernetes_does_not_have_is_refused(who, reason):
    sample = parse_token_page(f"{READY}vgpu_token_request_ratio{{{who}}} 0.5\n", "url")
    assert sample.clients == ()
    assert [each.reason for each in sample.rejections] == [reason]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>not a daemon</html>",
        page(request_ratio="0.5").removeprefix(READY),
        READY
        + "".join(
            page(request_ratio="0.5").replace("train-0", f"train-{number}")
            for number in range(MAX_CLIENTS + 1)
        ),
    ],
)
def test_what_is_no_page_of_a_daemon_is_refused_as_a_whole(text):
    with pytest.raises(SourceError) as refused:
        parse_token_page(text, "url")
    assert refused.value.reason is Reason.MALFORMED


PARTS = st.text('ml0-9.e"\\{},=A \n', max_size=9)


@given(st.lists(st.tuples(st.sampled_from(sorted(FIELDS)), PARTS, PARTS, PARTS), max_size=5))
def test_any_labels_and_values_are_a_pod_a_refusal_or_nothing(series):
    lines = (
        f'{name}{{uuid="{UUID}",namespace="ml",pod="{pod}"{more}}} {value}'
        for name, pod, more, value in series
    )
    sample = parse_token_page(READY + "\n".join(lines), "url")
    for each in sample.clients:
        assert set(each.pod) <= set("ml0-9.e")
        shares = each.request_ratio, each.limit_ratio, each.window_share_ratio
        assert all(share is None or 0 <= share <= 1 for share in shares)


# ---------------------------------------------------------------- the address


@contextmanager
def answering(status, body, **headers):
    """A server whose every answer is this."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name.replace("_", "-"), text)
            with suppress(ConnectionError):  # who asks may have closed the connection
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as answers:
        thread = threading.Thread(target=answers.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{answers.server_port}/metrics"
        finally:
            answers.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body", "headers", "reason"),
    [
        (302, b"", {"Location": "http://127.0.0.1:1/"}, Reason.MALFORMED),
        (401, b"", {}, Reason.MALFORMED),
        (200, READY.encode(), {"Content_Length": "999"}, Reason.TRUNCATED),
        (200, READY.encode() * 9, {}, Reason.TOO_LARGE),
    ],
)
def test_an_answer_that_is_none_is_a_failure(monkeypatch, status, body, headers, reason):
    monkeypatch.setattr(token_page, "PAGE_LIMIT", 100)
    with answering(status, body, **headers) as url, pytest.raises(SourceError) as failed:
        TokenPage(url).sample()
    assert failed.value.reason is reason


def test_an_answer_that_never_ends_times_out(monkeypatch):
    monkeypatch.setattr(token_page, "TIMEOUT_SECONDS", 0.0001)
    with answering(200, READY.encode()) as url, pytest.raises(SourceError) as failed:
        TokenPage(url).sample()
    assert failed.value.reason is Reason.TIMEOUT


def test_a_url_without_a_listener_is_unreachable():
    with pytest.raises(SourceError) as failed:
        TokenPage("http://127.0.0.1:1/metrics").sample()
    assert failed.value.reason is Reason.UNREACHABLE


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:9402",
        "ftp://a/metrics",
        "http://u:p@a/",
        "x:y",
        "http://fd00::1:9402/metrics",
        "http://[fd00::1:9402/metrics",
    ],
)
def test_another_url_is_refused(url):
    with pytest.raises(ValueError, match="give http://HOST:PORT/PATH"):
        TokenPage(url)


def test_brackets_hold_an_address():
    with pytest.raises(ValueError, match="'1:9402' does not appear to be an IPv4 or IPv6 address"):
        TokenPage("http://[1:9402]/metrics")


@contextmanager
def daemon(address="127.0.0.1:0", config=None):
    """A server with the page of a daemon; its port."""
    metrics = LiveMetrics(TABLES, lambda: sharing(9))
    server = WebServer({"/metrics": metrics_page(metrics.body)}, [address], config)
    server.start()
    try:
        yield server.addresses[0].rpartition(":")[2]
    finally:
        server.stop(grace=1)


@pytest.mark.parametrize("address", ["[::1]:0", "127.0.0.1:0"])
def test_a_variable_in_brackets_is_an_address_of_either_family(address):
    """As the chart has it, which does not know which of them the node has."""
    host = address.rpartition(":")[0].strip("[]")
    with daemon(address) as port:
        assert TokenPage(f"http://[{host}]:{port}/metrics").sample().clients


@pytest.fixture
def secured(tmp_path):
    """The port of a daemon that demands a certificate and a password; what opens it."""
    pki = Pki(tmp_path, "test")
    certificate, key = pki.issue("server", ("DNS:tokens.example.com",))
    (tmp_path / "web.yml").write_text(
        f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n"
        f"  client_ca_file: {pki.ca}\n  client_auth_type: RequireAndVerifyClientCert\n"
        f"basic_auth_users:\n  exporter: {hashed('secret')}\n"
    )
    own, own_key = map(str, pki.issue("exporter"))
    password = tmp_path / "password"
    password.write_text("secret\n")
    access = ClientOptions(
        str(pki.ca), own, own_key, "exporter", str(password), "tokens.example.com"
    )
    with daemon(config=WebConfigFile(str(tmp_path / "web.yml"))) as port:
        yield f"https://127.0.0.1:{port}/metrics", access


def test_certificates_and_a_password_open_a_secured_daemon(secured):
    url, access = secured
    assert TokenPage(url, access).sample().clients


@pytest.mark.parametrize(
    ("change", "reason", "detail"),
    [
        ({"server_name": None}, Reason.UNREACHABLE, "its certificate: IP address mismatch"),
        ({"ca_file": None}, Reason.UNREACHABLE, "its certificate: "),
        ({"username": "other"}, Reason.MALFORMED, "HTTP status 401: --tokens.username and --tok"),
        ({"cert": None, "key": None}, Reason.UNREACHABLE, ""),
    ],
)
def test_a_secured_daemon_is_closed_without_one_of_them(secured, change, reason, detail):
    url, access = secured
    page = TokenPage(url, structs.replace(access, **change))
    with pytest.raises(SourceError) as failed:
        page.sample()
    assert failed.value.reason is reason
    assert failed.value.detail.startswith(detail)


def test_a_password_is_read_again_for_each_sample(secured):
    url, access = secured
    page = TokenPage(url, access)
    password = Path(access.password_file)
    password.write_text("old")
    with pytest.raises(SourceError, match="401"):
        page.sample()
    password.unlink()
    with pytest.raises(SourceError, match=r"--tokens\.password-file: ") as failed:
        page.sample()
    assert failed.value.reason is Reason.UNREADABLE
    password.write_text("secret")
    assert page.sample().clients


@pytest.mark.parametrize(
    ("url", "access", "complaint"),
    [
        ("http://a", {"ca_file": "/ca"}, "need https in --tokens.url"),
        ("https://a", {"ca_file": "/no-such-ca"}, "--tokens.ca-file /no-such-ca: No such file"),
        ("http://a", {"username": "a"}, "--tokens.username and --tokens.password-file belong tog"),
        ("https://a", {"key": "/key"}, "--tokens.key needs --tokens.cert"),
    ],
)
def test_credentials_that_are_of_no_use_are_refused_at_the_start(url, access, complaint):
    with pytest.raises(BadOption, match=complaint):
        TokenPage(url, ClientOptions(**access))


# ---------------------------------------------------------------- the rows


def container(name, uid="u1", scheme=Scheme.KUBESHARE):
    pod = PodRef(uid, "ml", "train-0")
    share = ShareUsage(UUID, pod, name, scheme, sm_utilization=0.3)
    return ContainerUsage(pod, name, scheme, Source.LIMIT_FILE, shares={UUID: share})


def tokens_of(*containers):
    return token_uses(TENANTS, NodeUsage(containers).shares)


def text(tokens):
    view = ExporterView(0.0, "n", 15.0, NodeUsage(), (), {}, (), {}, {}, tokens=tokens)
    return Renderer((TOKENS,)).render(view).body(Format.TEXT).decode()


def test_a_pod_with_a_share_has_its_token_beside_what_the_driver_reports():
    lines = text(tokens_of(container("main"))).splitlines()
    labels = f'{{namespace="ml",pod="train-0",container="main",pod_uid="u1",uuid="{UUID}"}}'
    assert [line for line in lines if not line.startswith("#")] == [
        f"vgpu_container_token_request_ratio{labels} 0.5",
        f"vgpu_container_token_limit_ratio{labels} 0.8",
        f"vgpu_container_token_window_share_ratio{labels} 0.4",
        f"vgpu_container_token_wait_seconds_total{labels} 7.5",
    ]


def test_the_containers_of_a_pod_have_one_token():
    (row,) = tokens_of(container("main"), container("side"))
    assert (row.pod_uid, row.container) == ("u1", "")


@pytest.mark.parametrize(
    "containers",
    [
        (),
        (container("main", scheme=Scheme.VOLCANO),),
        (container("main"), container("main", uid="u2")),  # one replaces the other
    ],
)
def test_a_pod_that_is_not_known_for_certain_has_none(containers):
    assert tokens_of(*containers) == ()


def test_without_tokens_a_page_has_no_line_of_them():
    assert text(()) == ""


def test_the_collector_adds_its_lines_and_changes_no_other(make_bench):
    """On the demo's node, which has many sharing systems, and a pod that shares by tokens."""
    collectors = make_bench().collectors
    seen = observe(collectors, 1_790_000_000.0, WAIT_SECONDS, 600.0)
    assert seen.tokens is None
    builder = LedgerBuilder(codecs(GIB, GIB), "n")
    usage, totals = builder.usage(seen), allocation_totals(builder.ledger(seen))
    containers = (*usage.containers, container("main"))
    usage = NodeUsage(containers)

    def page(tables, tokens=None):
        view = ExporterView(
            timestamp=seen.at,
            node="n",
            interval=15.0,
            usage=usage,
            collectors=(),
            calls={},
            xids=(),
            build={},
            own={},
            gpus=tuple(gpu_rows(seen.gpu, usage)),
            tokens=token_uses(tokens, usage.shares) if tokens else (),
            allocations=totals,
        )
        return Renderer(tables).render(view).body(Format.TEXT).splitlines()

    before = page([table for table in OWN_TABLES if table is not TOKENS])
    assert len(before) > 100
    assert page(OWN_TABLES) == before
    after = page(OWN_TABLES, TENANTS)
    added = [line for line in after if b"vgpu_container_token_" in line]
    assert len(added) == 12  # four families
    assert [line for line in after if line not in added] == before
