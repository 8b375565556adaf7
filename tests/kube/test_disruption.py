"""Disruption budgets: which pods they cover."""

import json

import pytest

from vgpu.kube.kinds import BUDGETS, POD_LABELS
from vgpu.model.reasons import SourceError


def budget(selector, **status):
    return BUDGETS.one(
        json.dumps(
            {
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "b", "namespace": "ns"},
                "spec": {"minAvailable": "50%", "selector": selector},
                "status": status,
            }
        ).encode()
    )


def expression(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "covered"),
    [
        (None, ""),
        ({}, "abc"),
        ({"matchLabels": {"app": "a"}}, "a"),
        ({"matchLabels": {"app": "a", "tier": "x"}}, ""),
        (expression("app", "In", "a", "b"), "ab"),
        (expression("app", "NotIn", "a"), "bc"),
        (expression("app", "Exists"), "ab"),
        (expression("app", "DoesNotExist"), "c"),
        (expression("app", "Newer", "a"), "abc"),  # what we do not know protects
    ],
)
def test_a_budget_covers_the_pods_that_its_selector_selects(selector, covered):
    labels = {"a": {"app": "a"}, "b": {"app": "b"}, "c": {}}
    found = [name for name in labels if budget(selector).covers(name, labels[name])]
    assert "".join(found) == covered


def test_a_pod_that_is_being_disrupted_counts_no_more():
    disrupted = budget({}, disruptedPods={"gone": "2026-01-01T00:00:00Z"}, disruptionsAllowed=2)
    assert not disrupted.covers("gone", {})
    assert disrupted.covers("other", {})
    assert disrupted.allowed == 2
    assert budget({}, disruptionsAllowed=-1).allowed == 0


def test_a_budget_that_cannot_be_read_is_an_error():
    with pytest.raises(SourceError):
        budget({"matchLabels": ["app"]})


def test_all_labels_of_a_pod_are_read():
    pod = {"metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"any": "label"}}}
    assert POD_LABELS.one(json.dumps(pod).encode()) == ("u", {"any": "label"})
