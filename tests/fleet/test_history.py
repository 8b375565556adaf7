"""What was used over the last hours: lines of a Prometheus on pages of pods, GPUs, namespaces."""

import json
import os
import re
from urllib.parse import parse_qs

import pytest

from fleet.history import FRESH_SECONDS, RANGES, History, line_query, of_namespace
from tests.commands.test_inspect_use import ITEMS, served
from tests.fleet.pages_of_dump import get, site_of
from tests.grafana.promtool import inputs, passes, renamed
from tests.support.sample_cluster import NOW
from vgpu.model.units import GIB
from vgpu.sources.http_access import ClientOptions
from vgpu.web.message import HttpResponse

WANTED = {"used": 5, "limit": 8}


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    path = tmp_path_factory.mktemp("history") / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(ITEMS)}))
    os.utime(path, (NOW, NOW))
    return str(path)


class Server:
    """A Prometheus with some lines; ``asked`` are the parameters of each question."""

    def __init__(self, lines, status=200):
        self.lines, self.status, self.asked = lines, status, []

    def answer(self, query):
        self.asked.append({name: text for name, (text,) in parse_qs(query).items()})
        result = [
            {"metric": {"line": name}, "values": [[NOW + at, str(value)] for at, value in points]}
            for name, points in self.lines.items()
        ]
        body = {"status": "success", "data": {"resultType": "matrix", "result": result}}
        return HttpResponse(self.status, (), json.dumps(body).encode())


class Clock:
    """The time that a test sets."""

    now = NOW

    def __call__(self):
        return self.now


LINES = {
    "used": [(-3600, GIB), (-3570, 3 * GIB), (-1800, 2 * GIB), (-1770, "NaN"), (0, GIB)],
    "limit": [(-3600, 8 * GIB), (0, 8 * GIB)],
}


def shown(dump, server, path, clock):
    with served("/api/v1/query_range", server.answer) as url:
        site = site_of(dump, history=History(url, ClientOptions(), clock))
        name, _, query = path.partition("?")
        html = get(site, path).body.decode()
        return site, html, json.loads(get(site, f"{name}.json?{query}").body)["history"]


def paths_of(dump):
    nodes = json.loads(get(site_of(dump), "/nodes.json").body)["rows"]
    uuid = next(row for row in nodes if row["node"]["name"] == "gpu-1")["node"]["devices"][0][
        "uuid"
    ]
    return "/pods/ml/a", "/namespaces/ml", f"/gpus/gpu-1/{uuid}"


def test_pods_gpus_and_namespaces_have_their_lines(dump):
    for path in paths_of(dump):
        server = Server(LINES)
        _, html, view = shown(dump, server, f"{path}?range=1h", Clock())
        assert view["newestUsedBytes"] == GIB
        assert view["largestUsedBytes"] == 3 * GIB
        assert view["newestLimitBytes"] == 8 * GIB
        assert html.count('<polyline class="used"') == 3  # where values miss, there is no line
        assert len(server.asked) == 1  # the page and its JSON


@pytest.mark.parametrize("name", RANGES)
def test_a_line_is_asked_for_its_range_in_bounded_steps(dump, name):
    server = Server(LINES)
    _, html, view = shown(dump, server, f"/pods/ml/a?range={name}", Clock())
    (asked,) = server.asked
    assert float(asked["end"]) - float(asked["start"]) == RANGES[name]
    assert RANGES[name] / float(asked["step"]) <= 120
    assert re.search(rf'range={name}" aria-current', html)
    assert view["range"] == name


def test_an_unknown_range_is_the_first_one(dump):
    _, _, view = shown(dump, Server(LINES), "/pods/ml/a?range=99y", Clock())
    assert view["range"] == "1h"


def test_an_answer_is_kept_for_a_minute_and_a_failure_is_not(dump):
    clock, server = Clock(), Server(LINES, 500)
    with served("/api/v1/query_range", server.answer) as url:
        site = site_of(dump, history=History(url, ClientOptions(), clock))
        for number in (1, 2):
            body = get(site, "/pods/ml/a").body.decode()
            assert "No history" in body
            assert "HTTP status 500" in body
            assert len(server.asked) == number
        server.status = 200
        for _ in range(3):
            assert "<polyline" in get(site, "/pods/ml/a").body.decode()
        assert len(server.asked) == 3
        clock.now += FRESH_SECONDS
        assert "<polyline" in get(site, "/pods/ml/a").body.decode()
        assert len(server.asked) == 4


@pytest.mark.parametrize("lines", [{}, {"limit": LINES["limit"]}, {"used": [(0, "NaN")]}])
def test_without_a_measurement_there_is_no_line(dump, lines):
    _, html, view = shown(dump, Server(lines), "/pods/ml/a", Clock())
    assert "has no measurement of it" in view["problem"]
    assert "<polyline" not in html


def test_without_a_prometheus_there_is_no_history(dump):
    assert json.loads(get(site_of(dump), "/pods/ml/a.json").body)["history"] is None
    assert "Memory used" not in get(site_of(dump), "/pods/ml/a").body.decode()


def test_a_container_counts_once_however_a_scrape_names_it(tmp_path):
    one, other = 'pod_uid="a",container="one",uuid="G"', 'pod_uid="b",container="one",uuid="G"'
    own = {
        f'vgpu_container_memory_used_bytes{{{one},namespace="ml"}}': "5x5",
        f'vgpu_container_memory_limit_bytes{{{one},namespace="ml"}}': "8x5",
        f'vgpu_container_memory_used_bytes{{{other},namespace="dev"}}': "7x5",
    }
    scraped = [
        *inputs(own, job="vgpu", instance="10.0.0.7:9394"),
        *inputs(renamed(own), job="vgpu-again", instance="gpu-7"),
    ]
    samples = [{"labels": f'{{line="{name}"}}', "value": value} for name, value in WANTED.items()]
    expected = {
        "expr": line_query(of_namespace("ml")),
        "eval_time": "4m",
        "exp_samples": samples,
    }
    passes(tmp_path, {"input_series": scraped, "promql_expr_test": [expected]})
