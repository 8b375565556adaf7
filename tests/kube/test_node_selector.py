"""Required node affinity matches as kube-scheduler's, also what it cannot read."""

import msgspec
import pytest

from vgpu.kube import wire
from vgpu.kube.node_selector import has_labels, matches_a_term

LABELS = {"zone": "a", "gpus": "8", "model": "A100", "empty": ""}


def matches(*terms):
    decoded = msgspec.convert([*terms], list[wire.NodeTerm])
    return matches_a_term(decoded, LABELS, "gpu-1")


def expressions(*requirements):
    keys = ("key", "operator", "values")
    return {
        "matchExpressions": [dict(zip(keys, each, strict=False)) for each in requirements],
    }


def fields(operator, *values, key="metadata.name"):
    return {"matchFields": [{"key": key, "operator": operator, "values": [*values]}]}


@pytest.mark.parametrize(
    ("requirement", "matched"),
    [
        (("zone", "In", ["a", "b"]), True),
        (("zone", "In", ["b"]), False),
        (("absent", "In", [""]), False),
        (("zone", "In", []), False),
        (("zone", "NotIn", ["b"]), True),
        (("zone", "NotIn", ["a"]), False),
        (("absent", "NotIn", ["a"]), True),
        (("absent", "NotIn", []), False),
        (("empty", "Exists"), True),
        (("absent", "Exists"), False),
        (("zone", "Exists", ["a"]), False),
        (("absent", "DoesNotExist"), True),
        (("empty", "DoesNotExist"), False),
        (("gpus", "Gt", ["7"]), True),
        (("gpus", "Gt", ["8"]), False),
        (("gpus", "Gt", ["-1"]), True),
        (("gpus", "Lt", ["9"]), True),
        (("gpus", "Lt", ["8"]), False),
        (("absent", "Lt", ["8"]), False),
        (("model", "Gt", ["1"]), False),
        (("gpus", "Gt", ["7.5"]), False),
        (("gpus", "Gt", ["1", "2"]), False),
        (("gpus", "Gt", [str(2**63)]), False),
        (("gpus", "Equals", ["8"]), False),
    ],
)
def test_a_requirement_is_met_as_by_kube_scheduler(requirement, matched):
    assert matches(expressions(requirement)) is matched


@pytest.mark.parametrize(
    ("terms", "matched"),
    [
        ((), False),
        (({},), False),
        (({"matchExpressions": [], "matchFields": []},), False),
        ((expressions(("zone", "In", ["a"]), ("gpus", "Gt", ["9"])),), False),
        ((expressions(("zone", "In", ["b"])), expressions(("gpus", "Gt", ["4"]))), True),
        ((expressions(("zone", "Like", ["a"])), expressions(("zone", "In", ["a"]))), True),
        ((fields("In", "gpu-1"),), True),
        ((fields("In", "gpu-2"),), False),
        ((fields("NotIn", "gpu-2"),), True),
        ((fields("NotIn", "gpu-1"),), False),
        ((fields("In", "gpu-1", "gpu-2"),), False),
        ((fields("Exists"),), False),
        ((fields("In", "gpu-1", key="metadata.uid"),), False),
        (({**expressions(("zone", "In", ["b"])), **fields("In", "gpu-1")},), False),
        (({**expressions(("zone", "In", ["a"])), **fields("In", "gpu-1")},), True),
    ],
)
def test_terms_are_ored_requirements_anded_and_an_empty_term_matches_nothing(terms, matched):
    assert matches(*terms) is matched


@pytest.mark.parametrize(
    ("selector", "matched"),
    [({}, True), ({"zone": "a", "empty": ""}, True), ({"zone": "b"}, False), ({"no": ""}, False)],
)
def test_a_node_selector_needs_all_of_its_labels(selector, matched):
    assert has_labels(selector, LABELS) is matched
