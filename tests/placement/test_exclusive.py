"""Volcano's exclusive rules: pods with equal labels share no GPU, and all others do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.registers import volcano_register
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Node, Pod
from vgpu.placement.dialects import PlacementPolicies, demand_of, scheduler_schemes
from vgpu.placement.exclusive_rules import ExclusiveRule
from vgpu.placement.node_view import Reservation, node_view
from vgpu.placement.result import Placement, PlacementReason

RULES = tuple(map(ExclusiveRule.of, ("app=train", "team=ml,app=serve", "team=ml")))
SLOTS = 3


def schemes(*rules):
    return scheduler_schemes({}, PlacementPolicies(exclusive=rules))


def placed(asked, gpus, *rules):
    """The GPU of each pod of these labels, one after another; a refusal where there is none."""
    uuids = (f"GPU-{number}" for number in range(gpus))
    node = Node("n", annotations=volcano_register(*uuids, split=SLOTS))
    known, there, results = schemes(*rules), [], []
    for number, labels in enumerate(asked):
        container = Container("main", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1})
        pod = Pod(PodRef(f"u{number}", "ns", f"p{number}"), containers=(container,), labels=labels)
        scheme, demand = demand_of(pod, known)
        view = node_view(node, scheme, (), (), there, now=0.0)
        result = scheme.dialect.choose(demand, view.candidate)
        if isinstance(result, Placement):
            there.append(Reservation(result.allocations, demand.wishes.groups))
            result = result.allocations[0].shares[0].device
        results.append(result)
    return results


LABELS = st.fixed_dictionaries(
    {}, optional={"app": st.sampled_from(("train", "serve")), "team": st.sampled_from(("ml", "x"))}
)


@given(asked=st.lists(LABELS, max_size=8), gpus=st.integers(1, 4))
def test_no_gpu_has_two_pods_of_a_rule_and_no_other_pod_is_refused(asked, gpus):
    there = {f"GPU-{number}": [] for number in range(gpus)}
    for labels, result in zip(asked, placed(asked, gpus, *RULES), strict=True):
        mine = {rule for rule in RULES if rule.is_for(labels)}
        fitting = {
            gpu
            for gpu, pods in there.items()
            if len(pods) < SLOTS and not mine & set().union(*pods)
        }
        assert (result in there) == bool(fitting)
        if fitting:
            assert result in fitting
            there[result].append(mine)


def test_without_rules_labels_separate_no_pods():
    assert placed([{"app": "train"}] * 3, 1) == ["GPU-0"] * 3


def test_the_reason_is_that_of_a_group():
    *_, refusal = placed([{"app": "train"}] * 2, 1, *RULES)
    assert refusal.cause is PlacementReason.POD_GROUP
    assert "exclusive rule" in refusal.cause.explanation


def test_rules_are_volcanos_alone():
    others = [each for each in schemes(*RULES) if each.row.name != "volcano"]
    pod = Pod(PodRef("u", "ns", "p"), labels={"app": "train"})
    assert {scheme.wishes(pod).apart for scheme in others} == {()}


def test_a_rule_is_labels_joined_by_commas():
    rule = ExclusiveRule.of("team=ml, app=serve")
    assert rule == RULES[1]
    assert rule.name == "app=serve,team=ml"
    assert ExclusiveRule.of("a=").is_for({"a": ""})


@pytest.mark.parametrize("text", ["", "app", "=x", "app=a,", "app=a,app=b"])
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(ValueError, match="not KEY=VALUE"):
        ExclusiveRule.of(text)
