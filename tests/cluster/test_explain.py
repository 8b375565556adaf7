"""`vgpu explain` on a real API server, with exactly the rights that its page lists."""

import json
import re

import pytest
from click.testing import CliRunner

from tests.cluster.reconciling import staged
from tests.reconciler.samples import node, pod
from tests.support import kai_player
from tests.support.bed import crds, objects
from tests.support.environment import ROOT
from vgpu.kube.kai_groups import KAI_KINDS
from vgpucli.main import main

OUTPUT = ("-o", "json", "--gpushare.memory-unit", "GiB")
MEMORY = {"vgpu.dev/quota-memory": "100Gi"}


@pytest.fixture(scope="module", autouse=True)
def share_pods(api):
    crds.load(api.client, crds.SHARE_POD)


def listed_rights():
    """The rules of docs/explain.md's table of rights."""
    text = (ROOT / "docs" / "explain.md").read_text()
    row = re.compile(r"^\| `((?:get|list|, )+)` \| `(\w+)(?:\.([\w.]+))?` \|", re.MULTILINE)
    for verbs, resource, group in row.findall(text):
        yield {"apiGroups": [group], "resources": [resource], "verbs": verbs.split(", ")}


@pytest.fixture(scope="module")
def reader(api):
    rights = [*listed_rights()]
    assert len(rights) == 15
    return api.client_for(*rights)


@pytest.fixture
def stage(api, api_namespace):
    """A node, two pods on it, one that waits, and the quota of their namespace."""
    path = f"/api/v1/namespaces/{api_namespace}"
    api.client.patch(path, {"metadata": {"annotations": MEMORY}})
    with staged(api.client) as stage:
        stage.put(node("gpu-1"), node("gpu-2"))
        stage.put(
            pod("runs", namespace=api_namespace),
            pod("beside", namespace=api_namespace, node="gpu-2"),
            pod("waits", namespace=api_namespace, node="", claim=None),
        )
        yield api_namespace


def run(client, *words):
    command = ["explain", *words, "--kubeconfig", str(client.kubeconfig), *OUTPUT]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def outcomes(document):
    return {step["step"]: step["outcome"] for step in document["steps"]}


def evidence(document, name):
    return next(step["evidence"] for step in document["steps"] if step["step"] == name)


def test_the_rights_of_the_page_suffice_and_the_answers_are_those_of_a_dump(
    api, reader, stage, tmp_path
):
    kinds = ("nodes", "pods", "namespaces", "resourcequotas", "configmaps")
    items = [
        {"apiVersion": "v1", "kind": found["kind"].removesuffix("List"), **item}
        for found in (api.client.get(f"/api/v1/{kind}") for kind in kinds)
        for item in found["items"]
    ]
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    objects = (
        ("pod", f"{stage}/runs"),
        ("pod", f"{stage}/beside"),
        ("pod", f"{stage}/waits"),
        ("node", "gpu-1"),
        ("gpu", "gpu-1/0"),
    )
    for words in objects:
        live = run(reader, *words)
        assert live["notes"] == [], "nothing may be missing"
        command = ["explain", *words, "--from", str(dump), *OUTPUT]
        of_dump = json.loads(CliRunner().invoke(main, command).stdout)
        assert outcomes(live) == outcomes(of_dump), words
        assert live["conclusion"] == of_dump["conclusion"]
    of_both = "memory: 16.0 GiB of 100.0 GiB"
    assert evidence(run(reader, "pod", f"{stage}/runs"), "quota")[0].startswith(of_both)


def test_a_missing_right_is_a_note_or_one_line(api, stage):
    rights = [rule for rule in listed_rights() if rule["resources"][0] in ("nodes", "pods")]
    few = api.client_for(*rights)
    notes = " ".join(run(few, "pod", f"{stage}/waits")["notes"])
    for what in ("SharePods", "ResourceQuotas", f"the Namespace {stage}"):
        assert f"{what} could not be read" in notes
    none = api.client_for({"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]})
    command = ["explain", "pod", f"{stage}/waits", "--kubeconfig", str(none.kubeconfig)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert 'cannot get resource "pods"' in result.output


@pytest.fixture
def kai_kinds(api):
    """KAI Scheduler's kinds without a schema, as long as the test runs."""
    definitions = [kai_kind(kind) for kind in KAI_KINDS]
    for definition in definitions:
        api.client.apply(definition)
        api.client.wait_for(
            definition, lambda obj: objects.condition(obj, "Established") == "True", "served"
        )
    yield
    for definition in definitions:
        api.client.delete(definition)


def kai_kind(kind):
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = kind.api_version.partition("/")[2]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {"plural": kind.plural, "kind": kind.name},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": anything},
                }
            ],
        },
    }


def recorded(step, kind, namespace, *, owner=None):
    """What KAI wrote for the pod train-0, as the objects of another namespace and pod."""
    (obj,) = (
        each
        for each in kai_player.after(step)
        if each["kind"] == kind and "train-0" in each["metadata"]["name"]
    )
    meta = {key: obj["metadata"].get(key, {}) for key in ("name", "labels", "annotations")}
    if owner is not None:
        reference = {
            "apiVersion": "v1",
            "kind": "Pod",
            **{k: owner["metadata"][k] for k in ("name", "uid")},
        }
        meta["ownerReferences"] = [reference]
    fields = {key: value for key, value in obj.items() if key in ("kind", "apiVersion", "spec")}
    return {**fields, "metadata": {**meta, "namespace": namespace}}


def test_a_pod_of_kai_is_explained_by_its_bind_request_as_far_as_it_may_be_read(
    api, reader, kai_kinds, api_namespace
):
    step = "a_bind_request_waits_for_the_binder"
    written = recorded(step, "Pod", api_namespace)
    spec = {"schedulerName": "kai-scheduler", "containers": [objects.container("main")]}
    tenant = api.client.create({**written, "spec": spec})
    name = f"{api_namespace}/train-0"
    document = run(reader, "pod", name)
    waits = next(each for each in document["steps"] if each["step"] == "reserved")
    assert [each["code"] for each in waits["reasons"]] == ["no_pod_group"]
    assert "there is no PodGroup" in document["conclusion"]
    api.client.create(recorded(step, "PodGroup", api_namespace))
    api.client.create(recorded(step, "BindRequest", api_namespace, owner=tenant))
    document = run(reader, "pod", name)
    waits = next(each for each in document["steps"] if each["step"] == "reserved")
    assert [each["code"] for each in waits["reasons"]] == ["not_bound"]
    assert "to node node2" in waits["evidence"][0]
    rights = [rule for rule in listed_rights() if rule["apiGroups"] != ["scheduling.run.ai"]]
    document = run(api.client_for(*rights), "pod", name)
    waits = next(each for each in document["steps"] if each["step"] == "reserved")
    assert waits["outcome"] == "not_checked"
    assert "kubectl get bindrequests.scheduling.run.ai" in waits["needs"]
    assert "there is no" not in json.dumps(document)
