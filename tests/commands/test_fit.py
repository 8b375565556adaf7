"""`vgpu fit`: how many pods fit, where they go, and what drains, new nodes and quotas change."""

import json

import pytest
from click.testing import CliRunner

from tests.commands.test_explain import without_names
from tests.support import sample_cluster as sample
from vgpucli.main import main


def quota(namespace, **hard):
    entries = {f"requests.volcano.sh/vgpu-{key}": str(value) for key, value in hard.items()}
    metadata = {"name": "gpus", "namespace": namespace}
    spec = {"hard": entries}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec}


ITEMS = (
    sample.volcano_node("gpu-1", 1),
    sample.volcano_node("gpu-2", 3),
    sample.volcano_node("gpu-3", 5, cordoned=True),
    sample.volcano_pod("a", "gpu-1", 1, 20000, 30),
    sample.volcano_pod("b", "gpu-2", 3, 30000),
    sample.volcano_pod("c", "gpu-2", 4, 40000),
    quota("limited", number=3),
)
"""GPUs of 46068 MiB: 26068 and 46068 are free on gpu-1, 16068 and 6068 on gpu-2."""

OF_15_GB = ("--request", "volcano.sh/vgpu-number=1", "--request", "volcano.sh/vgpu-memory=15000")

DEPLOYMENT = """\
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: limited}
spec:
  replicas: 2
  template:
    spec:
      containers:
      - name: main
        resources: {limits: {volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 15k}}
"""


def run(*words, **options):
    return CliRunner().invoke(main, ("fit", *words), **options)


def fits(*words, **options):
    result = run(*words, "-o", "json", **options)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    return document, {
        node["name"]: {gpu["index"]: gpu["shares"] for gpu in node["gpus"]}
        for node in document["nodes"]
    }


def test_all_pods_that_fit_are_counted_by_node_and_gpu(source):
    document, nodes = fits(*source, *OF_15_GB)
    assert (document["pods"], document["complete"]) == (5, True)
    assert nodes == {"gpu-1": {0: 1, 1: 3}, "gpu-2": {0: 1}}
    assert document["excludedNodes"] == {"gpu-3": "cordoned"}


def test_the_text_has_nodes_and_reasons(dump):
    lines = run(*dump, *OF_15_GB).output.splitlines()
    assert lines[0] == "5 pods fit (main: 1 GPU with 14.6 GiB)"
    assert "gpu-1  4     GPU 0: 1, GPU 1: 3" in lines
    assert "  1 node: the node is cordoned" in lines


def test_what_does_not_fit_has_the_reason_of_the_schedulers_event(dump):
    too_large = (
        "--request",
        "volcano.sh/vgpu-number=2",
        "--request",
        "volcano.sh/vgpu-memory=40000",
    )
    result = run(*dump, *too_large)
    assert result.exit_code == 0
    assert "0 pods fit" in result.output
    assert (
        "2 nodes: no GPU has enough free memory (2 shares of 39.1 GiB (40000 MiB) requested"
        in result.output
    )


def test_a_number_of_pods_is_placed_where_the_scores_are_best(dump):
    document, nodes = fits(*dump, *OF_15_GB, "--pods", "2")
    assert (document["pods"], document["wanted"], document["complete"]) == (2, 2, False)
    assert sum(sum(gpus.values()) for gpus in nodes.values()) == 2
    document, _ = fits(*dump, *OF_15_GB, "--pods", "9")
    assert (document["pods"], document["complete"]) == (5, True)
    assert document["rejection"]
    assert "9 pods requested, 5 fit" in run(*dump, *OF_15_GB, "--pods", "9").output


def test_with_the_policy_spread_two_pods_are_on_two_nodes(dump):
    _, packed = fits(*dump, *OF_15_GB, "--pods", "2")
    _, spread = fits(*dump, *OF_15_GB, "--pods", "2", "--node-policy", "spread")
    assert packed != spread


@pytest.mark.parametrize(("policy", "gpu"), [("binpack", 0), ("spread", 1)])
def test_the_policy_of_gpus_chooses_the_gpu_of_a_node(dump, policy, gpu):
    """The second pod goes to gpu-1, whose GPU 0 is in use and has room, too."""
    _, nodes = fits(*dump, *OF_15_GB, "--pods", "2", "--gpu-policy", policy)
    assert nodes == {"gpu-2": {0: 1}, "gpu-1": {gpu: 1}}


def test_a_quota_of_the_namespace_limits_the_number(source):
    document, _ = fits(*source, *OF_15_GB, "--namespace", "limited")
    assert document["pods"] == 3
    assert "quota" in document["rejection"]


def test_a_node_more_takes_pods_as_an_idle_one(dump):
    document, nodes = fits(*dump, *OF_15_GB, "--add-node", "gpu-3=2")
    assert document["pods"] == 5 + 2 * 6
    assert nodes["gpu-3+1"] == {0: 3, 1: 3}


def test_pods_of_a_drained_node_take_the_place_of_others(source):
    document, nodes = fits(*source, *OF_15_GB, "--drain", "gpu-2")
    moved = {pod["name"]: (pod["source"], pod["target"]) for pod in document["moved"]}
    assert moved == {"b": ("gpu-2", "gpu-1"), "c": ("gpu-2", "")}
    assert document["excludedNodes"] == {"gpu-2": "drained", "gpu-3": "cordoned"}
    assert document["pods"] == 2
    assert set(nodes) == {"gpu-1"}
    text = run(*source, *OF_15_GB, "--drain", "gpu-2").output
    assert "Of the drained nodes' 2 pods with GPUs, 1 fit elsewhere." in text
    assert "ml/c of gpu-2 does not: 1 node: no GPU has enough free memory" in text


def test_a_unit_of_memory_is_what_the_flag_has(dump):
    asked = ("--request", "volcano.sh/vgpu-number=1", "--request", "volcano.sh/vgpu-memory=1500")
    document, _ = fits(*dump, *asked, "--volcano.memory-factor", "10")
    assert document["demand"] == "main: 1 GPU with 14.6 GiB"


def test_the_pods_of_a_manifest_have_its_namespace_and_quantities(dump, tmp_path):
    path = tmp_path / "web.yaml"
    path.write_text(DEPLOYMENT)
    document, _ = fits(*dump, "-f", str(path))
    assert document["pods"] == 3, "by the quota of its namespace"
    assert document["demand"] == "main: 1 GPU with 14.6 GiB"
    document, _ = fits(*dump, "-f", "-", input=DEPLOYMENT.replace("limited", "free"))
    assert document["pods"] == 5


def test_more_pods_like_one_of_the_cluster(source):
    document, _ = fits(*source, "--pod", "ml/a")
    assert document["demand"] == "main: 1 GPU with 19.5 GiB and 30 % of the cores"
    assert document["pods"] == 3


def test_pods_of_an_exclusive_rule_share_no_gpu(dump, tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text(DEPLOYMENT.replace("    spec:", "    metadata: {labels: {app: a}}\n    spec:"))
    words = (*dump, "-f", str(path), "--no-quotas")
    assert fits(*words)[0]["pods"] == 5
    document, nodes = fits(*words, "--volcano.exclusive-rule", "app=a")
    assert document["pods"] == 3
    assert nodes == {"gpu-1": {0: 1, 1: 1}, "gpu-2": {0: 1}}
    _, nodes = fits(*words, "--volcano.exclusive-rule", "app=b")
    assert nodes == fits(*words)[1]


def test_without_quotas_the_number_is_that_of_the_gpus(source):
    document, _ = fits(*source, *OF_15_GB, "--namespace", "limited", "--no-quotas")
    assert document["pods"] == 5


def test_an_api_server_is_asked_for_what_the_question_needs(cluster, requests):
    fits(*cluster, *OF_15_GB, "--namespace", "limited")
    pods_and_nodes = ["/api/v1/nodes", "/api/v1/pods"]
    assert without_names(requests) == [
        *pods_and_nodes,
        "/api/v1/namespaces/limited",
        "/api/v1/namespaces/limited/resourcequotas",
    ]
    requests.clear()
    fits(*cluster, *OF_15_GB, "--no-quotas")
    assert without_names(requests) == pods_and_nodes


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        ((), 2, "name the pods by one of --filename, --request and --pod"),
        ((*OF_15_GB, "--pod", "ml/a"), 2, "one of --filename, --request and --pod"),
        (("--request", "gpu"), 2, "'gpu' is not RESOURCE=UNITS"),
        (("--request", "gpu=0"), 2, "'gpu=0' is not RESOURCE=UNITS"),
        ((*OF_15_GB, "--defragment"), 2, "--defragment needs --pods"),
        ((*OF_15_GB, "--volcano.exclusive-rule", "app"), 2, "'app' is not KEY=VALUE"),
        ((*OF_15_GB, "--add-node", "gpu-1=9999"), 2, "is not NODE or NODE=NUMBER up to 1000"),
        ((*OF_15_GB, "--add-node", "gpu-9"), 1, "there is no node 'gpu-9'. Is it gpu-"),
        ((*OF_15_GB, "--drain", "gpu-9"), 1, "there is no node 'gpu-9'. Is it gpu-"),
        (("--pod", "a"), 1, "--pod a: there is no such pod that shares GPUs"),
        (("--request", "cpu=1"), 1, "the pod requests no GPU"),
        ((*OF_15_GB, "--request", "amd.com/gpu=1"), 1, "requests amd.com/gpu"),
        (
            (*OF_15_GB, "--request", "volcano.sh/vgpu-memory-percentage=102"),
            1,
            "vgpu-memory-percentage: container main: not a percentage of 1 to 100: '102'",
        ),
        (("-f", "nowhere.yaml"), 1, "--filename nowhere.yaml: No such file or directory"),
    ],
)
def test_a_wrong_question_has_one_clear_line(dump, words, status, complaint):
    result = run(*dump, *words)
    assert (result.exit_code, complaint in result.output) == (status, True), result.output


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a: [", "it is not YAML"),
        ("kind: Service\n", "one pod that requests shared GPUs is needed, found: none"),
        (f"{DEPLOYMENT}---\n{DEPLOYMENT}", "found: limited/web, limited/web"),
        ("spec: {containers: 5}", "m.yaml"),
        ("[" * 5000, "it is not YAML"),
    ],
)
def test_a_wrong_manifest_has_one_line_with_its_name(dump, tmp_path, content, complaint):
    path = tmp_path / "m.yaml"
    path.write_text(content)
    result = run(*dump, "-f", str(path))
    assert result.exit_code == 1
    assert complaint in result.output
    assert str(path) in result.output
    assert len(result.output.splitlines()) <= 2


@pytest.mark.parametrize(
    ("memory", "texts"),
    [
        ("8Gi", ("counts MiB", "write volcano.sh/vgpu-memory: 8192, which is 8.0 GiB")),
        (str(2**31 - 1), ("counts MiB", "write volcano.sh/vgpu-memory: 2048")),
    ],
)
def test_an_amount_that_is_meant_in_bytes_has_what_to_write(dump, memory, texts):
    manifest = DEPLOYMENT.replace("15k", memory)
    result = run(*dump, "-f", "-", "--no-quotas", input=manifest)
    for text in texts:
        assert text in result.output
