"""What no plan ever does, whatever is seen and whatever happens between the look and the deed.

The first half is about the plan for any findings, the second about the real rules: on snapshots of
anything, and in a model cluster in which everything goes wrong while one or two reconcilers work.
"""

from collections import Counter
from functools import cache
from math import ceil, prod
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reconciler.apply.executor import Executor
from reconciler.judge import Judge
from reconciler.model import (
    Action,
    ActionResult,
    Coverage,
    Edit,
    Evict,
    ObjectKind,
    RemoveFolder,
    Scope,
    ShimFolder,
)
from reconciler.plan import make_plan
from reconciler.policy import RECREATED, Ages, Backoff, Limits, Mode, Policy
from reconciler.reasons import ActionOutcome, Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import Attempt, ReconcilerState, attempt_key, learn, remember
from reconciler.rules import RULES
from tests.reconciler.reconcile_world import LOCKED, ROOM, STYLES, Controller, Hands, World
from tests.reconciler.samples import (
    CODECS,
    CODECS_IN_USE,
    HOUR,
    NOW,
    assumed,
    editing,
    ended,
    evicting,
    handshake,
    holder,
    labelled,
    lock,
    no_gpu_matched,
    node,
    owner,
    planned,
    pod,
    prestart_failed,
    real_pod,
    refused,
    removing,
    replace,
    reporting,
    share_pod,
    snapshot,
    terminating,
    unbound,
    with_ledgers,
)
from vgpu.model.names import Phase
from vgpu.model.objects import MIRROR

# ---------------------------------------------------------------- any findings

KINDS = ("ReplicaSet", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "Node", "Workflow", None)
NAMES = tuple(f"pod-{number}" for number in range(6))
HOMES = ("gpu-1", "gpu-2", "gpu-3")
OPT_OUT = {"vgpu.dev/reconcile": "false"}
ODDITIES = {
    **{f"none {number}": {} for number in range(8)},
    "opted out": {"annotations": OPT_OUT},
    "opted in": {"annotations": {"vgpu.dev/reconcile": "true"}},
    "mirror": {"annotations": {MIRROR: "uid"}},
    "important": {"priority": 2_000_000_000},
    "deleted": {"deleted_at": NOW},
}


PHASES = ("Pending", "Running", "Succeeded", "Failed")
NAMESPACES = ("ml", "ml", "team-a", "kube-system")
TRAITS = (HOMES, PHASES, NAMESPACES, KINDS, tuple(ODDITIES))


@cache
def like(name, traits):
    home, phase, namespace, kind, odd = traits
    return pod(name, node=home, phase=phase, namespace=namespace, kind=kind, **ODDITIES[odd])


@cache
def open_or_closed(name, is_open):
    return node(name, annotations=None if is_open else OPT_OUT)


SPREAD = 2_654_435_761
"""A prime: multiplied by it, the small numbers that hypothesis prefers lie far apart."""


def one_of_each(draw, *choices):
    """One of each of these sequences, all in one draw: that is many times as fast."""
    total = prod(map(len, choices))
    number = draw(st.integers(0, total - 1)) * SPREAD % total
    chosen = []
    for choice in choices:
        number, index = divmod(number, len(choice))
        chosen.append(choice[index])
    return tuple(chosen)


FOLDERS = [
    ShimFolder(f"/shim/{number}", "uid-of-dead", "main", (1, 2, 3), mapped=False)
    for number in range(3)
]
WHEN = [
    {"since": since, "grace": grace, "skip_reason": skip_reason}
    for since in (None, NOW - HOUR, NOW - 90, NOW + 30)
    for grace in (0.0, 60.0)
    for skip_reason in (None, None, SkipReason.PLUGIN_NOT_READY)
]


def finding_about(draw, pods, nodes):
    """A finding of any rule about any of them, of any age, with and without an action."""
    when, effect, rule, what, one, here, folder = one_of_each(
        draw, WHEN, tuple(Effect), tuple(Rule), range(10), pods, nodes, FOLDERS
    )
    fields = when | {"effect": effect}
    if what == 0:
        return editing(here, rule=rule, **fields)
    if what == 1:
        return removing(folder, **fields)
    if what == 2:
        return reporting(one, rule)
    if what == 3:
        return editing(one, "hami.io/vgpu-node", rule, **fields)
    return evicting(one, rule, Cause.ORPHANED_HOLDER if what == 4 else Cause.NEVER_BOUND, **fields)


@st.composite
def scenes(draw):
    """A snapshot, findings about what is in it, and what is remembered of them."""
    count, closed, paused, findings = one_of_each(
        draw, range(1, 7), (*[None] * 9, *HOMES), ((), (), HOMES[:1], HOMES), range(13)
    )
    pods = [like(name, one_of_each(draw, *TRAITS)) for name in NAMES[:count]]
    nodes = [open_or_closed(name, name != closed) for name in HOMES]
    found = [finding_about(draw, pods, nodes) for _ in range(findings)]
    before = one_of_each(draw, *[("seen", "new", "failed")] * findings)
    memory = ReconcilerState(
        seen={
            each.key: NOW - 600 for each, word in zip(found, before, strict=True) if word != "new"
        },
        failed={
            each.key: NOW - 60 for each, word in zip(found, before, strict=True) if word == "failed"
        },
        attempts={attempt_key(owner().uid, name): Attempt(3, NOW - 30) for name in paused},
    )
    return snapshot(*pods, *nodes), found, remember(memory, found, NOW)


@st.composite
def policies(draw):
    cycle, per_node, namespace, floor, more, bare, running, only, mode = one_of_each(
        draw,
        range(1, 7),
        range(1, 5),
        range(1, 5),
        (3, 100),
        ((), ("Job", "DaemonSet", "Node")),
        (False, True),
        (False, True),
        (*[()] * 7, ("ml",)),
        (None, Mode.PLAN, Mode.APPLY, Mode.APPLY),
    )
    return Policy(
        modes={} if mode is None else dict.fromkeys(tuple(Rule)[:: cycle + 1], mode),
        limits=Limits(
            cycle,
            per_node,
            namespace,
            breaker_floor=floor,
            ended_per_cycle=cycle + 1,
            ended_per_node=per_node + 1,
            ended_per_namespace=namespace + 1,
        ),
        owners=(*RECREATED, *more),
        evict_bare=bare,
        evict_running=running,
        namespaces=only,
    )


def of_pod(seen, entry):
    uid = entry.finding.object_ref.uid
    return next((each for each in (*seen.pods, *seen.share_pods) if each.ref.uid == uid), None)


def forbidden(entry, seen, policy):
    """Why nobody should ever see this action; written apart from the plan, flag by flag."""
    action, object_ref = entry.finding.action, entry.finding.object_ref
    home = object_ref.name if object_ref.kind is ObjectKind.NODE else object_ref.node
    here = next((each for each in seen.nodes if each.name == home), None)
    if here is not None and here.annotations.get("vgpu.dev/reconcile") == "false":
        return "the node is opted out"
    if object_ref.kind not in (ObjectKind.POD, ObjectKind.SHARE_POD):
        return "a node's, and namespaces are named" if policy.namespaces else ""
    one = of_pod(seen, entry)
    if one is None:
        return "nobody has seen it"
    of_holder = entry.finding.cause is Cause.ORPHANED_HOLDER
    kind = one.owner.kind if one.owner else None
    wrong = {
        "opted out": one.annotations.get("vgpu.dev/reconcile") == "false",
        "not chosen": bool(policy.namespaces) and one.ref.namespace not in policy.namespaces,
        "protected": one.ref.namespace == "kube-system" and not of_holder,
        "static": MIRROR in one.annotations or kind == "Node",
        "terminating": one.deleted_at is not None,
    }
    if isinstance(action, Evict):
        reports = entry.finding.rule in (
            Rule.DOUBLE_BOOKED,
            Rule.RUNNING_WITHOUT_DEVICE,
            Rule.LOST_DEVICE,
            Rule.UNOWNED_PROCESS,
            Rule.OVER_LIMIT,
        )
        wrong |= {
            "completed": one.phase == "Succeeded",
            "a DaemonSet's": kind == "DaemonSet",
            "bare": kind is None and not policy.evict_bare and not of_holder,
            "of a kind that nobody makes again": kind is not None
            and kind not in policy.owners
            and not (kind == "Job" and one.phase == "Failed" and not one.tracked),
            "too important": one.priority > policy.priority_ceiling,
            "running": one.phase == "Running"
            and not (policy.evict_running or reports or of_holder),
        }
    return ", ".join(reason for reason, holds in wrong.items() if holds)


@given(scenes(), policies())
def test_1_2_3_13_a_plan_keeps_its_promises(cluster_index, policy):
    seen, found, memory = cluster_index
    plan = planned(seen, *found, policy=policy, memory=memory)
    for entry in plan.actions:
        assert forbidden(entry, seen, policy) == ""
        assert_names_what_was_seen(entry, seen)
    assert_within_limits(plan, seen, policy)
    assert_reported_once(plan, found)


def assert_names_what_was_seen(entry, seen):
    action = entry.finding.action
    if isinstance(action, Evict):
        one = of_pod(seen, entry)
        assert (action.pod, action.resource_version) == (one.ref, one.resource_version)
    if isinstance(action, Edit):
        assert action.before.keys() == action.after.keys()
        assert (action.resource_version == "") == (action.target.kind is ObjectKind.NODE)


def evicts_what_has_ended(seen, entry):
    return isinstance(entry.finding.action, Evict) and of_pod(seen, entry).terminal


def assert_within(actions, per_cycle, per_node, per_namespace):
    homes = Counter(entry.finding.object_ref.home for entry in actions)
    spaces = Counter(entry.finding.object_ref.namespace for entry in actions)
    del homes[""], spaces[""]
    assert len(actions) <= per_cycle
    assert max(homes.values(), default=0) <= per_node
    assert max(spaces.values(), default=0) <= per_namespace


def assert_within_limits(plan, seen, policy):
    limits = policy.limits
    ended = [entry for entry in plan.actions if evicts_what_has_ended(seen, entry)]
    rest = [entry for entry in plan.actions if entry not in ended]
    assert_within(rest, limits.per_cycle, limits.per_node, limits.per_namespace)
    apart = limits.ended_per_cycle, limits.ended_per_node, limits.ended_per_namespace
    assert_within(ended, *apart)
    assert not (plan.actions and plan.breaker.tripped)
    evicted = [entry for entry in plan.actions if isinstance(entry.finding.action, Evict)]
    alive = [entry for entry in evicted if not of_pod(seen, entry).terminal and entry.owner]
    for uid, count in Counter(entry.owner for entry in alive).items():
        mine = [one for one in seen.pods if one.owner and one.owner.uid == uid]
        living = [one for one in mine if not one.terminal and one.deleted_at is None]
        assert count <= max(1, 0.34 * len(living))


def assert_reported_once(plan, found):
    counts = Counter(entry.finding.object_ref.key for entry in plan.entries)
    assert counts == Counter({each.object_ref.key for each in found})
    assert all(entry.skip is None for entry in (*plan.actions, *plan.findings))
    assert all(entry.skip is not None for entry in plan.skipped)
    assert all(entry.finding.action is not None for entry in (*plan.actions, *plan.skipped))
    assert all(entry.finding.action is None for entry in plan.findings)


@given(scenes(), policies(), st.randoms(use_true_random=False))
def test_6_the_order_of_the_input_changes_nothing(cluster_index, policy, random):
    seen, found, memory = cluster_index

    def shuffled(values):
        return tuple(random.sample(values, len(values)))

    mixed = replace(seen, pods=shuffled(seen.pods), nodes=shuffled(seen.nodes))
    once = planned(seen, *found, policy=policy, memory=memory)
    assert planned(mixed, *shuffled(found), policy=policy, memory=memory) == once
    assert remember(memory, shuffled(found), NOW) == remember(memory, found, NOW)


LIMITED = {
    None,
    SkipReason.OWNER_LIMIT,
    SkipReason.NODE_LIMIT,
    SkipReason.NAMESPACE_LIMIT,
    SkipReason.CYCLE_LIMIT,
    SkipReason.ONE_AT_A_TIME,
}


def wanted(plan):
    """The objects that would be acted on if there were no limits."""
    return {
        entry.finding.object_ref.key
        for entry in plan.entries
        if entry.finding.action and entry.skip in LIMITED
    }


@given(scenes(), policies())
def test_8_a_quiet_cluster_is_done_after_as_many_cycles_as_the_limit_needs(cluster_index, policy):
    """With what is done taken away and what stays put: the limit of a cycle alone decides."""
    seen, found, memory = cluster_index
    apart = {"ended_per_node": 99, "ended_per_namespace": 99}
    wide = replace(policy.limits, per_node=99, per_namespace=99, per_owner=1.0, breaker_floor=99)
    wide = replace(wide, **apart)
    policy = replace(policy, limits=wide)
    first = planned(seen, *found, policy=policy, memory=memory)
    candidates = wanted(first)
    dead = {e.finding.object_ref.key for e in first.entries if evicts_what_has_ended(seen, e)}
    rest, ended = len(candidates - dead), len(candidates & dead)
    cycles = max(ceil(rest / wide.per_cycle), ceil(ended / wide.ended_per_cycle))
    for _ in range(cycles):
        plan = planned(seen, *found, policy=policy, memory=memory)
        done = {entry.finding.object_ref.key for entry in plan.actions}
        assert done
        found = [each for each in found if each.object_ref.key not in done]
    assert not planned(seen, *found, policy=policy, memory=memory).actions


@given(scenes(), policies(), st.sets(st.integers(0, 11)))
def test_8_what_never_works_starves_nobody(cluster_index, policy, stuck):
    """Each cycle tries what it may; some never work. Everybody is tried within as many cycles."""
    seen, found, memory = cluster_index
    policy = replace(policy, limits=replace(policy.limits, breaker_floor=99))
    never = {each.object_ref.key for number, each in enumerate(found) if number in stuck}
    first = planned(seen, *found, policy=policy, memory=memory)
    expected = wanted(first)
    patient = Backoff(first=0, longest=0)
    policy = replace(policy, backoff=patient)
    tried = set()
    for _ in range(2 * len(expected)):
        plan = planned(seen, *found, policy=policy, memory=memory)
        done = [entry for entry in plan.actions if entry.finding.object_ref.key not in never]
        stood = [entry for entry in plan.actions if entry not in done]
        tried |= {entry.finding.object_ref.key for entry in plan.actions}
        results = [ActionResult(entry, ActionOutcome.DONE) for entry in done]
        results += [ActionResult(entry, ActionOutcome.FAILED) for entry in stood]
        memory = learn(memory, results, seen.now, patient)
        gone = {entry.finding.object_ref.key for entry in done}
        found = [each for each in found if each.object_ref.key not in gone]
        seen = replace(seen, now=seen.now + 1)
        memory = remember(memory, found, seen.now)
    assert expected <= tried


def test_10_there_is_no_action_that_deletes():
    assert set(get_args(Action)) == {Evict, Edit, RemoveFolder}


# ---------------------------------------------------------------- any snapshot, the real rules


SITUATIONS = {
    "well": lambda style, name, where, gpu: [pod(name, style, node=where, gpu=gpu)],
    "refused": lambda style, name, where, gpu: [refused(pod(name, style, node=where))],
    "refused as a set": lambda style, name, where, gpu: [
        refused(pod(name, style, node=where, kind="StatefulSet"))
    ],
    "refused and bare": lambda style, name, where, gpu: [
        refused(pod(name, style, node=where, kind=None))
    ],
    "wedged": lambda style, name, where, gpu: [prestart_failed(pod(name, style, node=where))],
    "poisoned": lambda style, name, where, gpu: [no_gpu_matched(pod(name, style, node=where))],
    "passed over": lambda style, name, where, gpu: [assumed(name, style, node=where, gpu=gpu)],
    "never bound": lambda style, name, where, gpu: [unbound(name, style, node=where, gpu=gpu)],
    "ended": lambda style, name, where, gpu: [ended(pod(name, style, node=where))],
    "ended unserved": lambda style, name, where, gpu: [ended(assumed(name, style), "Failed")],
    "being deleted": lambda style, name, where, gpu: [terminating(pod(name, style, node=where))],
    "runs unassigned": lambda style, name, where, gpu: [
        assumed(name, style, node=where, gpu=gpu, phase="Running")
    ],
    "runs unclaimed": lambda style, name, where, gpu: [
        pod(name, style, node=where, claim=None, phase="Running")
    ],
    "opted out": lambda style, name, where, gpu: [
        refused(pod(name, style, node=where, annotations={"vgpu.dev/reconcile": "false"}))
    ],
    "protected": lambda style, name, where, gpu: [
        refused(pod(name, style, node=where, namespace="kube-system"))
    ],
    "share pod": lambda style, name, where, gpu: [share_pod(name, node=where)],
    "share pod served": lambda style, name, where, gpu: [
        share_pod(name, node=where),
        real_pod(share_pod(name, node=where)),
    ],
    "share pod refused": lambda style, name, where, gpu: [
        share_pod(name, node=where),
        refused(real_pod(share_pod(name, node=where))),
    ],
    "share pod astray": lambda style, name, where, gpu: [
        share_pod(name, node=where, gpuid="gone", bound=False, served=False)
    ],
    "holder": lambda style, name, where, gpu: [holder(where, name)],
    "labelled": lambda style, name, where, gpu: [labelled(name, where)],
}
"""Everything that a pod may be, by a word; two of them may be on one GPU."""


@cache
def situation(word, style, number, where, gpu):
    return SITUATIONS[word](style, f"pod-{number}", where, gpu)


@st.composite
def clusters(draw):
    """A snapshot with anything in it, an hour old or of just now."""
    objects = []
    count, earlier, booked = one_of_each(draw, range(9), (-HOUR, -1800.0, 0.0), (False, True))
    for number in range(count):
        word, style, where, gpu = one_of_each(draw, list(SITUATIONS), list(CODECS), HOMES, (0, 1))
        objects += situation(word, style, number, where, gpu)
    held = [None, pod("long-gone"), *(each for each in objects if each.phase == "Pending")]
    for where in HOMES:
        of, age, style, locked, given_up, odd = one_of_each(
            draw, held, (10, 400, HOUR), LOCKED, range(3), range(4), range(9)
        )
        annotations = lock(of, age, style) if locked == 2 else {}
        annotations |= handshake(style=style) if given_up == 3 else {}
        annotations |= OPT_OUT if odd == 8 else {}
        objects.append(
            node(where, plugin=odd not in (6, 7), ready=odd != 5, annotations=annotations)
        )
    seen = snapshot(*objects, now=NOW + earlier)
    return with_ledgers(seen) if booked else seen


EVERYTHING = Policy(modes=dict.fromkeys(Rule, Mode.APPLY), limits=Limits(breaker_floor=99))
"""Every rule acts."""


def plan_of(seen, policy=EVERYTHING, memory=None):
    return make_plan(seen, policy, memory or ReconcilerState(), CODECS_IN_USE)[0]


def long_seen(seen, policy=EVERYTHING):
    """The memory of somebody who has seen all of this for a day."""
    _, memory = make_plan(
        replace(seen, now=seen.now - 24 * HOUR), policy, ReconcilerState(), CODECS_IN_USE
    )
    return memory


@given(clusters(), policies())
def test_the_rules_never_act_on_what_is_protected(seen, policy):
    acts = replace(policy, modes=dict.fromkeys(Rule, Mode.APPLY))
    for entry in plan_of(seen, acts, long_seen(seen, acts)).actions:
        assert forbidden(entry, seen, acts) == ""


@given(clusters())
def test_an_action_of_a_rule_is_done_to_its_object_as_it_was_seen(seen):
    for entry in plan_of(seen, memory=long_seen(seen)).entries:
        action, object_ref = entry.finding.action, entry.finding.object_ref
        assert entry.finding.evidence
        assert all(entry.finding.evidence)
        one = of_pod(seen, entry)
        if isinstance(action, Evict):
            assert object_ref.kind is ObjectKind.POD
            assert (action.pod, action.resource_version) == (one.ref, one.resource_version)
        if isinstance(action, Edit):
            assert action.target == object_ref
            owner = one or next(each for each in seen.nodes if each.name == object_ref.name)
            assert action.before == {key: owner.annotations.get(key) for key in action.before}
            assert action.before.keys() == action.after.keys()
            assert action.before != action.after or action.unbind
            version = "" if object_ref.kind is ObjectKind.NODE else one.resource_version
            assert action.resource_version == version


@given(clusters())
def test_4_no_lock_goes_while_a_pod_may_still_be_served_on_its_node(seen):
    """And of the pods that may be served none loses its claim."""
    waits = [one for one in seen.pods if one.phase == "Pending" and one.deleted_at is None]
    waits = [one for one in waits if not one.terminal and one.annotations]
    for entry in plan_of(seen, memory=long_seen(seen)).actions:
        action, object_ref = entry.finding.action, entry.finding.object_ref
        if not isinstance(action, Edit):
            continue
        if entry.finding.rule is Rule.STALE_LOCK:
            (text,) = action.before.values()
            named = [one for one in waits if text.endswith(f",{one.ref.namespace},{one.ref.name}")]
            anonymous = "," not in text
            near = [one for one in waits if anonymous and _is_promised(one, object_ref.name)]
            assert not near
            assert not [one for one in named if _is_promised(one, object_ref.name)]
            assert action.guards
        if object_ref.kind is ObjectKind.POD and entry.finding.rule is Rule.ASSUMED_UNBOUND:
            assert of_pod(seen, entry).node == ""


def _is_promised(one, where):
    """Whether Allocate may be called for it on this node, by the plainest reading."""
    claims = [each.claim(one) for each in CODECS_IN_USE]
    claims = [each for each in claims if each is not None]
    if not claims or where not in {one.node, *(each.node for each in claims)}:
        return False
    phases = {held.phase for each in claims for held in each.allocations}
    runs = any(each.state == "running" for each in one.statuses)
    return Phase.ASSUMED in phases and not runs


@given(clusters(), st.sampled_from(list(Scope)), st.randoms(use_true_random=False))
def test_6_the_rules_see_the_same_in_any_order(seen, scope, random):
    def shuffled(values):
        return tuple(random.sample(values, len(values)))

    seen = replace(seen, scope=scope)
    mixed = replace(
        seen,
        pods=shuffled(seen.pods),
        share_pods=shuffled(seen.share_pods),
        nodes=shuffled(seen.nodes),
        ledgers=dict(shuffled(list(seen.ledgers.items()))),
    )
    memory = long_seen(seen)
    once = make_plan(seen, EVERYTHING, memory, CODECS_IN_USE)
    assert make_plan(mixed, EVERYTHING, memory, CODECS_IN_USE) == once


NEEDS = {entry.rule: entry.needs for entry in RULES}


@given(clusters(), st.sampled_from(list(Scope)), st.sets(st.sampled_from(list(Coverage))))
def test_11_what_was_not_seen_in_full_moves_nobody(seen, scope, missing):
    memory = long_seen(replace(seen, scope=scope))
    blind = replace(seen, scope=scope, complete=frozenset(Coverage) - missing)
    for entry in plan_of(blind, memory=memory).actions:
        assert Coverage.PODS not in missing
        assert not NEEDS[entry.finding.rule] & missing


@given(clusters(), st.integers(0, 60))
def test_11_a_pod_that_is_missing_from_an_incomplete_list_moves_no_other(seen, which):
    """Half a list, marked as incomplete: nothing that was there before is acted on as gone."""
    if seen.pods:
        gap = seen.pods[which % len(seen.pods)]
        half = tuple(one for one in seen.pods if one is not gap)
        blind = replace(seen, pods=half, complete=seen.complete - {Coverage.PODS})
        assert not plan_of(blind, memory=long_seen(seen)).actions


@given(clusters())
def test_11_a_node_that_is_not_ready_or_without_plugin_loses_no_living_pod(seen):
    nodes = {each.name: each for each in seen.nodes}
    for entry in plan_of(seen, memory=long_seen(seen)).actions:
        one = of_pod(seen, entry)
        lives = one is not None and not one.terminal and one.owner is not None
        if lives and isinstance(entry.finding.action, Evict):
            assert nodes[one.node].ready
            asks = any(container.limits for container in one.containers)
            assert any(nodes[one.node].allocatable.values()) or not asks


ONE_MORE_THAN_THE_LIMIT = snapshot(
    *situation("passed over", "hami", 0, HOMES[0], 0),
    *(
        one
        for number in range(1, 1 + EVERYTHING.limits.per_node)
        for one in situation("refused", "hami", number, HOMES[0], 0)
    ),
    node(HOMES[0]),
)
"""Of these the one that was passed over goes first, but is due at a later age."""


def skewed(seen, skew):
    """What we see if our own clock is so many seconds ahead of everybody else's."""
    return replace(seen, now=seen.now + skew)


@given(clusters(), st.floats(-60, 60), st.floats(0, 800))
@example(ONE_MORE_THAN_THE_LIMIT, 0.0, 300.0)
def test_12_a_clock_that_is_wrong_by_a_minute_makes_nothing_happen_too_early(seen, skew, age):
    """With true clocks and no margin at all, each of the actions would be in time.

    The limits are left out of it: what is due only with true clocks may have taken their room.
    """
    seen = replace(seen, now=NOW - HOUR + age)
    exact = replace(EVERYTHING, ages=Ages(clock_skew=0.0))
    assert wanted(plan_of(skewed(seen, skew))) <= wanted(plan_of(seen, exact))


@given(clusters(), st.sampled_from(list(Scope)))
def test_13_the_rules_report_every_object_once(seen, scope):
    plan = plan_of(replace(seen, scope=scope))
    counts = Counter(entry.finding.object_ref.key for entry in plan.entries)
    assert set(counts.values()) <= {1}


# ---------------------------------------------------------------- a cluster in which all goes wrong

TIGHT = Policy(
    limits=Limits(
        per_cycle=3,
        per_node=2,
        per_namespace=3,
        breaker_floor=99,
        ended_per_cycle=4,
        ended_per_node=3,
        ended_per_namespace=4,
    )
)
KINDS_OF_CONTROLLERS = ("ReplicaSet", "ReplicaSet", "StatefulSet", "DaemonSet", "Job")


class Reconciler:
    """One that looks, plans, and may be stopped between any two of its deeds."""

    def __init__(self, world):
        self.world = world
        self.memory = ReconcilerState()
        self.seen = self.plan = None

    def view(self):
        seen = self.seen = self.world.view()
        self.plan, self.memory = make_plan(seen, TIGHT, self.memory, CODECS_IN_USE)
        self.check(seen)

    def check(self, seen):
        plan = self.plan
        for entry in plan.actions:
            assert forbidden(entry, seen, TIGHT) == ""
            assert_names_what_was_seen(entry, seen)
        assert_within_limits(plan, seen, TIGHT)
        keys = [entry.finding.object_ref.key for entry in plan.entries]
        assert len(keys) == len(set(keys))
        turned = replace(seen, pods=seen.pods[::-1], nodes=seen.nodes[::-1])
        assert make_plan(turned, TIGHT, self.memory, CODECS_IN_USE)[0] == plan

    def apply(self, most=99):
        """The first so many actions; if they are not all, the rest and what was learnt are lost."""
        done = [self.act(entry) for entry in self.plan.actions[:most]]
        if most >= len(self.plan.actions):
            self.memory = learn(self.memory, done, self.world.now, TIGHT.backoff)
        return done

    def act(self, entry):
        world, action = self.world, entry.finding.action
        booked, version = world.booked(), world.version
        pods = dict(world.pods)
        unsafe = self.unsafe(entry)
        now = world.view()
        judge = Judge(self.seen, TIGHT, self.memory, CODECS_IN_USE)
        answer = Executor(Hands(world), judge).act(entry)
        assert "unexpected error" not in answer.detail
        if answer.outcome is ActionOutcome.DONE:
            assert not unsafe, unsafe
            if isinstance(action, Evict):
                assert pods[action.pod.uid].deleted_at is None
                assert forbidden(entry, now, TIGHT) == ""
        else:
            assert (world.pods, world.version) == (pods, version)
        for name, held in world.booked().items():
            assert held <= booked[name]
        return ActionResult(entry, answer.outcome, answer.detail)

    def unsafe(self, entry):
        """By the truth of the world: who could still be served by what this takes away."""
        world, action, object_ref = self.world, entry.finding.action, entry.finding.object_ref
        if not isinstance(action, Edit):
            return ""
        if entry.finding.rule is Rule.STALE_LOCK:
            ((text,), served) = action.before.values(), world.locked_by.get(object_ref.name)
            owners = {
                uid
                for uid, one in world.pods.items()
                if uid == served or text.endswith(f",{one.ref.namespace},{one.ref.name}")
            }
            if any(map(world.may_be_served, owners)):
                return f"one of {owners} may still be served under this lock"
        bound = object_ref.kind is ObjectKind.POD and world.pods.get(object_ref.uid)
        if bound and bound.node and world.may_be_served(object_ref.uid):
            return f"{object_ref.uid} may still be served by this claim"
        return ""


def locked_by_nobody(style):
    """A world in which a lock has lost its owner, and a reconciler that is about to clear it."""
    world = World()
    wanted = Controller("StatefulSet", "set", style, 1)
    world.controllers[wanted.owner.uid] = wanted
    world.control()
    (first,) = world.pods
    world.schedule(first, 2 if style == "hami" else 1)
    world.remove(first)
    world.now += HOUR
    one = Reconciler(world)
    one.view()
    assert len(one.plan.actions) == 1
    return world, one


@pytest.mark.parametrize("style", LOCKED)
def test_4_a_lock_without_an_owner_is_cleared(style):
    world, one = locked_by_nobody(style)
    assert [each.outcome for each in one.apply()] == [ActionOutcome.DONE]
    assert not world.locked()


@pytest.mark.parametrize("style", LOCKED)
def test_4_a_lock_stays_if_somebody_waits_by_the_time_that_it_would_be_cleared(style):
    """A pod under the old one's name, promised by a scheduler that has not come to its lock."""
    world, one = locked_by_nobody(style)
    world.control()
    (second,) = world.pods
    world.gpus[second] = 0
    world.claim(second, world.node_for(second), Phase.ASSUMED)
    assert [each.outcome for each in one.apply()] == [ActionOutcome.CHANGED]
    assert world.locked()


class Cluster(RuleBasedStateMachine):
    """One step is one event anywhere. Two reconcilers look and act, each when it likes."""

    def __init__(self):
        super().__init__()
        self.world = World()
        self.reconcilers = [Reconciler(self.world), Reconciler(self.world)]

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.world.pods)))

    @precondition(lambda self: len(self.world.controllers) < 4)
    @rule(
        kind=st.sampled_from(KINDS_OF_CONTROLLERS),
        style=st.sampled_from(sorted(STYLES.values())),
        replicas=st.integers(1, 3),
    )
    def somebody_wants_pods(self, kind, style, replicas):
        wanted = Controller(kind, f"set-{len(self.world.controllers)}", style, replicas)
        self.world.controllers[wanted.owner.uid] = wanted
        self.world.control()

    @rule()
    def controllers_work(self):
        self.world.control()

    @rule(style=st.sampled_from(sorted(STYLES.values())))
    def somebody_makes_a_bare_pod(self, style):
        if len(self.world.pods) < 12:
            self.world.make(Controller(None, "bare", style, 1))

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), writes=st.integers(1, 3))
    def a_scheduler_works_and_may_die(self, data, writes):
        self.world.schedule(self.pick(data), writes)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def a_kubelet_calls_allocate(self, data):
        self.world.admit(self.pick(data))

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def a_plugin_serves_nobody(self, data):
        self.world.pass_over(self.pick(data))

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def a_container_is_not_let_start(self, data):
        self.world.wedge(self.pick(data))

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def a_container_starts(self, data):
        self.world.start(self.pick(data))

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), phase=st.sampled_from(["Succeeded", "Failed"]))
    def a_pod_ends(self, data, phase):
        self.world.finish(self.pick(data), phase)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def a_user_deletes_a_pod(self, data):
        self.world.remove(self.pick(data))

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def a_webhook_never_lets_a_pod_go(self, data):
        self.world.stubborn.add(self.pick(data))

    @rule(name=st.sampled_from(sorted(STYLES)), plugin=st.booleans(), ready=st.booleans())
    def a_node_changes(self, name, plugin, ready):
        here = self.world.nodes[name]
        offered = node(name, STYLES[name], plugin=plugin).allocatable
        self.world.write(replace(here, allocatable=offered, ready=ready))

    @rule(seconds=st.sampled_from([10, 130, 400, 2000]))
    def time_passes(self, seconds):
        self.world.now += seconds

    @rule(which=st.integers(0, 1))
    def a_reconciler_looks(self, which):
        self.reconcilers[which].view()

    @rule(which=st.integers(0, 1), most=st.sampled_from([0, 1, 2, 99]), twice=st.booleans())
    def a_reconciler_acts_and_may_die(self, which, most, twice):
        one = self.reconcilers[which]
        if one.plan is None:
            return
        done = one.apply(most)
        if twice:
            before = (dict(self.world.pods), dict(self.world.nodes))
            again = one.apply(len(done))
            repeated = [
                two
                for first, two in zip(done, again, strict=True)
                if first.outcome is ActionOutcome.DONE
            ]
            assert ActionOutcome.DONE not in {each.outcome for each in repeated}
            assert (self.world.pods, self.world.nodes) == before
        one.plan = None

    @invariant()
    def nobody_has_another_ones_devices(self):
        locked = {uid for uid in self.world.crossed() if self.world.styles[uid] in LOCKED}
        assert not locked

    @invariant()
    def nothing_is_booked_twice(self):
        assert max(self.world.booked().values()) <= ROOM

    def cycle(self, one):
        """An hour in which everybody else does what is theirs; how much there was to be done."""
        self.world.now += HOUR
        self.world.quiet()
        one.view()
        one.apply()
        return sum(1 for entry in one.plan.entries if entry.finding.action)

    def teardown(self):
        """When nothing goes wrong any more, one reconciler alone comes to an end, and cures all."""
        self.world.stubborn.clear()
        last = Reconciler(self.world)
        self.world.heal()
        candidates = self.cycle(last)
        for _ in range(candidates + 1):
            self.cycle(last)
        assert last.plan.actions == ()
        for one in self.world.pods.values():
            kind = one.owner.kind if one.owner else None
            if kind in TIGHT.owners:
                assert one.reason != "UnexpectedAdmissionError"
                assert one.phase != "Pending" or one.ref.uid not in self.world.admitted
        gone = {name for name, uid in self.world.locked_by.items() if uid not in self.world.pods}
        assert not gone & self.world.locked()


Cluster.TestCase.settings = settings(stateful_step_count=30)
TestCluster = pytest.mark.slow(Cluster.TestCase)
