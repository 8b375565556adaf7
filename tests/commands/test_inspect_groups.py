"""`vgpu inspect --by`: what namespaces, teams and owners request and hold, and their quotas."""

import json

import pytest
from click.testing import CliRunner

from tests.support import sample_cluster as sample
from vgpucli.main import main

MIB = 1024**2


def namespace(name, labels=None, **annotations):
    annotations = {f"vgpu.dev/quota-{key}": value for key, value in annotations.items()}
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def quota(space, name, **hard):
    metadata = {"name": name, "namespace": space}
    entries = {f"requests.volcano.sh/vgpu-{key}": str(value) for key, value in hard.items()}
    spec = {"hard": entries}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec}


OWNER = {
    "kind": "ReplicaSet",
    "name": "web-5d8",
    "uid": "uid-of-web",
    "controller": True,
    "apiVersion": "apps/v1",
}

ITEMS = (
    sample.volcano_node("gpu-1", 1),
    sample.volcano_node("gpu-2", 3),
    sample.volcano_pod("a", "gpu-1", 1, 1000, 30, labels={"team": "vision"}, owner=OWNER),
    sample.volcano_pod("b", "gpu-2", 3, 30000, namespace="dev"),
    sample.volcano_pod("c", "gpu-2", 4, 2000, bind="allocating"),
    sample.pod("d", limits=sample.volcano_limits(32000), namespace="dev"),
    sample.gpushare_node("old"),
    sample.gpushare_pod("e", "old", 4, 0, namespace="dev"),
    namespace("ml", memory="2Gi", gpus="10"),
    namespace("dev", {"team": "nlp"}),
    namespace("idle", memory="1Gi"),
    namespace("none"),
    quota("dev", "high", memory=99000),
    quota("dev", "low", memory=62000),
)

ML = {
    "requested": {"gpus": 2, "memoryBytes": 3000 * MIB, "coresMilli": 300},
    "assigned": {"gpus": 1, "memoryBytes": 1000 * MIB, "coresMilli": 300},
    "assumed": {"gpus": 1, "memoryBytes": 2000 * MIB, "coresMilli": 0},
}


def run(*words, **options):
    return CliRunner().invoke(main, words, **options)


def groups(result):
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    return {group["name"]: group for group in document["groups"]}


def test_each_namespace_has_what_its_pods_request_and_hold_and_its_quota(source):
    found = groups(run("inspect", *source, "--by", "namespace", "-o", "json"))
    assert list(found) == ["dev", "idle", "ml"], "a quota without pods is shown, too"
    assert {key: found["ml"][key] for key in ML} == ML
    assert (found["ml"]["pods"], found["ml"]["waitingPods"]) == (2, 0)
    used = {limit["resource"]: (limit["used"], limit["limit"]) for limit in found["ml"]["quota"]}
    assert used == {"gpus": (2, 10), "memory": (3000 * MIB, 2048 * MIB)}
    dev = found["dev"]
    assert dev["waiting"]["memoryBytes"] == 32000 * MIB
    assert dev["assigned"]["gpus"] == 2
    (limit,) = dev["quota"]
    assert (limit["resource"], limit["limit"]) == ("volcano.sh/vgpu-memory", 62000)
    assert limit["used"] == 30000, "a pod that waits holds nothing"
    assert limit["contradictedBy"] == ["ResourceQuota dev/high, requests.volcano.sh/vgpu-memory"]


def test_a_pods_team_is_its_own_or_that_of_its_namespace(source):
    found = groups(run("inspect", *source, "--by", "team", "-o", "json"))
    assert {name: group["pods"] for name, group in found.items()} == {"nlp": 3, "vision": 1, "": 1}
    assert list(found)[-1] == ""
    assert groups(
        run("inspect", *source, "--by", "team", "--team-key", "x", "-o", "json")
    ).keys() == {""}


def test_a_pods_owner_is_its_controller_or_itself(source):
    found = groups(run("inspect", *source, "--by", "owner", "-o", "json"))
    assert set(found) == {
        "ml/ReplicaSet/web-5d8",
        "ml/Pod/c",
        "dev/Pod/b",
        "dev/Pod/d",
        "dev/Pod/e",
    }


def test_some_namespaces_alone(source):
    assert groups(
        run("inspect", *source, "--by", "namespace", "-n", "ml", "-o", "json")
    ).keys() == {"ml"}


def test_the_table_names_the_tightest_limit_and_what_is_wrong(source):
    result = run("inspect", *source, "--by", "namespace")
    lines = result.stdout.splitlines()
    assert lines[0].split() == (
        ["NAMESPACE", "PODS", "WAITING", "GPUS", "MEMORY", "RESERVED", "CORES", "QUOTA"]
    )
    (ml,) = (line for line in lines if line.startswith("ml "))
    assert "2/2" in ml
    assert "2.9 GiB/2.9 GiB" in ml
    assert ml.endswith("memory 2.9 GiB/2.0 GiB EXCEEDED")
    assert any(
        line.startswith("! ml: over its quota: memory: 2.9 GiB (3000 MiB) of 2.0 GiB")
        for line in lines
    )
    assert any("is contradicted by 99000 (ResourceQuota dev/high" in line for line in lines)


def test_an_empty_cluster_is_reported(tmp_path):
    path = tmp_path / "empty.json"
    path.write_text(json.dumps(sample.dump([sample.node("n")])))
    result = run("inspect", "--from", str(path), "--by", "owner")
    assert result.stdout.splitlines()[0] == "No pod shares GPUs."


def test_yaml_and_json_have_the_same(dump):
    yaml = run("inspect", *dump, "--by", "namespace", "-o", "yaml").stdout
    assert "kind: InventoryGroups" in yaml
    assert "waitingPods: 1" in yaml


@pytest.mark.parametrize("words", [["gpu-1"], ["--scheme", "volcano"], ["--sort", "free"]])
def test_what_does_not_go_with_groups_is_refused(dump, words):
    result = run("inspect", *dump, "--by", "team", *words)
    assert result.exit_code == 2
    assert "--by sums up the whole cluster" in result.output


def test_gpu_admissions_quota_is_read_from_a_dump(tmp_path):
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "gpuquota", "namespace": "kube-system"},
        "data": {"gpu_quota": '{"ml": {"quota": {"M40": 1}}}'},
    }
    node = sample.gaia_node("gaia-1")
    node["metadata"]["labels"]["gaia.tencent.com/gpu-model"] = "M40"
    pods = [sample.gaia_pod(name, "gaia-1", 100, 0, gpu) for gpu, name in enumerate("xy")]
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(sample.dump([node, *pods, config])))
    found = groups(run("inspect", "--from", str(path), "--by", "namespace", "-o", "json"))
    (limit,) = found["ml"]["quota"]
    assert (limit["resource"], limit["model"]) == ("tencent.com/vcuda-core", "M40")
    assert (limit["used"], limit["limit"]) == (200, 100)
    assert found["ml"]["assigned"]["gpus"] == 2
    assert found["ml"]["requested"]["memoryBytes"] == found["ml"]["assigned"]["memoryBytes"] > 0
