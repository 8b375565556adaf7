"""What is served under which path, and the page for people."""

import enum
import gzip
import html
import re

import msgspec
import pytest
from msgspec import structs

from exporter import statuspage
from exporter.pages import routes
from exporter.problems import problems, short_size
from exporter.view import ExporterView
from tests.support.usage import usage_of
from vgpu.ledger.container_usage import ShareUsage
from vgpu.metrics.render import Format
from vgpu.model.names import PodRef
from vgpu.model.units import GIB
from vgpu.web.message import HttpRequest
from vgpu.web.metrics import wanted_format


def ask(paths, path, **headers):
    return paths[path](HttpRequest("GET", path, "", headers))


def test_every_path_answers_503_until_there_is_a_page_except_healthy(bench):
    paths = routes(bench.sampler, "/metrics", legacy_path=False)
    assert {path: ask(paths, path).status for path in paths} == {
        "/": 503,
        "/processes": 503,
        "/metrics": 503,
        "/-/healthy": 200,
        "/healthz": 200,
        "/-/ready": 503,
        "/readyz": 503,
    }
    bench.sampler.sample()
    assert {ask(paths, path).status for path in paths} == {200}


def test_the_status_page_is_rendered_once_for_all_who_ask_at_a_time(bench, monkeypatch):
    rendered, now = [], [1000.0]

    def render(view, now, _):
        rendered.append(now)
        return f"{view.timestamp} {now}".encode()

    monkeypatch.setattr(statuspage, "render", render)
    paths = routes(bench.sampler, "/metrics", legacy_path=False, clock=lambda: now[0])
    bench.sampler.sample()
    first = ask(paths, "/").body
    now[0] += 0.9
    assert ask(paths, "/").body == first
    now[0] += 0.2
    assert ask(paths, "/").body != first  # the page shows its age
    bench.sampler.sample()
    ask(paths, "/")
    assert rendered == [1000.0, now[0], now[0]]


def test_who_asks_while_the_status_page_is_rendered_gets_the_one_before(bench, monkeypatch):
    now = [1000.0]
    paths = routes(bench.sampler, "/metrics", legacy_path=False, clock=lambda: now[0])
    bench.sampler.sample()
    before = ask(paths, "/").body

    def render(*_):
        assert ask(paths, "/").body == before
        return b"new"

    monkeypatch.setattr(statuspage, "render", render)
    now[0] += 2.0
    assert ask(paths, "/").body == b"new"


def test_gpu_managers_path_serves_the_same_page(bench):
    page = bench.sampler.sample()
    paths = routes(bench.sampler, "/m", legacy_path=True)
    body = page.exposition.body(Format.TEXT)
    assert ask(paths, "/m").body == ask(paths, "/metric").body == body
    assert "/metrics" not in paths


def test_gzip_and_format_by_the_clients_wish(bench):
    page = bench.sampler.sample()
    paths = routes(bench.sampler, "/metrics", legacy_path=False)
    response = ask(
        paths,
        "/metrics",
        **{"accept": "application/openmetrics-text", "accept-encoding": "gzip, deflate"},
    )
    headers = dict(response.headers)
    assert headers["Content-Encoding"] == "gzip"
    assert headers["Content-Type"] == Format.OPENMETRICS.value
    assert gzip.decompress(response.body) == page.exposition.body(Format.OPENMETRICS)


@pytest.mark.parametrize(
    ("accept", "fmt"),
    [
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        ("text/plain;version=0.0.4", Format.TEXT),
        (
            (
                "application/openmetrics-text;version=1.0.0,"
                "application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5"
            ),
            Format.OPENMETRICS,
        ),
        ("application/openmetrics-text;q=0,text/plain", Format.TEXT),
        ("application/openmetrics-text;q=0.1,text/plain;q=0.9", Format.TEXT),
        ("application/openmetrics-text;q=x,text/plain", Format.TEXT),
        ("application/openmetrics-text;version=0.0.1", Format.TEXT),
        ("application/openmetrics-text; version=2.0.0, text/plain", Format.TEXT),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily", Format.TEXT),
    ],
)
def test_the_format_is_negotiated(accept, fmt):
    assert wanted_format(accept) is fmt


def test_the_page_for_people_shows_gpus_containers_and_troubles_in_words(bench):
    page = bench.sampler.sample()
    text = html.unescape(statuspage.render(page.view, page.view.timestamp + 2, "/metrics").decode())
    for share in page.view.usage.shares:
        assert f"{share.pod.namespace}/{share.pod.name}/{share.container}" in text
    for gpu in bench.node.scenario.gpus:
        assert gpu.name in text
        assert gpu.uuid in text
    for problem in problems(page.view):
        assert problem.text in text
    assert "sampled 2 s ago" in text
    assert 'http-equiv="refresh"' in text


def test_the_page_loads_nothing_and_runs_nothing(bench):
    text = statuspage.render(bench.sampler.sample().view, 0.0, "/metrics").decode()
    assert not re.search(r"<script|<img|<link|@import|url\(|https?://", text)


def test_hostile_names_stay_text():
    pod = PodRef('"><script>', "<ns>", "<pod>")
    share = ShareUsage("GPU-<id>", pod, "<box>", used_bytes=1)
    view = ExporterView(
        timestamp=0.0,
        node="<node>",
        interval=15.0,
        usage=usage_of(share),
        collectors=(),
        calls={},
        xids=(),
        build={"version": "<v>"},
        own={},
    )
    text = statuspage.render(view, 0.0, '"/<m>').decode()
    assert not re.search(r"<(script|box|id|ns|pod|node|v|m)>", text)


def marked(value):
    """The value with markup in every text of it, as if all that was read were a tenant's."""
    match value:
        case enum.Enum():
            return value
        case str():
            return f"{value}<mark>"
        case tuple() | list():
            return type(value)(map(marked, value))
        case dict():
            return {key: marked(each) for key, each in value.items()}
        case msgspec.Struct():
            fields = {name: marked(getattr(value, name)) for name in value.__struct_fields__}
            return structs.replace(value, **fields)
    return value


def test_no_text_that_was_read_is_markup(bench, monkeypatch):
    """Of GPUs, containers, collectors and problems."""
    view = marked(bench.sampler.sample().view)
    found = marked(tuple(problems(view)))
    assert found
    assert view.gpus
    monkeypatch.setattr(statuspage, "problems", lambda _: list(found))
    text = statuspage.render(view, 0.0, "/metrics<mark>").decode()
    assert "<mark>" not in text
    assert "&lt;mark&gt;" in text


@pytest.mark.parametrize(("used", "over"), [(100, False), (105, False), (106, True)])
def test_a_container_is_over_its_limit_beyond_the_tolerance_of_rule_and_alert(used, over):
    share = ShareUsage(
        "GPU-1", PodRef("u1", "", ""), "main", used_bytes=used * GIB, limit_bytes=100 * GIB
    )
    view = ExporterView(
        timestamp=0.0,
        node="n",
        interval=15.0,
        usage=usage_of(share),
        collectors=(),
        calls={},
        xids=(),
        build={},
        own={},
    )
    assert any("over its limit" in problem.text for problem in problems(view)) is over
    text = statuspage.render(view, 0.0, "/metrics").decode()
    assert ('class="n bad"' in text) is over


def test_the_demos_problems_in_words(bench):
    words = "\n".join(p.text for p in problems(bench.sampler.sample().view))
    assert "over its limit" in words
    assert "dead processes still claim" in words
    assert "held back for a higher priority" in words
    assert "is Failed: UnexpectedAdmissionError" in words
    assert "Orphaned region" in words


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (200 * 2**20, "200 MiB"), (2**31, "2.0 GiB")],
)
def test_sizes_for_people(count, text):
    assert short_size(count) == text
