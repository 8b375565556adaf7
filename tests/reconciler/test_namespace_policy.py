"""Policies by namespace: which one holds, and what its mode and limits do to a plan."""

from collections import Counter

import msgspec
import pytest

from reconciler.plan import make_plan
from reconciler.policy import UNREAD, Limits, Mode, NamespacePolicy, Policy, policy_of
from reconciler.reasons import Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from tests.reconciler.samples import CODECS_IN_USE, assumed, pod, refused, snapshot

ML, DEV = {"team": "ml"}, {"team": "ml", "env": "dev"}


def policy(name, mode="plan", labels=None, **fields):
    selector = {} if labels is None else {"selector": {"matchLabels": labels}}
    return msgspec.convert({"name": name, "mode": mode, **selector, **fields}, NamespacePolicy)


def chosen(namespace, labels, *policies):
    own = policy_of(policies, namespace, labels)
    return own and own.name


# ---------------------------------------------------------------- which policy holds


def test_the_first_policy_that_matches_holds():
    dev, team, rest = policy("dev", labels=DEV), policy("team", labels=ML), policy("all", labels={})
    labels = {"a": DEV, "b": ML, "c": {}}
    assert [chosen(name, labels, dev, team, rest) for name in "abc"] == ["dev", "team", "all"]
    assert [chosen(name, labels, rest, dev, team) for name in "abc"] == ["all"] * 3


def test_names_and_selector_must_both_match():
    both = policy("both", labels=ML, namespaces=["a", "b"])
    labels = {"a": ML, "b": {}, "c": ML}
    assert [chosen(name, labels, both) for name in "abc"] == ["both", None, None]


def test_a_policy_by_name_needs_no_labels():
    assert chosen("a", {}, policy("named", namespaces=["a"]), policy("team", labels=ML)) == "named"
    assert chosen("b", {}, policy("named", namespaces=["a"])) is None


def test_where_labels_would_decide_and_are_unknown_the_safest_policy_holds():
    team, named = policy("team", "apply", labels=ML), policy("named", "apply", namespaces=["a"])
    assert policy_of([team, named], "a", {}) is UNREAD
    assert policy_of([named, team], "a", {}) is named
    assert policy_of([policy("few", labels=ML, namespaces=["b"]), named], "a", {}) is named
    assert UNREAD.mode == "plan"


def test_objects_without_a_namespace_have_no_policy():
    assert policy_of([policy("all", labels={})], "", {}) is None


def test_a_policy_selects_by_something():
    with pytest.raises(msgspec.ValidationError, match="needs namespaces or a selector"):
        policy("none")


# ---------------------------------------------------------------- what it does to a plan


def planned(*pods, labels=None, **fields):
    seen = snapshot(*pods, namespaces=labels or {})
    return make_plan(seen, Policy(**fields), ReconcilerState(), CODECS_IN_USE)[0]


def sick(namespace, number=0):
    return refused(pod(f"{namespace}-{number}", namespace=namespace))


def acted(plan):
    return Counter(entry.finding.object_ref.namespace for entry in plan.actions)


def reasons(plan):
    return {
        entry.finding.object_ref.namespace: (entry.skip, entry.detail) for entry in plan.skipped
    }


def test_one_teams_pods_are_repaired_and_anothers_only_planned_for():
    plan = planned(
        *map(sick, ("served", "shown", "rest")),
        labels={"served": {"gpu": "apply"}, "shown": {"gpu": "plan"}, "rest": {}},
        policies=(policy("on", "apply", {"gpu": "apply"}), policy("off", labels={"gpu": "plan"})),
    )
    assert acted(plan) == {"served": 1, "rest": 1}
    assert reasons(plan) == {"shown": (SkipReason.NAMESPACE_MODE_PLAN, "policy off")}


def test_where_the_labels_are_unknown_nothing_is_done():
    plan = planned(
        sick("new"), sick("known"), labels={"known": {}}, policies=(policy("on", "apply", ML),)
    )
    assert acted(plan) == {"known": 1}
    assert reasons(plan) == {"new": (SkipReason.NAMESPACE_UNREAD, "")}


def test_a_policy_allows_no_more_than_rules_and_other_keys():
    on = policy("on", "apply", {})
    fields = {"labels": {"a": {}}, "policies": (on,)}
    assert not planned(sick("a"), modes={Rule.REFUSED: Mode.PLAN}, **fields).actions
    assert not planned(sick("a"), plan_namespaces=("a",), **fields).actions
    assert not planned(sick("a"), protected_namespaces=("a",), **fields).actions
    assert not planned(sick("a"), namespaces=("b",), **fields).actions
    assert planned(sick("a"), **fields).actions


def bare(namespace, count):
    return [assumed(f"{namespace}-{at}", namespace=namespace, kind=None) for at in range(count)]


def test_a_policy_has_limits_of_its_own():
    """Per namespace in place of the limit of all, and of all its namespaces together."""
    pods = [pod for name in ("a", "b", "c", "d") for pod in bare(name, 4)]
    plan = planned(
        *pods,
        labels={"a": ML, "b": ML, "c": {}, "d": ML},
        policies=(
            policy("team", "apply", ML, limits={"per_cycle": 5, "per_namespace": 3}),
            policy("rest", "apply", {}),
        ),
        limits=Limits(
            per_namespace=2, per_node=100, per_owner=1.0, breaker_floor=100, by_namespace=("d=1",)
        ),
        evict_bare=True,
    )
    served = acted(plan)
    assert served["c"] == 2
    assert served["d"] <= 1
    assert served["a"] + served["b"] + served["d"] == 5
    assert max(served["a"], served["b"]) <= 3
    details = {entry.detail for entry in plan.skipped if entry.skip is SkipReason.POLICY_LIMIT}
    assert details == {"5 of policy team"}


def test_the_limits_of_a_policy_hold_for_pods_that_have_ended_too():
    pods = [sick("a", number) for number in range(3)] + [sick("b", number) for number in range(3)]
    plan = planned(
        *pods,
        labels={"a": ML, "b": {}},
        policies=(policy("team", "apply", ML, limits={"per_namespace": 1}),),
        limits=Limits(breaker_floor=100),
    )
    assert acted(plan) == {"a": 1, "b": 3}
