"""`vgpu inspect` of some pods, in an order, again and again; the demo's API server beside it."""

import json
import os

import pytest
from click.testing import CliRunner

from reconciler.commands import apply as apply_module
from simulator.apiserver import ApiServer
from simulator.store import ObjectStore
from tests.support import sample_cluster as sample
from tests.support.sample_cluster import NOW
from vgpu.kube.kinds import NODES, PODS
from vgpucli.inspect import command as inspect_module
from vgpucli.main import main

ITEMS = (
    sample.volcano_node("gpu-1", 1),
    sample.volcano_node("gpu-2", 3),
    sample.volcano_node("gpu-3", 5),
    sample.volcano_pod("a", "gpu-1", 1, 1000, labels={"app": "web"}),
    sample.volcano_pod("b", "gpu-2", 3, 30000, namespace="dev", labels={"app": "train"}),
    sample.volcano_pod("c", "gpu-2", 4, 2000, labels={"app": "train"}),
    sample.pod("d", limits=sample.volcano_limits(32000), namespace="dev"),
)


def run(*words, **options):
    return CliRunner().invoke(main, words, **options)


@pytest.fixture
def dump(tmp_path):
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(sample.dump(ITEMS)))
    os.utime(path, (NOW, NOW))
    return str(path)


@pytest.fixture
def kubeconfig(tmp_path):
    store = ObjectStore()
    for item in sample.dump(ITEMS)["items"]:
        store.create(NODES if item["kind"] == "Node" else PODS, item)
    path = tmp_path / "kubeconfig"
    with ApiServer(store) as api:
        path.write_text(api.kubeconfig())
        yield str(path)


def seen(result):
    """Nodes with their pods, and the pending pods."""
    document = json.loads(result.stdout)
    nodes = {
        node["name"]: [
            holding["pod"]["name"] for gpu in node["devices"] for holding in gpu["holdings"]
        ]
        for node in document["nodes"]
    }
    return nodes, [pending["pod"]["name"] for pending in document["pending"]]


@pytest.mark.parametrize("source", ["dump", "kubeconfig"])
@pytest.mark.parametrize(
    ("flags", "nodes", "pending"),
    [
        (["-n", "dev"], {"gpu-2": ["b"]}, ["d"]),
        (["-n", "dev", "-n", "ml"], {"gpu-1": ["a"], "gpu-2": ["b", "c"]}, ["d"]),
        (["-l", "app=train"], {"gpu-2": ["b", "c"]}, []),
        (["-l", "app=train", "-n", "ml"], {"gpu-2": ["c"]}, []),
        (["-l", "app=none"], {}, []),
    ],
)
def test_some_pods_are_shown_with_their_gpus(request, source, flags, nodes, pending):
    where = {"dump": "--from", "kubeconfig": "--kubeconfig"}[source]
    path = request.getfixturevalue(source)
    assert seen(run("inspect", where, path, "-o", "json", *flags)) == (nodes, pending)


def test_the_sums_of_a_gpu_are_those_of_all_pods(dump):
    result = run("inspect", "--from", dump, "-o", "json", "-l", "app=web")
    (gpu,) = json.loads(result.stdout)["nodes"][0]["devices"]
    assert gpu["memoryHeldBytes"] == 1000 * 1024**2


@pytest.mark.parametrize(
    ("sort", "first"), [("name", "gpu-1"), ("free", "gpu-3"), ("held", "gpu-2")]
)
def test_nodes_have_an_order(dump, sort, first):
    nodes, _ = seen(run("inspect", "--from", dump, "-o", "json", "--sort", sort))
    assert next(iter(nodes)) == first


def test_memory_that_no_share_can_have_is_not_called_free(tmp_path):
    items = (
        sample.volcano_node("away", 1, ready=False),
        sample.volcano_node("closed", 3, cordoned=True),
        sample.volcano_node("half", 5, healthy=(True, False)),
        sample.volcano_node("good", 7),
    )
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(sample.dump(items)))
    lines = run("inspect", "--from", str(path), "--sort", "free").stdout.splitlines()
    heads = [line for line in lines if " GPUs · " in line]
    assert [head.split("GPUs · ")[1] for head in heads] == [
        "90.0 GiB free",
        "45.0 GiB free · 45.0 GiB unavailable",
        "90.0 GiB unavailable  NotReady",
        "90.0 GiB unavailable  cordoned",
    ]


def test_a_wrong_selector_is_a_wrong_flag(dump):
    result = run("inspect", "--from", dump, "-l", "a b")
    assert result.exit_code == 2
    assert "'-l' / '--selector': 'a b' is not a label selector such as app=web" in result.stderr


def test_watch_shows_the_cluster_again_until_ctrl_c(kubeconfig, monkeypatch):
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(inspect_module.time, "sleep", pause)
    result = run("inspect", "--kubeconfig", kubeconfig, "--watch", "--interval", "2s")
    assert result.exit_code == 130
    assert pauses == [2.0, 2.0, 2.0]
    assert result.stdout.count("3 nodes, 6 GPUs") == 3


def test_a_dump_cannot_be_watched(dump):
    result = run("inspect", "--from", dump, "--watch")
    assert result.exit_code == 2
    assert "--watch follows a cluster: drop --from" in result.stderr


# ---------------------------------------------------------------- beside it


def test_a_resource_is_set_and_removed_at_the_demos_api_server(kubeconfig):
    name = "example.com/gpu"
    set_ = run("node-resource", "set", "gpu-1", f"{name}=4", "--kubeconfig", kubeconfig, "--yes")
    assert set_.exit_code == 0, set_.output
    assert f"gpu-1: {name} none -> 4\nchanged\n" in set_.stdout
    again = run("node-resource", "set", "gpu-1", f"{name}=4", "--kubeconfig", kubeconfig, "--yes")
    assert "is 4 already" in again.stdout
    dry = run("node-resource", "unset", "gpu-1", name, "--kubeconfig", kubeconfig, "--dry-run")
    assert "nothing was changed" in dry.stdout
    gone = run("node-resource", "unset", "gpu-1", name, "--kubeconfig", kubeconfig, "--yes")
    assert f"{name} 4 -> none\nchanged" in gone.stdout


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_apply_that_is_answered_no_leaves_no_audit(kubeconfig, tmp_path, monkeypatch, answer):
    monkeypatch.setattr(apply_module, "agreed", lambda *_: None)
    audit = tmp_path / "audit.jsonl"
    words = ("reconcile", "apply", "--kubeconfig", kubeconfig, "--audit", str(audit))
    assert run(*words, input=answer).exit_code == 3
    assert not audit.exists()
    audit.write_text("")
    assert run(*words, input=answer).exit_code == 3
    assert audit.exists()  # it was there before
