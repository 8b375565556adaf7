"""The answers of the page: what is there, what is not, and what tenants have written."""

import json
import re
import shlex

import pytest
from click.testing import CliRunner

from fleet.keeper import Keeper, Kept
from fleet.main import flags_to_copy
from fleet.problems import SEVERITIES
from fleet.site import Site
from reconciler.reasons import Rule
from tests.fleet.pages_of_dump import get, site_of
from tests.support.sample_cluster import (
    gpushare_node,
    gpushare_pod,
    items,
    kubeshare_node,
    pod,
    real_pod,
    share_pod,
    unhealthy,
)
from vgpucli.main import main

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202egnp.exe&amp;\"'"


@pytest.fixture(scope="module")
def site(written):
    return site_of(written(items()))


def test_each_rule_has_a_severity():
    assert SEVERITIES.keys() == set(Rule)


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/pods/ml/nobody", "/nodes/no-node", "/gpus/a100-1/x", "/pods/ml", "/pods//x"],
)
def test_what_is_not_there_is_not_found(site, path):
    assert get(site, path).status == 404
    assert get(site, f"{path}.json").status == 404


def test_a_page_that_has_not_changed_is_not_sent_again(site):
    first = get(site, "/nodes")
    etag = dict(first.headers)["ETag"]
    again = get(site, "/nodes", **{"if-none-match": etag})
    assert (again.status, again.body) == (304, b"")
    assert get(site, "/nodes?sort=free", **{"if-none-match": etag}).status == 200


def test_filters_choose_and_order_nodes(site):
    def names(query):
        rows = json.loads(get(site, f"/nodes.json?{query}").body)["rows"]
        return [row["node"]["name"] for row in rows]

    everything = names("sort=name")
    assert everything == sorted(everything)
    assert names("text=A100&sort=name") == [each for each in everything if "a100" in each]
    assert names("system=gpushare") == ["infer-1"]
    assert set(names("state=problems")) | set(names("state=healthy")) == set(everything)
    assert names("sort=no-such&page=999999999") == names("page=-1") == names("")


def test_nothing_of_a_page_may_run_or_be_loaded_from_elsewhere(site):
    for path in ("/", "/index.json"):
        headers = dict(get(site, path).headers)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_names_and_messages_of_tenants_are_text(written):
    objects = [
        gpushare_node("node-1"),
        gpushare_pod("x" * 253, "node-1", 4, "one", phase="Pending"),
        pod(
            "bad",
            limits={"aliyun.com/gpu-mem": 500},
            unschedulable=HOSTILE,
            owner={
                "kind": "Job",
                "name": HOSTILE,
                "uid": "u",
                "controller": True,
            },
        ),
        gpushare_pod(HOSTILE, "node-1", 2, 0),
    ]
    site = site_of(written(objects))
    for path in ("/", "/pods", "/problems", "/pods/ml/bad", "/nodes/node-1"):
        answer = get(site, path)
        assert answer.status == 200
        body = answer.body.decode()
        assert "<img" not in body
        assert "\x1b" not in body
        assert "\u202e" not in body
        assert json.loads(get(site, f"{path if path != '/' else '/index'}.json").body)


def test_before_the_first_read_nothing_is_claimed():
    site = Site(Keeper(lambda: None, 0, ()), 0)
    assert get(site, "/").status == 503


def test_while_reads_fail_the_last_answer_stays_and_has_its_age(written, monkeypatch):
    path = written(items())
    site = site_of(path)
    kept = site._keeper.kept
    failed = Kept(kept.snapshot, kept.number, "the API server does not answer")
    monkeypatch.setattr(type(site._keeper), "kept", failed)
    body = get(site, "/").body.decode()
    assert "Out of date" in body
    assert "the API server does not answer" in body
    assert "2026-09-21 14:13:20 UTC" in body


def test_the_first_page_of_a_large_cluster_stays_small(written):
    nodes = [gpushare_node(f"node-{number}") for number in range(150)]
    pods = [
        gpushare_pod(f"p-{number}", f"node-{number}", 4, 0, namespace=f"team-{number}")
        for number in range(150)
    ]
    site = site_of(written([*nodes, *pods]))
    first = get(site, "/")
    assert len(first.body) < 100_000
    view = json.loads(get(site, "/index.json").body)
    assert (len(view["nodes"]["rows"]), view["nodes"]["total"]) == (20, 150)
    assert b"All <data" in first.body
    assert len(json.loads(get(site, "/nodes.json?page=2").body)["rows"]) == 50


@pytest.mark.parametrize("name", ["a.json", ".json", "a.json.json"])
def test_names_that_end_as_the_json_form_of_a_page_have_pages(written, name):
    site = site_of(written([gpushare_node("n.json"), gpushare_pod(name, "n.json", 4, 0)]))
    html = get(site, "/pods?tab=running").body.decode()
    (path,) = re.findall(r'href="(/pods/ml/[^"]*)"', html)
    shown = get(site, path)
    assert dict(shown.headers)["Content-Type"].startswith("text/html")
    assert json.loads(get(site, f"{path}.json").body)["explanation"]["name"] == f"ml/{name}"
    (json_path,) = re.findall(r'<a href="([^"]+)">JSON</a>', shown.body.decode())
    assert json_path == f"{path}.json"
    assert get(site, "/nodes/n%2Ejson").status == 200


def test_a_command_to_copy_reads_what_the_page_reads(written):
    path = written([gpushare_node("g"), unhealthy("g", "3")])
    given = {"kubeconfig": "", "context": "", "gpushare_unit": 1 << 30, "volcano_factor": 1}
    flags = flags_to_copy({**given, "files": (path,)})
    assert flags == ("--from", path, "--gpushare.memory-unit", "1024MiB")
    live = {**given, "files": (), "kubeconfig": "k c", "context": "b", "gpushare_unit": "auto"}
    assert flags_to_copy(live) == ("--kubeconfig", "k c", "--context", "b")
    site = site_of(path, flags=flags)
    (problem,) = json.loads(get(site, "/problems.json").body)["problems"]
    assert problem["command"].startswith("vgpu explain gpu g/3 --from")
    answer = CliRunner().invoke(main, shlex.split(problem["command"])[1:])
    assert answer.exit_code in (0, 1), answer.output
    assert "g/3" in answer.output
    (asked,) = json.loads(get(site, "/fit.json?memory=1").body)["systems"]
    assert shlex.split(asked["command"])[-len(flags) :] == list(flags)


def test_free_memory_that_pods_on_an_unknown_gpu_may_hold_is_named_wherever_it_is_shown(written):
    share = share_pod("a", "n", "0.4", 4 << 30, gpuid="vgpu1")
    site = site_of(written([kubeshare_node("n", 31), share, real_pod(share)]))
    assert json.loads(get(site, "/index.json").body)["sentence"]["maybeHeldBytes"] == 4 << 30
    (gpu,) = set(re.findall(r'href="(/gpus/[^"]*)"', get(site, "/nodes").body.decode()))
    for path, times in (("/", 3), ("/nodes", 1), (gpu, 1)):
        html = get(site, path).body.decode()
        assert len(re.findall("held by pods on an unknown GPU", html)) == times, path
