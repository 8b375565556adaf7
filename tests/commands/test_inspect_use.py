"""`vgpu inspect --by` with what pods use: from a Prometheus, from exporters, and from nobody."""

import json
import re
from contextlib import contextmanager
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner

from tests.grafana.promtool import inputs, passes, renamed
from tests.support import sample_cluster as sample
from vgpu.model.units import GIB
from vgpu.quota.resources import CORES, MEMORY
from vgpu.web.message import HttpResponse
from vgpu.web.server import WebServer
from vgpucli.main import main
from vgpucli.measured_use import limit_query, queries

ITEMS = (
    sample.volcano_node("gpu-1", 1),
    sample.volcano_node("gpu-2", 3),
    sample.volcano_pod("a", "gpu-1", 1, 8192, 50),
    sample.volcano_pod("b", "gpu-2", 3, 4096, 20),
    sample.volcano_pod("c", "gpu-2", 4, 4096, namespace="dev"),
    sample.pod("d", limits=sample.volcano_limits(32000), namespace="dev"),
)
UID = {name: f"uid-of-{space}-{name}" for space, name in (("ml", "a"), ("ml", "b"), ("dev", "c"))}


def run(*words):
    return CliRunner().invoke(main, ["inspect", "--by", "namespace", *words])


def measured(result):
    assert result.exit_code == 0, result.output
    groups = json.loads(result.stdout)["groups"]
    return {group["name"]: group["measured"] for group in groups}


def notes(result):
    return json.loads(result.stdout)["notes"]


@contextmanager
def served(path, answer):
    """A server that answers ``path`` with what ``answer`` makes of the query; its URL."""
    server = WebServer({path: lambda request: answer(request.query)}, ["127.0.0.1:0"], None)
    server.start()
    try:
        yield f"http://{server.addresses[0]}"
    finally:
        server.stop(grace=1)


def prometheus(amounts, pod="", **more):
    """Prometheus' HTTP API with these amounts, by field and resource and pod."""
    fields = {query: field for field, query in queries(pod).items()}

    def answer(query):
        asked = fields[parse_qs(query)["query"][0]]
        series = [
            {"metric": {"pod_uid": UID.get(name, name)}, "value": [1.5, str(value)]}
            for name, value in amounts.get(asked, {}).items()
        ]
        data = {"resultType": "vector", "result": series}
        body = {"status": "success", "data": data, **more}
        return HttpResponse(200, (), json.dumps(body).encode())

    return served("/api/v1/query", answer)


def page(*pods, limited=()):
    """An exporter's page with these pods: (name, allocated and used GiB, cores, utilisation).

    ``limited`` are reasons of limits by the name of the pod.
    """
    limited = dict(limited)
    lines = ["vgpu_snapshot_timestamp_seconds 1"]
    for name, allocated, used, cores, busy in pods:
        labels = f'{{pod_uid="{UID.get(name, name)}",container="main",uuid="GPU-{name}"}}'
        values = {
            "memory_allocated_bytes": allocated * GIB,
            "memory_used_bytes": None if used is None else used * GIB,
            "core_allocated_ratio": cores,
            "sm_utilization_ratio": busy,
        }
        lines += [
            f"vgpu_container_{metric}{labels} {value}"
            for metric, value in values.items()
            if value is not None
        ]
        if name in limited:
            info = f'{labels[:-1]},limit_reason="{limited[name]}"}}'
            lines.append(f"vgpu_container_info{info} 1")
    return HttpResponse(200, (), "\n".join([*lines, ""]).encode())


USE = {
    ("used", MEMORY): {"a": 3 * GIB, "b": GIB, "somebody-else": 99 * GIB},
    ("idle", MEMORY): {"a": 5 * GIB, "b": 3 * GIB, "somebody-else": 99 * GIB},
    ("used", CORES): {"a": 0.25},
    ("idle", CORES): {"a": 0.25},
}
OF_ML = {
    "pods": 2,
    "usedMemoryBytes": 4 * GIB,
    "idleMemoryBytes": 8 * GIB,
    "usedCoresMilli": 250,
    "idleCoresMilli": 250,
}
NOTHING = {**dict.fromkeys(OF_ML), "pods": 0}


def test_a_prometheus_knows_the_pods_by_their_uid(source):
    with prometheus(USE) as url:
        result = run(*source, "--prometheus", url, "-o", "json")
    assert measured(result) == {"ml": OF_ML, "dev": NOTHING}


def test_exporters_know_the_pods_of_their_nodes(cluster):
    pages = page(("a", 8, 3, 0.5, 0.25)), page(("b", 4, 1, None, None), ("c", 4, None, 1, None))
    with served("/metrics", lambda _: pages[0]) as one, served("/metrics", lambda _: pages[1]) as b:
        result = run(*cluster, "--exporter", one, "--exporter", b, "-o", "json")
    assert measured(result) == {"ml": OF_ML, "dev": NOTHING}


def test_who_is_over_its_share_makes_up_for_no_other(cluster):
    with served("/metrics", lambda _: page(("a", 8, 9, 0.5, 0.9), ("b", 4, 1, 0.2, 0.1))) as url:
        found = measured(run(*cluster, "--exporter", url, "-o", "json"))["ml"]
    assert (found["usedMemoryBytes"], found["idleMemoryBytes"]) == (10 * GIB, 3 * GIB)
    assert (found["usedCoresMilli"], found["idleCoresMilli"]) == (1000, 100)


def test_the_table_has_a_column_for_how_many_are_measured(cluster):
    with prometheus({("used", MEMORY): {"a": GIB}, ("idle", MEMORY): {"a": 7 * GIB}}) as url:
        lines = run(*cluster, "--prometheus", url).stdout.splitlines()
    assert lines[0].split()[-4:] == ["USED", "IDLE", "MEASURED", "QUOTA"]
    dev, ml = (line.split() for line in lines[1:3])
    assert ml[-6:] == ["1.0", "GiB", "7.0", "GiB", "1/2", "-"]
    assert dev[-4:] == ["-", "-", "0/1", "-"]


def test_without_a_server_no_number_is_made_up_and_that_is_reported(source):
    result = run(*source, "-o", "json")
    assert measured(result) == {"ml": None, "dev": None}
    assert "used and idle are not shown" in notes(result)[-1]
    assert "USED" not in run(*source).stdout.splitlines()[0]


def test_what_a_server_lacks_is_a_note(cluster):
    with prometheus({}, warnings=["store is gone"]) as url:
        texts = notes(run(*cluster, "--prometheus", url, "-o", "json"))
    assert f"{url}: store is gone" in texts
    assert f"{url} has no measurement of vgpu's exporters" in texts


def test_an_exporter_that_does_not_answer_is_named_and_the_others_count(cluster):
    with served("/metrics", lambda _: page(("a", 8, 3, 0.5, 0.25))) as url:
        result = run(*cluster, "--exporter", url, "--exporter", "http://127.0.0.1:1", "-o", "json")
    assert measured(result)["ml"]["pods"] == 1
    assert any("127.0.0.1:1: connection refused" in note for note in notes(result))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"<html>", "not an answer of Prometheus' HTTP API"),
        (b'{"data": {"result": [{"metric": 5}]}}', "not an answer of Prometheus' HTTP API"),
        (None, "HTTP status 404: --prometheus is the address without /api/v1"),
    ],
)
def test_what_is_no_prometheus_is_one_clear_line(cluster, body, problem):
    path = "/api/v1/query" if body else "/other"
    with served(path, lambda _: HttpResponse(200, (), body or b"")) as url:
        result = run(*cluster, "--prometheus", url)
    assert result.exit_code == 1
    assert result.output.strip().splitlines()[-1] == f"Error: {url}: {problem}"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--prometheus", "x", "--exporter", "y"], "--prometheus and --exporter: choose one"),
        (["--username", "x"], "need --prometheus or --exporter"),
        (["--prometheus", "ftp://x"], "--prometheus 'ftp://x': give http://HOST:PORT"),
        (["--exporter", "http://u:p@x"], "--exporter: a password in it would be seen"),
    ],
)
def test_flags_that_do_not_fit_are_refused(dump, words, problem):
    result = run(*dump, *words)
    assert result.exit_code == 2
    assert problem in result.output
    alone = CliRunner().invoke(main, ["inspect", *dump, "--prometheus", "x"])
    assert "--prometheus and --exporter need --by" in alone.output


# ---------------------------------------------------------------- vgpu explain


def last_step(words, url=None, flag="--prometheus"):
    asked = [f"{flag}={url}"] if url else []
    result = CliRunner().invoke(main, ["explain", "pod", "ml/a", *words, *asked, "-o", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["steps"][-1]["evidence"][-1]


def test_explain_has_what_the_pod_uses(cluster):
    of_a = {field: {"a": amounts["a"]} for field, amounts in USE.items()}
    used = "it uses 3.0 GiB of GPU memory and 25 % of a GPU's cores now; 5.0 GiB are idle"
    with prometheus(of_a, pod=UID["a"]) as url:
        assert last_step(cluster, url) == used
    with served("/metrics", lambda _: page(("a", 8, 3, 0.5, 0.25), ("b", 4, 1, 1, 1))) as url:
        assert last_step(cluster, url, "--exporter") == used
    with prometheus({}, pod=UID["a"]) as url:
        assert last_step(cluster, url) == "no exporter that was asked measures the pod"
    assert "holds 8.0 GiB" in last_step(cluster)


# ---------------------------------------------------------------- the queries, by promtool


def series(pod, container, gpu, **values):
    labels = f'{{pod_uid="{pod}",container="{container}",uuid="{gpu}"}}'
    return {f"vgpu_container_{name}{labels}": f"{value}x5" for name, value in values.items()}


SERIES = {
    **series("a", "one", "G1", memory_allocated_bytes=10, memory_used_bytes=4),
    **series("a", "one", "G2", memory_allocated_bytes=10, memory_used_bytes=12),
    **series("a", "two", "G1", memory_allocated_bytes=5),  # is not measured
    **series("a", "one", "G1", core_allocated_ratio=0.5, sm_utilization_ratio=0.1),
    **series("b", "one", "G3", memory_used_bytes=7),  # was allocated nothing that is known
}
RIGHT = {
    ("used", MEMORY): {"a": 16, "b": 7},
    ("idle", MEMORY): {"a": 6},
    ("used", CORES): {"a": 0.1},
    ("idle", CORES): {"a": 0.4},
}


@pytest.mark.parametrize(
    ("first", "second"),
    [(SERIES, SERIES), (renamed(SERIES), renamed(SERIES)), (SERIES, renamed(SERIES))],
    ids=["honor_labels", "exported_", "both"],
)
def test_the_queries_count_each_container_once_however_often_it_is_scraped(tmp_path, first, second):
    scraped = [
        *inputs(first, job="vgpu", instance="10.0.0.7:9394"),
        *inputs(second, job="vgpu-again", instance="gpu-7"),
    ]
    tests = [
        {
            "expr": query,
            "eval_time": "4m",
            "exp_samples": [
                {"labels": f'{{pod_uid="{pod}"}}', "value": value}
                for pod, value in RIGHT[field].items()
            ],
        }
        for field, query in queries().items()
    ]
    passes(tmp_path, {"input_series": scraped, "promql_expr_test": tests})


# ---------------------------------------------------------------- limits


def limited_page(reason):
    labels = f'pod_uid="{UID["a"]}",container="main"'
    lines = [
        "vgpu_snapshot_timestamp_seconds 1",
        f'vgpu_container_info{{{labels},scheme="volcano",limit_reason="{reason}"}} 1',
        f'vgpu_container_memory_used_bytes{{{labels},uuid="GPU-a"}} {GIB}',
    ]
    return HttpResponse(200, (), "\n".join([*lines, ""]).encode())


def invoke(*words):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_inspect_has_the_limit_of_each_share_if_an_exporter_is_asked(cluster):
    words = (*cluster, "--limits", "--exporter")
    with served("/metrics", lambda _: limited_page("limit_zero")) as url:
        shown = invoke("inspect", *words, url)
        document = json.loads(invoke("inspect", *words, url, "-o", "json"))
    (line,) = (line for line in shown.splitlines() if line.strip().startswith("ml/a"))
    assert line.split()[-1] == "missing"
    (other,) = (line for line in shown.splitlines() if line.strip().startswith("ml/b"))
    assert other.split()[-1] == "–"
    holdings = [
        holding
        for node in document["nodes"]
        for device in node["devices"]
        for holding in device["holdings"]
    ]
    limits = {
        each["pod"]["name"]: (each.get("limitState"), each.get("limitReason")) for each in holdings
    }
    assert limits == {"a": ("missing", "limit_zero"), "b": (None, None), "c": (None, None)}
    assert "LIMIT" not in invoke("inspect", *cluster)


@pytest.mark.parametrize("width", [80, 85, 90, 200])
def test_the_column_of_limits_stands_in_its_line(cluster, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # names are cut as in a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    with served("/metrics", lambda _: limited_page("limit_zero")) as url:
        shown = re.sub(
            r"\x1b\[[0-9;]*m", "", invoke("inspect", *cluster, "--limits", "--exporter", url)
        )
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    (header,) = (line for line in lines if line.endswith(" LIMIT"))
    (line,) = (line for line in lines if line.rstrip().endswith("missing"))
    assert line.index("missing") == header.index("LIMIT")


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("limit_zero", "failed"),
        ("library_mapped", "passed"),
        ("no_process", "not_checked"),
        ("of_a_newer_exporter", "not_checked"),
    ],
)
def test_explain_has_the_step_limited_if_an_exporter_is_asked(cluster, reason, outcome):
    words = ("explain", "pod", "ml/a", *cluster, "-o", "json")
    with served("/metrics", lambda _: limited_page(reason)) as url:
        steps = {
            step["step"]: step for step in json.loads(invoke(*words, "--exporter", url))["steps"]
        }
    assert steps["limited"]["outcome"] == outcome
    if outcome == "failed":  # the reason's text stands once
        assert steps["limited"]["evidence"] == ["main: missing"]
    assert "limited" not in {step["step"] for step in json.loads(invoke(*words))["steps"]}


def test_memory_that_nothing_limits_is_named_as_reserved_and_not_enforced(cluster):
    assert "reserved, not enforced" not in run(*cluster).stdout
    with served("/metrics", lambda _: limited_page("library_not_mapped")) as url:
        shown = run(*cluster, "--exporter", url).stdout
        groups = json.loads(run(*cluster, "--exporter", url, "-o", "json").stdout)["groups"]
    assert "ml: 8.0 GiB of GPU memory: reserved, not enforced" in shown.splitlines()
    assert {each["name"]: each.get("notEnforcedMemoryBytes") for each in groups} == {
        "ml": 8 * GIB,
        "dev": None,
    }


@pytest.mark.parametrize("rename", [dict, renamed], ids=["honor_labels", "exported_"])
def test_the_query_of_limits_counts_each_container_once(tmp_path, rename):
    info = {'vgpu_container_info{pod_uid="a",container="one",limit_reason="no_process"}': "1x5"}
    scraped = [
        *inputs(rename(info), job="vgpu", instance="10.0.0.7:9394"),
        *inputs(rename(info), job="vgpu-again", instance="gpu-7"),
    ]
    labels = '{pod_uid="a", container="one", limit_reason="no_process"}'
    expected = {
        "expr": limit_query("a"),
        "eval_time": "4m",
        "exp_samples": [{"labels": labels, "value": 1}],
    }
    passes(tmp_path, {"input_series": scraped, "promql_expr_test": [expected]})
