"""Pods that share a GPU by tokens: the daemon's page, read and joined to the exporter's rows."""

import http.server
import threading
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.attribution import Attributor
from exporter.families.tokens import TOKENS
from exporter.view import Attribution, ExporterView
from kubeshare.tokens.metrics import TABLES
from tests.grafana.pretended_scheduler import PretendedScheduler
from tests.grafana.pretended_tokens import UUID, sharing
from vgpu.facts import TokenSample, TokenTenant
from vgpu.ledger.container_usage import ContainerUsage, NodeUsage, ShareUsage
from vgpu.metrics.render import Format, Renderer
from vgpu.model import PodRef, Scheme, Source
from vgpu.reasons import Reason, SourceError
from vgpu.sources import token_page
from vgpu.sources.samples import Observation
from vgpu.sources.token_page import FIELDS, MAX_TENANTS, TokenPage, parse_token_page

READY = "vgpu_token_ready 1\n"
WHO = f'uuid="{UUID}",namespace="ml",pod="train-0"'
TENANTS = TokenSample((TokenTenant(UUID, "ml", "train-0", 0.5, 0.8, 0.4, 7.5),))


def page(**fields):
    """A pod's series, by the name's end."""
    return READY + "".join(f"vgpu_token_{name}{{{WHO}}} {text}\n" for name, text in fields.items())


# ---------------------------------------------------------------- the page


def test_what_the_daemon_serves_is_what_the_exporter_reads():
    with PretendedScheduler(lambda _: sharing(99), TABLES) as daemon:
        sample = TokenPage(f"http://{daemon.target}/metrics").sample()
    train, notebook = sample.tenants
    assert sample.rejections == ()
    assert train == TokenTenant(UUID, "research", "train-0", 0.5, 0.8, 0.5, train.wait_seconds)
    assert (notebook.request_ratio, notebook.limit_ratio) == (0.2, 1.0)
    assert notebook.wait_seconds == pytest.approx(49.6)


def test_a_pod_whose_share_is_unknown_has_no_request():
    assert parse_token_page(page(window_share_ratio="0.25"), "url").tenants == (
        TokenTenant(UUID, "ml", "train-0", window_share_ratio=0.25),
    )


@pytest.mark.parametrize("text", ["2", "-0.1", "NaN", "+Inf"])
def test_an_impossible_number_costs_its_pod_alone(text):
    good = page(request_ratio="0.5").replace("train-0", "good-0")
    sample = parse_token_page(page(window_share_ratio=text) + good, "url")
    assert [each.pod for each in sample.tenants] == ["good-0"]
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
    assert sample.tenants == ()
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
            for number in range(MAX_TENANTS + 1)
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
    for each in sample.tenants:
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
            with suppress(ConnectionError):  # who asks may have given up
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


def test_an_answer_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr(token_page, "TIMEOUT_SECONDS", 0.0001)
    with answering(200, READY.encode()) as url, pytest.raises(SourceError) as failed:
        TokenPage(url).sample()
    assert failed.value.reason is Reason.TIMEOUT


def test_nobody_listens():
    with pytest.raises(SourceError) as failed:
        TokenPage("http://127.0.0.1:1/metrics").sample()
    assert failed.value.reason is Reason.UNREACHABLE


@pytest.mark.parametrize("url", ["", "127.0.0.1:9402", "https://a/metrics", "http://u:p@a/", "x:y"])
def test_another_url_is_refused(url):
    with pytest.raises(ValueError, match="give http://HOST:PORT/PATH"):
        TokenPage(url)


# ---------------------------------------------------------------- the rows


def container(name, uid="u1", scheme=Scheme.KUBESHARE):
    pod = PodRef(uid, "ml", "train-0")
    return ContainerUsage(
        pod, name, scheme, Source.LIMIT_FILE, shares={UUID: ShareUsage(UUID, sm_utilization=0.3)}
    )


def attribution(*containers, tokens=TENANTS):
    return Attributor().rows(Observation(tokens=tokens), NodeUsage(tuple(containers)))


def text(shown):
    view = ExporterView(0.0, "n", 15.0, shown, (), {}, (), {}, {})
    return Renderer((TOKENS,)).render(view).body(Format.TEXT).decode()


def test_a_pod_with_a_share_has_its_token_beside_what_the_driver_reports():
    lines = text(attribution(container("main"))).splitlines()
    labels = f'{{namespace="ml",pod="train-0",container="main",pod_uid="u1",uuid="{UUID}"}}'
    assert [line for line in lines if not line.startswith("#")] == [
        f"vgpu_container_token_request_ratio{labels} 0.5",
        f"vgpu_container_token_limit_ratio{labels} 0.8",
        f"vgpu_container_token_window_share_ratio{labels} 0.4",
        f"vgpu_container_token_wait_seconds_total{labels} 7.5",
    ]


def test_the_containers_of_a_pod_have_one_token():
    (row,) = attribution(container("main"), container("side")).tokens
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
    assert attribution(*containers).tokens == ()


def test_without_tokens_a_page_has_no_line_of_them():
    assert text(Attribution()) == ""
    assert text(attribution(container("main"), tokens=None)) == ""
