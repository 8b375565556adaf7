"""Label selectors match as Kubernetes' do, and what Kubernetes refuses is refused."""

import msgspec
import pytest

from vgpu.kube.label_selector import LabelSelector

LABELS = {"team": "ml", "env": "dev", "example.com/tier": ""}


def selector(**fields):
    return msgspec.convert(fields, LabelSelector)


def expression(key, operator, *values):
    asked = {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
    return {"matchExpressions": [asked]}


@pytest.mark.parametrize(
    ("fields", "matches"),
    [
        ({}, True),
        ({"matchLabels": {"team": "ml"}}, True),
        ({"matchLabels": {"team": "ml", "env": "prod"}}, False),
        ({"matchLabels": {"absent": ""}}, False),
        ({"matchLabels": {"example.com/tier": ""}}, True),
        (expression("env", "In", "dev", "test"), True),
        (expression("env", "In", "prod"), False),
        (expression("absent", "In", "x"), False),
        (expression("env", "NotIn", "dev"), False),
        (expression("env", "NotIn", "prod"), True),
        (expression("absent", "NotIn", "x"), True),
        (expression("team", "Exists"), True),
        (expression("absent", "Exists"), False),
        (expression("team", "DoesNotExist"), False),
        (expression("absent", "DoesNotExist"), True),
        ({"matchLabels": {"team": "ml"}, **expression("env", "In", "prod")}, False),
        ({"matchLabels": {"team": "ml"}, **expression("env", "In", "dev")}, True),
    ],
)
def test_a_selector_matches_what_kubernetes_matches(fields, matches):
    assert selector(**fields).matches(LABELS) is matches


def test_without_labels_only_what_asks_for_none_matches():
    assert selector().matches({})
    assert selector(**expression("a", "NotIn", "x")).matches({})
    assert not selector(**expression("a", "Exists")).matches({})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (expression("env", "In"), "operator In needs values"),
        (expression("env", "NotIn"), "operator NotIn needs values"),
        (expression("env", "Exists", "x"), "operator Exists takes no values"),
        (expression("env", "in", "x"), "Invalid enum value 'in'"),
        (expression("-env", "Exists"), "regex"),
        ({"matchLabels": {"a/b/c": "x"}}, "regex"),
        ({"matchLabels": {"a": "x y"}}, "regex"),
        ({"matchLabels": {"a": "x" * 64}}, "regex"),
        ({"match_labels": {"a": "x"}}, "unknown field"),
    ],
)
def test_what_kubernetes_refuses_is_refused(fields, problem):
    with pytest.raises(msgspec.ValidationError, match=problem):
        selector(**fields)
