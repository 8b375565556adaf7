"""What becomes of findings: who is acted on, who is skipped and why, in what order."""

from collections import Counter
from itertools import permutations

import msgspec
import pytest

import reconciler.plan.making
from reconciler.model import Coverage, Edit, Evict, ObjectKind, RemoveFolder, Scope, ShimFolder
from reconciler.plan import make_plan
from reconciler.policy import RECREATED, REPORTED, Ages, Limits, Mode, Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import Attempt, ReconcilerState, attempt_key
from reconciler.rules import RULES, RuleEntry
from tests.reconciler.samples import (
    CODECS,
    CODECS_IN_USE,
    HOUR,
    NOW,
    assumed,
    editing,
    ended,
    evicting,
    holder,
    node,
    object_ref,
    owner,
    planned,
    pod,
    refused,
    removing,
    replace,
    reporting,
    share_pod,
    snapshot,
    terminating,
    unbound,
)
from vgpu.model.objects import MIRROR

SICK = refused(pod())
OPT_OUT = {"vgpu.dev/reconcile": "false"}
FOLDER = ShimFolder("/shim/uid-of-dead_main", "uid-of-dead", "main", (1, 2, 3), mapped=False)
ENDED_ONE = Limits(ended_per_cycle=1)
BREAKER_OFF = Limits(breaker=1.0, breaker_floor=10**6)


def sick(number, **options):
    return refused(pod(f"train-{number}", **options))


def skip_of(plan):
    """The one reason of a plan with one object."""
    (entry,) = plan.entries
    return entry.skip


def skips(plan):
    return {entry.finding.object_ref.name: entry.skip for entry in plan.skipped}


def names(entries):
    return [entry.finding.object_ref.name for entry in entries]


# ---------------------------------------------------------------- the reasons, one by one

ALONE = {
    SkipReason.OTHER_SCHEDULER: refused(pod(labels={"runai-gpu-group": "g"})),
    SkipReason.OPTED_OUT: refused(pod(annotations=OPT_OUT)),
    SkipReason.PROTECTED_NAMESPACE: refused(pod(namespace="kube-system")),
    SkipReason.STATIC_POD: refused(pod(annotations={MIRROR: "uid"})),
    SkipReason.DAEMON_SET_POD: refused(pod(kind="DaemonSet")),
    SkipReason.BARE_POD: refused(pod(kind=None)),
    SkipReason.JOB_POD: refused(pod(kind="Job", tracked=True)),
    SkipReason.OWNER_KIND: refused(pod(kind="Workflow")),
    SkipReason.OWNER_UNREAD: refused(pod(kind="PyTorchJob")),
    SkipReason.TERMINATING: terminating(SICK),
    SkipReason.COMPLETED: pod(phase="Succeeded"),
    SkipReason.RUNNING: pod(phase="Running"),
    SkipReason.HIGH_PRIORITY: refused(pod(priority=2_000_000_000)),
}
"""What protects a pod from an eviction that would else be made."""


def test_a_sick_pod_without_any_protection_is_evicted_as_it_was_seen():
    plan = planned(snapshot(SICK), evicting(SICK))
    (entry,) = plan.actions
    assert entry.finding.action == Evict(SICK.ref, SICK.resource_version)
    assert (entry.skip, entry.detail, entry.owner) == (None, "", owner().uid)
    assert not plan.skipped
    assert not plan.findings


@pytest.mark.parametrize(("skip", "protected"), ALONE.items(), ids=ALONE)
def test_a_protected_pod_is_not_evicted(skip, protected):
    assert skip_of(planned(snapshot(protected), evicting(protected))) is skip


def test_a_mirror_pod_owned_by_its_node_is_static_too():
    static = refused(pod(kind="Node"))
    assert skip_of(planned(snapshot(static), evicting(static))) is SkipReason.STATIC_POD


def test_a_pod_that_was_not_seen_is_skipped():
    assert skip_of(planned(snapshot(), evicting(SICK))) is SkipReason.INCOMPLETE_VIEW


def test_a_pod_replaced_under_the_same_name_is_another_one():
    other = refused(pod(uid="uid-of-the-next"))
    assert skip_of(planned(snapshot(other), evicting(SICK))) is SkipReason.INCOMPLETE_VIEW


def test_a_node_that_was_not_seen_is_skipped():
    assert skip_of(planned(snapshot(), editing(node("gpu-9")))) is SkipReason.NODE_UNKNOWN


def test_a_node_is_edited_without_a_version_because_only_the_values_count():
    here = node()
    (entry,) = planned(snapshot(here), editing(here)).actions
    assert entry.finding.action.resource_version == ""


@pytest.mark.parametrize(
    "finding",
    [evicting(SICK), editing(node()), removing(FOLDER)],
    ids=["pod", "node", "folder"],
)
def test_nothing_on_an_opted_out_node_is_touched(finding):
    closed = node(annotations=OPT_OUT)
    assert skip_of(planned(snapshot(SICK, closed), finding)) is SkipReason.OPTED_OUT


def test_only_the_word_false_opts_out():
    opted_in = refused(pod(annotations={"vgpu.dev/reconcile": "true"}))
    assert planned(snapshot(opted_in), evicting(opted_in)).actions


@pytest.mark.parametrize(
    "finding",
    [evicting(SICK), editing(node()), removing(FOLDER)],
    ids=["pod", "node", "folder"],
)
def test_with_namespaces_named_nothing_outside_of_them_is_touched(finding):
    policy = Policy(namespaces=("team-a",))
    seen = snapshot(SICK, node())
    assert skip_of(planned(seen, finding, policy=policy)) is SkipReason.OTHER_NAMESPACE


def test_a_named_namespace_is_acted_in():
    assert planned(snapshot(SICK), evicting(SICK), policy=Policy(namespaces=("ml",))).actions


def test_a_rules_own_skip_reason_is_reported():
    finding = evicting(SICK, skip_reason=SkipReason.PLUGIN_NOT_READY)
    assert skip_of(planned(snapshot(SICK), finding)) is SkipReason.PLUGIN_NOT_READY


def test_a_living_pod_is_not_evicted_while_its_plugin_is_away_whatever_a_rule_thinks():
    lives, away = assumed(), node(plugin=False)
    finding = evicting(lives, Rule.LOST_DEVICE)
    policy = Policy(modes={Rule.LOST_DEVICE: Mode.APPLY})
    assert planned(snapshot(lives, node()), finding, policy=policy).actions
    assert (
        skip_of(planned(snapshot(lives, away), finding, policy=policy))
        is SkipReason.PLUGIN_NOT_READY
    )
    down = node(ready=False)
    assert (
        skip_of(planned(snapshot(lives, down), finding, policy=policy)) is SkipReason.NODE_NOT_READY
    )
    elsewhere = snapshot(lives, node("gpu-2"))
    assert skip_of(planned(elsewhere, finding, policy=policy)) is SkipReason.NODE_UNKNOWN


def test_a_pod_that_is_on_no_node_yet_is_not_evicted():
    nowhere = unbound()
    finding = evicting(nowhere, Rule.ASSUMED_EXPIRED)
    assert skip_of(planned(snapshot(nowhere), finding)) is SkipReason.NODE_UNKNOWN


def test_the_plugins_absence_is_no_excuse_where_no_pod_is_recreated_or_the_node_itself_looked():
    away = node(plugin=False)
    assert planned(snapshot(SICK, away), evicting(SICK)).actions
    lives = assumed()
    tidy = evicting(lives, effect=Effect.TIDYING)
    assert planned(snapshot(lives, away), tidy).actions
    assert planned(snapshot(lives, away, scope=Scope.NODE), evicting(lives)).actions


def test_what_is_not_old_enough_waits():
    young = evicting(SICK, since=NOW - 1, grace=60)
    (entry,) = planned(snapshot(SICK), young).skipped
    assert (entry.skip, entry.detail) == (SkipReason.TOO_YOUNG, "119 s to go")


def test_an_owner_whose_pod_was_evicted_a_moment_ago_is_skipped():
    memory = ReconcilerState(attempts={attempt_key(owner().uid, "gpu-1"): Attempt(1, NOW - 20)})
    (entry,) = planned(snapshot(SICK), evicting(SICK), memory=memory).skipped
    assert (entry.skip, entry.detail) == (SkipReason.BACKING_OFF, "100 s to go")


def test_a_rule_that_only_plans_does_not_act():
    policy = Policy(modes={Rule.REFUSED: Mode.PLAN})
    assert (
        skip_of(planned(snapshot(SICK), evicting(SICK), policy=policy)) is SkipReason.RULE_MODE_PLAN
    )


def test_one_team_is_planned_for_and_another_is_served():
    mine, theirs = sick(1, namespace="ml"), sick(2, namespace="dev")
    policy = Policy(plan_namespaces=("dev",))
    plan = planned(snapshot(mine, theirs), *map(evicting, (mine, theirs)), policy=policy)
    assert [entry.finding.object_ref.namespace for entry in plan.actions] == ["ml"]
    (entry,) = plan.skipped
    assert (entry.skip, entry.detail) == (SkipReason.NAMESPACE_MODE_PLAN, "plan_namespaces")


def test_a_namespace_can_have_a_limit_of_its_own():
    pods = [
        assumed(f"{space}-{at}", namespace=space, kind=None)
        for space in ("ml", "dev")
        for at in range(3)
    ]
    limits = Limits(per_namespace=2, by_namespace=("dev=1", "other=0"), per_owner=1.0)
    plan = planned(
        snapshot(*pods), *map(evicting, pods), policy=Policy(limits=limits, evict_bare=True)
    )
    served = Counter(entry.finding.object_ref.namespace for entry in plan.actions)
    assert served == {"ml": 2, "dev": 1}
    assert {entry.detail for entry in plan.skipped} == {"2 in ml", "1 in dev"}


def test_many_at_once_trip_the_breaker_and_nothing_is_done():
    pods = [sick(number) for number in range(11)]
    plan = planned(snapshot(*pods), *map(evicting, pods))
    assert not plan.actions
    assert set(skips(plan).values()) == {SkipReason.BREAKER_TRIPPED}
    assert {entry.detail for entry in plan.skipped} == {
        "11 planned actions exceed the limit 10 (0 running GPU pods)"
    }
    assert plan.breaker.tripped


def spread(count):
    """Sick pods that share nothing: neither owner, node nor namespace."""
    return [
        refused(
            pod(
                f"train-{number}",
                node=f"gpu-{number}",
                namespace=f"team-{number}",
                owner=owner(name=f"set-{number}"),
            )
        )
        for number in range(count)
    ]


def unserved(count):
    """The same, of pods that could still run."""
    return [
        assumed(each.ref.name, node=each.node, namespace=each.ref.namespace, owner=each.owner)
        for each in spread(count)
    ]


def limited(pods, **limits):
    """The plan for these sick pods under these limits alone."""
    policy = Policy(limits=replace(BREAKER_OFF, **limits))
    findings = (evicting(each, Rule.ASSUMED_EXPIRED) for each in pods)
    return planned(snapshot(*pods), *findings, policy=policy)


def test_a_cycle_has_a_limit():
    plan = limited(unserved(7), per_cycle=4)
    assert len(plan.actions) == 4
    assert set(skips(plan).values()) == {SkipReason.CYCLE_LIMIT}


def test_a_node_has_a_limit():
    pods = [replace(each, node="gpu-1") for each in unserved(7)]
    plan = limited(pods, per_node=3)
    assert len(plan.actions) == 3
    assert set(skips(plan).values()) == {SkipReason.NODE_LIMIT}


def test_of_a_nodes_crossed_pods_one_goes_at_a_time():
    pods = [replace(each, node=f"gpu-{number % 2}") for number, each in enumerate(unserved(6))]
    crossed = [replace(evicting(each), cause=Cause.CROSSED) for each in pods]
    plan = planned(snapshot(*pods), *crossed)
    assert len(plan.actions) == 2
    assert set(skips(plan).values()) == {SkipReason.ONE_AT_A_TIME}


def test_a_nodes_own_annotations_count_for_it():
    here = node()
    keys = ("hami.io/mutex.lock", "hamivgpu", "vgpu4pd")
    plan = planned(
        snapshot(here),
        *(editing(here, key) for key in keys),
        policy=Policy(limits=Limits(per_node=2)),
    )
    assert len(plan.actions) == 2
    assert skips(plan) == {"gpu-1": SkipReason.NODE_LIMIT}


def test_a_namespace_has_a_limit():
    pods = [replace(each, ref=replace(each.ref, namespace="ml")) for each in unserved(7)]
    plan = limited(pods, per_namespace=2)
    assert len(plan.actions) == 2
    assert set(skips(plan).values()) == {SkipReason.NAMESPACE_LIMIT}


def test_objects_without_a_namespace_are_not_limited_as_if_they_had_one():
    nodes = [node(f"gpu-{number}") for number in range(8)]
    plan = planned(
        snapshot(*nodes), *map(editing, nodes), policy=Policy(limits=Limits(per_namespace=1))
    )
    assert len(plan.actions) == 8


def test_of_an_owners_replicas_only_a_part_is_evicted_at_once():
    pods = [assumed(f"train-{number}", node=f"gpu-{number}") for number in range(9)]
    plan = planned(snapshot(*pods), *(evicting(each, Rule.ASSUMED_EXPIRED) for each in pods))
    assert len(plan.actions) == 3  # 34 % of 9
    assert set(skips(plan).values()) == {SkipReason.OWNER_LIMIT}


def test_of_an_owners_replicas_at_least_one_is_evicted():
    lonely = assumed()
    assert planned(snapshot(lonely), evicting(lonely, Rule.ASSUMED_EXPIRED)).actions


def test_replicas_that_are_of_no_use_are_not_counted_with_the_living():
    dead = [sick(number, node=f"gpu-{number}") for number in range(6)]
    going = [terminating(pod(f"going-{number}")) for number in range(6)]
    alive = [assumed(f"alive-{number}", node=f"gpu-{number}") for number in range(3)]
    plan = planned(
        snapshot(*dead, *going, *alive), *(evicting(each, Rule.ASSUMED_EXPIRED) for each in alive)
    )
    assert len(plan.actions) == 1


def test_pods_that_have_ended_have_a_limit_of_their_own_and_count_for_no_other():
    dead = [sick(number) for number in range(9)]
    plan = limited([*dead, *unserved(3)], per_cycle=2, per_node=2, ended_per_cycle=7)
    assert Counter(entry.finding.object_ref.namespace for entry in plan.actions) == {
        "ml": 7,
        "team-0": 1,
        "team-1": 1,
    }
    assert set(skips(plan).values()) == {SkipReason.CYCLE_LIMIT}
    details = {entry.detail for entry in plan.skipped}
    assert details == {"7 pods that have ended in one cycle", "2 in one cycle"}
    plan = limited(dead, ended_per_node=5)
    assert (len(plan.actions), *set(skips(plan).values())) == (5, SkipReason.NODE_LIMIT)
    plan = limited(dead, ended_per_namespace=4)
    assert (len(plan.actions), *set(skips(plan).values())) == (4, SkipReason.NAMESPACE_LIMIT)


def test_they_come_after_all_that_could_still_run_and_the_namespaces_take_turns():
    dead = [sick(number) for number in range(9)]
    theirs = [sick(number, namespace="theirs") for number in range(2)]
    older = [evicting(each, Rule.ASSUMED_EXPIRED, since=NOW - 2 * HOUR) for each in dead]
    rest = [evicting(each, Rule.ASSUMED_EXPIRED) for each in (*theirs, *unserved(1))]
    policy = Policy(limits=replace(BREAKER_OFF, ended_per_cycle=4))
    plan = planned(snapshot(*dead, *theirs, *unserved(1)), *older, *rest, policy=policy)
    namespaces = [entry.finding.object_ref.namespace for entry in plan.actions]
    assert namespaces == ["team-0", "ml", "theirs", "ml", "theirs"]


POWER_CUT = {
    "one namespace, one node": lambda at: {"node": "gpu-1"},
    "many of each": lambda at: {"node": f"gpu-{at % 50}", "namespace": f"team-{at % 20}"},
    "a Job's": lambda at: {"node": f"gpu-{at % 50}", "kind": "Job"},
}


@pytest.mark.parametrize("place", POWER_CUT.values(), ids=POWER_CUT)
def test_after_a_power_cut_a_thousand_refused_pods_are_gone_within_five_cycles(place):
    left = [refused(pod(f"dead-{at}", age=180.0, **place(at))) for at in range(1000)]
    well = [pod(f"well-{at}") for at in range(100)]
    memory, cycles = ReconcilerState(), 0
    while left:
        seen = snapshot(*left, *well, now=NOW + 120.0 * cycles)
        plan, memory = make_plan(seen, Policy(), memory, CODECS_IN_USE)
        assert plan.actions
        assert 0 < plan.breaker.wanted <= plan.breaker.allowed
        gone = {entry.finding.object_ref.uid for entry in plan.actions}
        left = [each for each in left if each.ref.uid not in gone]
        cycles += 1
    assert cycles <= 5


def test_tidying_dead_replicas_takes_none_from_their_owner():
    dead = [sick(number, node=f"gpu-{number}") for number in range(6)]
    assert len(limited(dead).actions) == 6


def test_every_reason_of_the_plan_is_reached_by_a_test():
    """The others are objections of rules, and reached by their tests."""
    here = {
        *ALONE,
        SkipReason.OWNER_POLICY,
        SkipReason.INCOMPLETE_VIEW,
        SkipReason.NODE_UNKNOWN,
        SkipReason.OTHER_NAMESPACE,
    }
    when = {
        SkipReason.TOO_YOUNG,
        SkipReason.BACKING_OFF,
        SkipReason.RULE_MODE_PLAN,
        SkipReason.NAMESPACE_MODE_PLAN,
        SkipReason.NAMESPACE_UNREAD,  # tests/reconciler/test_namespace_policy.py
        SkipReason.SCHEME_MODE_PLAN,  # tests/reconciler/test_observed_schemes.py
        SkipReason.PLUGIN_CANNOT_SERVE,  # tests/reconciler/test_plugin_service.py
        SkipReason.BREAKER_TRIPPED,
    }
    limits = {
        SkipReason.OWNER_LIMIT,
        SkipReason.NODE_LIMIT,
        SkipReason.NAMESPACE_LIMIT,
        SkipReason.CYCLE_LIMIT,
        SkipReason.POLICY_LIMIT,
    }
    limits |= {SkipReason.ONE_AT_A_TIME}
    of_rules = {
        SkipReason.NODE_NOT_READY,
        SkipReason.PLUGIN_NOT_READY,
        SkipReason.NO_NODE_EVIDENCE,
        SkipReason.WAITS_FOR_OTHERS,
        SkipReason.OWNER_WAITS,
        SkipReason.OWNER_TERMINATES,
        SkipReason.WOULD_OVERBOOK,
        SkipReason.SIZES_DIFFER,
        SkipReason.STILL_MAPPED,
        SkipReason.TERMINAL_POD_EXISTS,
        SkipReason.ONE_SHOT,
    }
    assert here | when | limits | of_rules == set(SkipReason)


# ---------------------------------------------------------------- flags

FLAGS = {
    SkipReason.BARE_POD: Policy(evict_bare=True),
    SkipReason.RUNNING: Policy(evict_running=True),
    SkipReason.JOB_POD: Policy(owners=(*RECREATED, "Job")),
    SkipReason.OWNER_KIND: Policy(owners=(*RECREATED, "Workflow")),
    SkipReason.OWNER_UNREAD: Policy(owners=(*RECREATED, "PyTorchJob")),
    SkipReason.PROTECTED_NAMESPACE: Policy(protected_namespaces=()),
    SkipReason.HIGH_PRIORITY: Policy(priority_ceiling=2_000_000_000),
}


@pytest.mark.parametrize(("skip", "policy"), FLAGS.items(), ids=FLAGS)
def test_a_flag_lifts_its_own_protection(skip, policy):
    assert planned(snapshot(ALONE[skip]), evicting(ALONE[skip]), policy=policy).actions


@pytest.mark.parametrize(
    ("lifted", "protected"), [(flag, each) for flag in FLAGS for each in ALONE if each is not flag]
)
def test_a_flag_lifts_no_other_protection(lifted, protected):
    plan = planned(snapshot(ALONE[protected]), evicting(ALONE[protected]), policy=FLAGS[lifted])
    assert skip_of(plan) is protected


@pytest.mark.parametrize(
    "skip",
    [
        SkipReason.OPTED_OUT,
        SkipReason.STATIC_POD,
        SkipReason.DAEMON_SET_POD,
        SkipReason.TERMINATING,
        SkipReason.COMPLETED,
    ],
)
def test_no_flag_at_all_lifts_these(skip):
    everything = Policy(
        modes=dict.fromkeys(Rule, Mode.APPLY),
        limits=BREAKER_OFF,
        owners=("ReplicaSet", "DaemonSet", "Job", "Node"),
        evict_bare=True,
        evict_running=True,
        protected_namespaces=(),
        priority_ceiling=2**31,
    )
    for rule in Rule:
        finding = evicting(ALONE[skip], rule)
        assert skip_of(planned(snapshot(ALONE[skip]), finding, policy=everything)) is skip


# ---------------------------------------------------------------- what protects from a change

EDITS_PROTECTED = {
    SkipReason.OTHER_SCHEDULER,
    SkipReason.OPTED_OUT,
    SkipReason.PROTECTED_NAMESPACE,
    SkipReason.STATIC_POD,
    SkipReason.TERMINATING,
}


@pytest.mark.parametrize(("skip", "protected"), ALONE.items(), ids=ALONE)
def test_of_the_protections_only_some_are_against_changes_of_annotations(skip, protected):
    finding = editing(protected, "volcano.sh/vgpu-node", Rule.LEFTOVER_CLAIM)
    expected = skip if skip in EDITS_PROTECTED else None
    assert skip_of(planned(snapshot(protected), finding)) is expected


@pytest.mark.parametrize("skip", sorted(EDITS_PROTECTED - {SkipReason.STATIC_POD}))
def test_a_share_pod_is_protected_as_a_pod_is(skip):
    sick = share_pod(namespace="kube-system" if skip is SkipReason.PROTECTED_NAMESPACE else "ml")
    if skip is SkipReason.OTHER_SCHEDULER:
        sick = share_pod(annotations={"scheduling.koordinator.sh/device-allocated": "{}"})
    if skip is SkipReason.OPTED_OUT:
        sick = share_pod(annotations=OPT_OUT)
    if skip is SkipReason.TERMINATING:
        sick = terminating(sick)
    finding = editing(sick, "kubeshare/GPUID", Rule.KUBESHARE, Cause.VANISHED_GPUID)
    policy = Policy(modes={Rule.KUBESHARE: Mode.APPLY})
    assert skip_of(planned(snapshot(sick), finding, policy=policy)) is skip


# ---------------------------------------------------------------- the exemptions

ORPHAN = {"rule": Rule.KUBESHARE, "cause": Cause.ORPHANED_HOLDER}
KUBESHARE_ACTS = Policy(modes={Rule.KUBESHARE: Mode.APPLY})


def test_an_orphaned_holder_is_evicted_though_bare_running_and_in_kube_system():
    kept = holder()
    assert planned(snapshot(kept), evicting(kept, **ORPHAN), policy=KUBESHARE_ACTS).actions


@pytest.mark.parametrize(
    ("skip", "fields"),
    {
        SkipReason.OPTED_OUT: {"annotations": OPT_OUT},
        SkipReason.STATIC_POD: {"annotations": {MIRROR: "uid"}},
        SkipReason.DAEMON_SET_POD: {"owner": owner("DaemonSet")},
        SkipReason.JOB_POD: {"owner": owner("Job")},
        SkipReason.TERMINATING: {"deleted_at": NOW},
        SkipReason.COMPLETED: {"phase": "Succeeded"},
        SkipReason.HIGH_PRIORITY: {"priority": 2_000_000_000},
    }.items(),
)
def test_a_holder_is_exempt_from_no_other_protection(skip, fields):
    kept = holder(**fields)
    plan = planned(snapshot(kept), evicting(kept, **ORPHAN), policy=KUBESHARE_ACTS)
    assert skip_of(plan) is skip


def test_a_holder_outside_of_the_named_namespaces_is_skipped():
    kept = holder()
    policy = replace(KUBESHARE_ACTS, namespaces=("ml",))
    plan = planned(snapshot(kept), evicting(kept, **ORPHAN), policy=policy)
    assert skip_of(plan) is SkipReason.OTHER_NAMESPACE


@pytest.mark.parametrize("cause", sorted(set(Cause) - {Cause.ORPHANED_HOLDER}))
def test_no_other_cause_evicts_a_holder(cause):
    kept = holder()
    finding = evicting(kept, Rule.KUBESHARE, cause)
    assert skip_of(planned(snapshot(kept), finding, policy=KUBESHARE_ACTS)) is (
        SkipReason.PROTECTED_NAMESPACE
    )


@pytest.mark.parametrize("rule", Rule)
def test_running_pods_are_evicted_only_by_rules_that_are_configured_to_act(rule):
    runs = pod()
    policy = Policy(modes={rule: Mode.APPLY})
    expected = None if rule in REPORTED else SkipReason.RUNNING
    assert skip_of(planned(snapshot(runs), evicting(runs, rule), policy=policy)) is expected


@pytest.mark.parametrize("rule", sorted(REPORTED))
def test_rules_that_only_report_by_default_do_not_act_by_default(rule):
    runs = pod()
    assert skip_of(planned(snapshot(runs), evicting(runs, rule))) is SkipReason.RULE_MODE_PLAN


# ---------------------------------------------------------------- which reason, which rule

LADDER = (
    (SkipReason.OPTED_OUT, {"annotations": OPT_OUT}),
    (SkipReason.PROTECTED_NAMESPACE, {"namespace": "kube-system"}),
    (SkipReason.TERMINATING, {"deleted_at": NOW}),
    (SkipReason.JOB_POD, {"owner": owner("Job"), "tracked": True}),
    (SkipReason.HIGH_PRIORITY, {"priority": 2_000_000_000}),
    (SkipReason.NODE_NOT_READY, {}),
    (SkipReason.TOO_YOUNG, {}),
    (SkipReason.BACKING_OFF, {}),
    (SkipReason.RULE_MODE_PLAN, {}),
    (SkipReason.NAMESPACE_MODE_PLAN, {}),
    (None, {}),
)
"""Everything that can be wrong with acting on one pod, the first reason first."""


@pytest.mark.parametrize("rung", range(len(LADDER)), ids=[str(skip) for skip, _ in LADDER])
def test_the_first_reason_that_applies_is_reported(rung):
    skips = [skip for skip, _ in LADDER[rung:]]
    fields = {}
    for _, more in reversed(LADDER[rung:]):
        fields |= more
    one = refused(pod(**fields))
    finding = evicting(
        one,
        since=NOW if SkipReason.TOO_YOUNG in skips else NOW - HOUR,
        grace=60,
        skip_reason=SkipReason.NODE_NOT_READY if SkipReason.NODE_NOT_READY in skips else None,
    )
    uid = one.owner.uid
    attempts = (
        {attempt_key(uid, "gpu-1"): Attempt(1, NOW)} if SkipReason.BACKING_OFF in skips else {}
    )
    modes = {Rule.REFUSED: Mode.PLAN} if SkipReason.RULE_MODE_PLAN in skips else {}
    plan = planned(
        snapshot(one),
        finding,
        policy=Policy(
            modes=modes,
            plan_namespaces=("ml",) if SkipReason.NAMESPACE_MODE_PLAN in skips else (),
        ),
        memory=ReconcilerState(attempts=attempts),
    )
    assert skip_of(plan) is skips[0]


def test_an_object_that_several_rules_found_appears_once_and_names_them():
    both = [
        evicting(SICK, Rule.PRESTART_FAILED),
        reporting(SICK, Rule.LOST_DEVICE),
        evicting(SICK, Rule.REFUSED),
    ]
    for order in permutations(both):
        (entry,) = planned(snapshot(SICK), *order).entries
        assert entry.finding.rule is Rule.REFUSED
        assert entry.also == (Rule.PRESTART_FAILED, Rule.LOST_DEVICE)


def test_the_first_rule_that_may_act_acts():
    blocked = evicting(SICK, Rule.REFUSED, skip_reason=SkipReason.NODE_NOT_READY)
    free = editing(SICK, "hami.io/vgpu-node", Rule.LEFTOVER_CLAIM)
    (entry,) = planned(snapshot(SICK), free, blocked).actions
    assert entry.finding.rule is Rule.LEFTOVER_CLAIM
    assert entry.also == (Rule.REFUSED,)


def test_of_several_rules_that_may_not_act_the_first_gives_its_reason():
    first = evicting(SICK, Rule.REFUSED, skip_reason=SkipReason.NODE_NOT_READY)
    second = evicting(SICK, Rule.PRESTART_FAILED, skip_reason=SkipReason.PLUGIN_NOT_READY)
    assert skip_of(planned(snapshot(SICK), second, first)) is SkipReason.NODE_NOT_READY


def test_what_could_be_acted_on_leads_what_can_only_be_reported():
    finding = reporting(SICK, Rule.REFUSED)
    acts = evicting(SICK, Rule.LOST_DEVICE, skip_reason=SkipReason.NO_NODE_EVIDENCE)
    (entry,) = planned(snapshot(SICK), finding, acts).skipped
    assert (entry.finding.rule, entry.also) == (Rule.LOST_DEVICE, (Rule.REFUSED,))


def test_what_can_only_be_reported_is_no_skip():
    plan = planned(snapshot(SICK), reporting(SICK))
    assert names(plan.findings) == ["train-0"]
    assert skip_of(plan) is None


def test_two_annotations_of_one_node_are_two_objects():
    here = node()
    plan = planned(snapshot(here), editing(here), editing(here, "hamivgpu"))
    assert len(plan.actions) == 2


def test_gpus_of_the_same_number_on_two_nodes_are_two_objects():
    first, second = (
        replace(
            reporting(SICK),
            object_ref=replace(object_ref(SICK), kind=ObjectKind.DEVICE, name="0", node=name),
        )
        for name in ("gpu-1", "gpu-2")
    )
    assert len(planned(snapshot(), first, second).findings) == 2


def test_two_folders_of_one_pod_are_two_objects():
    other = replace(FOLDER, path="/shim/uid-of-dead_init", container="init")
    plan = planned(snapshot(scope=Scope.NODE), removing(FOLDER), removing(other))
    assert len(plan.actions) == 2


# ---------------------------------------------------------------- order

BY_URGENCY = {
    "recovery": {"effect": Effect.RECOVERY, "since": NOW - 100},
    "younger recovery": {"effect": Effect.RECOVERY, "since": NOW - 90},
    "tidying": {"effect": Effect.TIDYING, "since": NOW - 5000},
    "repair": {"effect": Effect.REPAIR, "since": NOW - 9000},
}


def test_recovery_comes_first_and_then_what_has_been_so_the_longest():
    pods = {name: refused(pod(name, owner=owner(name=name))) for name in BY_URGENCY}
    findings = [evicting(pods[name], **fields) for name, fields in BY_URGENCY.items()]
    for order in permutations(findings):
        assert names(planned(snapshot(*pods.values()), *order).actions) == list(BY_URGENCY)


@pytest.mark.parametrize(
    ("made", "limits"),
    [(assumed, Limits(per_node=1)), (lambda name, **at: refused(pod(name, **at)), ENDED_ONE)],
    ids=["could still run", "has ended"],
)
def test_what_came_to_nothing_stands_behind_the_rest_so_that_it_starves_nobody(made, limits):
    stuck, free = (
        made(name, owner=owner(name=name), namespace=name) for name in ("a-stuck", "b-free")
    )
    findings = [
        evicting(stuck, Rule.ASSUMED_EXPIRED, since=NOW - 9000),
        evicting(free, Rule.ASSUMED_EXPIRED, effect=Effect.REPAIR),
    ]
    policy = Policy(limits=limits)
    seen = snapshot(stuck, free)
    assert names(planned(seen, *findings, policy=policy).actions) == ["a-stuck"]
    memory = ReconcilerState(failed={findings[0].key: NOW - 60})
    assert names(planned(seen, *findings, policy=policy, memory=memory).actions) == ["b-free"]


def test_skips_and_reports_are_listed_by_rule_and_name():
    blocked = {"skip_reason": SkipReason.NODE_NOT_READY}
    pods = [pod(name) for name in ("c", "a", "b")]
    rules = (Rule.REFUSED, Rule.LOST_DEVICE, Rule.REFUSED)
    skipped = [evicting(one, rule, **blocked) for one, rule in zip(pods, rules, strict=True)]
    plan = planned(snapshot(*pods), *skipped)
    assert names(plan.skipped) == ["b", "c", "a"]


# ---------------------------------------------------------------- ages

AGES = (
    # since, first seen, ripe
    (NOW - 119, None, False),  # the grace of 60 s and the margin for clocks of 60 s
    (NOW - 120, None, True),
    (None, NOW - 119, False),
    (None, NOW - 120, True),
    (NOW - 10, NOW - 120, True),  # another's clock is ahead: our own sight counts
    (NOW + HOUR, NOW - 120, True),
    (NOW + HOUR, None, False),
    (None, None, False),
    (None, NOW + HOUR, False),  # our own clock was ahead
)


@pytest.mark.parametrize(("since", "seen", "ripe"), AGES)
def test_an_age_counts_from_the_older_of_the_reported_and_the_seen_time(since, seen, ripe):
    finding = evicting(SICK, since=since, grace=60)
    memory = ReconcilerState() if seen is None else ReconcilerState(seen={finding.key: seen})
    plan = planned(snapshot(SICK), finding, memory=memory)
    assert skip_of(plan) is (None if ripe else SkipReason.TOO_YOUNG)


def test_without_a_grace_nothing_is_too_young():
    assert planned(snapshot(SICK), evicting(SICK, since=NOW + HOUR, grace=0)).actions


def test_the_margin_for_clocks_is_the_operators():
    policy = Policy(ages=Ages(clock_skew=0))
    finding = evicting(SICK, since=NOW - 60, grace=60)
    assert planned(snapshot(SICK), finding, policy=policy).actions


# ---------------------------------------------------------------- back-off


@pytest.mark.parametrize(
    ("count", "minutes"), [(1, 2), (2, 4), (3, 8), (4, 16), (5, 30), (6, 30), (2**64, 30)]
)
def test_the_pause_doubles_from_two_to_thirty_minutes(count, minutes):
    for elapsed, skip in ((minutes * 60 - 1, SkipReason.BACKING_OFF), (minutes * 60, None)):
        attempt = Attempt(count, NOW - elapsed)
        memory = ReconcilerState(attempts={attempt_key(owner().uid, "gpu-1"): attempt})
        assert skip_of(planned(snapshot(SICK), evicting(SICK), memory=memory)) is skip


def test_another_node_and_another_owner_do_not_pause():
    attempt = Attempt(9, NOW)
    keys = (attempt_key(owner().uid, "gpu-2"), attempt_key("uid-of-another", "gpu-1"))
    memory = ReconcilerState(attempts=dict.fromkeys(keys, attempt))
    assert planned(snapshot(SICK), evicting(SICK), memory=memory).actions


PAUSED = ReconcilerState(attempts={attempt_key(owner().uid, "gpu-1"): Attempt(9, NOW)})


def test_tidying_never_backs_off():
    finding = evicting(SICK, effect=Effect.TIDYING)
    assert planned(snapshot(SICK), finding, memory=PAUSED).actions


def test_changes_of_annotations_never_back_off():
    finding = editing(SICK, "hami.io/vgpu-node", effect=Effect.RECOVERY)
    assert planned(snapshot(SICK), finding, memory=PAUSED).actions


def test_a_bare_pod_has_no_owner_to_back_off_for():
    bare = refused(pod(kind=None))
    policy = Policy(evict_bare=True)
    memory = ReconcilerState(attempts={attempt_key("", "gpu-1"): Attempt(9, NOW)})
    assert planned(snapshot(bare), evicting(bare), policy=policy, memory=memory).actions


# ---------------------------------------------------------------- the breaker


@pytest.mark.parametrize(
    ("sick_pods", "living", "tripped"),
    [(10, 0, False), (11, 0, True), (11, 54, True), (11, 55, False), (21, 100, True)],
)
def test_the_breaker_trips_above_a_fifth_of_the_living_pods_but_not_below_eleven(
    sick_pods, living, tripped
):
    ill = spread(sick_pods)
    well = [pod(f"well-{number}") for number in range(living)]
    plan = planned(snapshot(*ill, *well), *map(evicting, ill))
    assert (plan.breaker.tripped, plan.breaker.pods) == (tripped, living)
    assert len(plan.actions) == (0 if tripped else sick_pods)


def cpu_pod(name, **options):
    """One with a mark that has no share."""
    made = pod(name, "kubeshare", claim=None, phase="Running", **options)
    return replace(made, annotations={"kubeshare/x": "1"})


DISARMING = {
    "finished": [ended(pod(f"done-{at}", kind="Job")) for at in range(300)],
    "refused": [refused(pod(f"dead-{at}")) for at in range(300)],
    "being deleted": [terminating(pod(f"going-{at}")) for at in range(300)],
    "without a GPU": [cpu_pod(f"cpu-{at}") for at in range(300)],
    "KubeShare's holders": [holder(gpuid=f"v{at:04}") for at in range(300)],
}


@pytest.mark.parametrize("others", [[], *DISARMING.values()], ids=["nobody", *DISARMING])
def test_dead_and_foreign_pods_do_not_disarm_the_breaker(others):
    ill = [assumed(f"ill-{at}", node=f"gpu-{at}", namespace=f"team-{at}") for at in range(60)]
    well = [pod(f"well-{at}") for at in range(40)]
    findings = [evicting(each, Rule.ASSUMED_EXPIRED) for each in ill]
    plan = planned(snapshot(*ill, *well, *others), *findings)
    assert (plan.breaker.pods, plan.breaker.allowed, plan.breaker.wanted) == (100, 20, 60)
    assert plan.breaker.tripped


def test_a_pod_counts_that_asks_for_a_share_or_holds_a_claim_in_any_language():
    asks = [pod(f"{style}-asks", style, claim=None, phase="Running") for style in CODECS]
    holds = replace(pod("holds"), containers=())
    broken = replace(pod("broken", "kubeshare"), annotations={"kubeshare/gpu_request": "all"})
    plan = planned(snapshot(*asks, holds, broken))
    assert plan.breaker.pods == len(asks) + 2


@pytest.mark.parametrize("effect", [Effect.TIDYING, Effect.REPAIR])
def test_what_one_rule_tidies_in_one_namespace_is_one_trouble(effect):
    dead = [sick(number, node=f"gpu-{number}") for number in range(30)]
    plan = planned(snapshot(*dead), *(evicting(each, effect=effect) for each in dead))
    assert (plan.breaker.wanted, len(plan.actions)) == (1, 30)
    apart = spread(30)
    plan = planned(snapshot(*apart), *(evicting(each, effect=effect) for each in apart))
    assert (plan.breaker.wanted, plan.breaker.tripped) == (30, True)


def test_the_folders_that_a_node_was_left_over_the_months_are_one_trouble():
    left = [replace(FOLDER, path=f"/shim/{at}_main", pod_uid=str(at)) for at in range(300)]
    plan = planned(snapshot(scope=Scope.NODE), *map(removing, left))
    assert (plan.breaker.wanted, len(plan.actions)) == (1, Limits().per_node)


def test_what_would_not_be_acted_on_anyway_does_not_trip_the_breaker():
    ill = spread(30)
    findings = [evicting(each, skip_reason=SkipReason.NODE_NOT_READY) for each in ill[:25]]
    plan = planned(snapshot(*ill), *findings, *map(evicting, ill[25:]))
    assert plan.breaker.wanted == 5
    assert len(plan.actions) == 5


# ---------------------------------------------------------------- the plan as a value


def test_the_same_actions_have_the_same_id_and_others_another():
    seen = snapshot(SICK, sick(1))
    once = planned(seen, evicting(SICK))
    later = planned(replace(seen, now=NOW + 5), evicting(SICK, evidence=("in other words",)))
    assert once.id == later.id
    changed = replace(SICK, resource_version="2")
    assert planned(snapshot(changed), evicting(changed)).id != once.id
    assert planned(seen, evicting(SICK), evicting(sick(1))).id != once.id
    assert planned(seen).id == planned(seen, reporting(SICK)).id


def test_a_plan_is_written_and_read_back_as_it_was():
    here = node()
    findings = [evicting(SICK), editing(here), removing(FOLDER), reporting(sick(1))]
    plan = planned(snapshot(SICK, sick(1), here), *findings)
    assert {type(entry.finding.action) for entry in plan.actions} == {Evict, Edit, RemoveFolder}
    assert msgspec.json.decode(msgspec.json.encode(plan), type=type(plan)) == plan


def test_a_plan_has_the_numbers_of_what_was_examined():
    plan = planned(snapshot(SICK, share_pod(), folders=(FOLDER,), notes=("mind the gap",)))
    assert plan.object_counts == {"Pod": 1, "SharePod": 1, "Node": 1, "Folder": 1}
    assert plan.notes == ("mind the gap",)


# ---------------------------------------------------------------- the rules


def test_the_table_has_every_rule_in_order():
    assert [entry.rule for entry in RULES] == list(Rule)


def rules(monkeypatch, **fields):
    """A rule that finds all failed pods, in the place of the real ones."""

    def find(cluster_index, policy):
        return (evicting(each) for each in cluster_index.snapshot.pods if each.phase == "Failed")

    monkeypatch.setattr(reconciler.plan.making, "RULES", (RuleEntry(Rule.REFUSED, find, **fields),))


def test_what_was_not_seen_in_full_is_no_evidence(monkeypatch):
    rules(monkeypatch, needs=frozenset({Coverage.PODS, Coverage.NODES}))
    for seen in ({Coverage.PODS}, {Coverage.NODES}, set()):
        plan, _ = make_plan(
            snapshot(SICK, complete=frozenset(seen)), Policy(), ReconcilerState(), CODECS_IN_USE
        )
        assert skip_of(plan) is SkipReason.INCOMPLETE_VIEW
    plan, _ = make_plan(snapshot(SICK), Policy(), ReconcilerState(), CODECS_IN_USE)
    assert plan.actions


def test_a_rule_that_is_off_does_not_look(monkeypatch):
    rules(monkeypatch)
    policy = Policy(modes={Rule.REFUSED: Mode.OFF})
    plan, memory = make_plan(snapshot(SICK), policy, ReconcilerState(), CODECS_IN_USE)
    assert not plan.entries
    assert memory == ReconcilerState()


def test_a_rule_looks_only_from_where_it_can_see(monkeypatch):
    rules(monkeypatch, scopes=frozenset({Scope.NODE}))
    assert not make_plan(snapshot(SICK), Policy(), ReconcilerState(), CODECS_IN_USE)[0].entries
    assert make_plan(snapshot(SICK, scope=Scope.NODE), Policy(), ReconcilerState(), CODECS_IN_USE)[
        0
    ].entries


def test_what_is_found_is_remembered_for_the_next_look(monkeypatch):
    rules(monkeypatch)
    _, memory = make_plan(snapshot(SICK), Policy(), ReconcilerState(), CODECS_IN_USE)
    assert memory.seen == {evicting(SICK).key: NOW}
