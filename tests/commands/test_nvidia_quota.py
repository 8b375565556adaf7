"""Units of NVIDIA's own plugin count in the quota of a namespace in every command alike."""

import json

import pytest
from click.testing import CliRunner

from tests.commands.conftest import dumped
from tests.support import sample_cluster as sample
from vgpucli.main import main

MIG = "nvidia.com/mig-1g.10gb"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "o", "controller": True}
ITEMS = (
    sample.node("slices", {MIG: 7}),
    sample.pod("a", "slices", {MIG: 2}, owner=OWNER),
    sample.pod("b", "slices", {MIG: 1}, owner=OWNER),
    sample.pod("done", "slices", {MIG: 4}, state=sample.FINISHED),
    sample.pod("waits", "", {MIG: 1}, unschedulable="0/1 nodes are available"),
    sample.resource_quota("q", {MIG: 2}, {MIG: 4}),
    {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "ml", "uid": "ml"}},
)
"""Two units are allowed, three are in use."""


def run(*words):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return result.stdout


def document(*words):
    return json.loads(run(*words, "-o", "json"))


@pytest.fixture
def plan(dump):
    return document("reconcile", "plan", *dump)


def test_inspect_and_explain_and_fit_count_the_same(dump):
    (group,) = document("inspect", "--by", "namespace", *dump)["groups"]
    (limit,) = group["quota"]
    assert (limit["used"], limit["limit"]) == (3, 2)
    for pod in ("ml/a", "ml/waits"):
        steps = {each["step"]: each for each in document("explain", "pod", pod, *dump)["steps"]}
        assert any(f"{MIG}: 3 of 2" in text for text in steps["quota"]["evidence"])
    fit = document("fit", "--request", f"{MIG}=1", "-n", "ml", *dump)
    assert f"{MIG}: 3 of 2 used, 1 requested" in fit["rejection"]


def test_the_plan_names_who_would_have_to_end_and_evicts_nobody(plan):
    assert plan["actions"] == []
    (found,) = (each for each in plan["skipped"] if each["rule"] == "over_quota")
    assert found["name"] in ("a", "b")
    assert f"namespace ml exceeds its quota: {MIG}: 3 of 2" in " ".join(found["evidence"])


def test_within_the_quota_nothing_is_found(tmp_path):
    items = [each for each in ITEMS if each["metadata"]["name"] != "b"]
    made = document("reconcile", "plan", *dumped(tmp_path, items))
    found = (*made["actions"], *made["skipped"], *made["findings"])
    assert not [each for each in found if each["rule"] == "over_quota"]
