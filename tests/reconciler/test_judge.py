"""Between plan and apply: what has changed is judged once more, and an opt-out is always seen."""

import pytest

from reconciler.judge import Judge
from reconciler.model import OPT_OUT, ObjectKind
from reconciler.owners.eviction import owner_id
from reconciler.plan import make_plan
from reconciler.policy import Mode, Policy
from reconciler.reasons import ActionOutcome, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.findings import evict
from tests.reconciler.samples import (
    CODECS_IN_USE,
    assumed,
    ended,
    holder,
    lock,
    node,
    owner,
    pod,
    refused,
    replace,
    share_pod,
    snapshot,
)
from tests.reconciler.test_apply import Bench
from tests.reconciler.test_hostile import AT_ONCE, crowd, on_node, plan_of, skips, statement
from tests.reconciler.test_owners import RESTART, VOLCANO, dead, seen, volcano
from vgpu.apiserver.connection import ClusterError
from vgpu.model.objects import MIRROR

OUT = {OPT_OUT: "false"}
FORBIDDEN = ClusterError(403, "Forbidden", 'User "x" cannot get resource "nodes"')
NODE = node("gpu-1")
POLICY = Policy(ages=AT_ONCE, evict_running=True, modes=dict.fromkeys(Rule, Mode.APPLY))


def bench_of(seen, policy=POLICY, **options):
    """The plan for what is seen, and what applies it to a cluster that is just so."""
    plan, memory = make_plan(seen, policy, ReconcilerState(), CODECS_IN_USE)
    judge = Judge(seen, policy, memory, CODECS_IN_USE)
    bench = Bench(*seen.nodes, *seen.pods, *seen.share_pods, judge=judge, **options)
    return bench, plan.actions


def busy(bench, name, kind=ObjectKind.POD, times=9, **fields):
    """Somebody changes an object before every read of it."""
    method = {ObjectKind.POD: "pod", ObjectKind.SHARE_POD: "sharepod"}[kind]
    for _ in range(times):
        bench.client.first(method, lambda: bench.client.touch(name, kind, **fields))


# ---------------------------------------------------------------- opted out since

SICK = [refused(pod(f"sick-{at}", owner=owner(name=f"of-{at}"))) for at in range(3)]
LEFT = ended(assumed("left"))
LOCKED = node("gpu-1", "hami", annotations=lock(pod("gone", "hami")))
STUCK = share_pod("jupyter", served=False)


@pytest.mark.parametrize(
    "seen",
    [
        snapshot(NODE, *SICK),
        snapshot(NODE, LEFT),
        snapshot(LOCKED),
        snapshot(NODE, STUCK),
        snapshot(NODE, holder()),
    ],
    ids=["evictions", "claim", "lock", "sharepod", "holder"],
)
def test_nothing_is_touched_on_a_node_that_has_opted_out_since(seen):
    bench, actions = bench_of(seen)
    assert actions
    before = {
        key: each for key, each in bench.client.objects.items() if key[0] is not ObjectKind.NODE
    }
    bench.client.annotate("gpu-1", ObjectKind.NODE, **OUT)
    results = bench.apply(*actions)
    assert {result.outcome for result in results} == {ActionOutcome.CHANGED}
    assert f'node gpu-1 is annotated {OPT_OUT}: "false" now' in results[0].detail
    assert before.items() <= bench.client.objects.items()


def test_who_cannot_ask_whether_the_node_has_opted_out_touches_nothing():
    bench, actions = bench_of(snapshot(NODE, SICK[0]))
    bench.client.refuse("node", FORBIDDEN)
    assert bench.outcomes(*actions) == {"sick-0": ActionOutcome.FORBIDDEN}
    assert bench.client.has("sick-0")


def test_a_node_that_is_gone_has_not_opted_out():
    bench, actions = bench_of(snapshot(NODE, SICK[0]))
    bench.client.remove("gpu-1", ObjectKind.NODE)
    assert bench.outcomes(*actions) == {"sick-0": ActionOutcome.DONE}


# ---------------------------------------------------------------- a pod that never rests


def test_a_pod_that_changes_all_the_time_is_evicted_if_it_is_judged_the_same():
    bench, actions = bench_of(snapshot(NODE, SICK[0]))
    busy(bench, "sick-0", message="Pod was rejected: again")
    assert bench.outcomes(*actions) == {"sick-0": ActionOutcome.DONE}
    assert not bench.client.has("sick-0")


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"message": "x"}, ActionOutcome.DONE),
        ({"annotations": OUT}, ActionOutcome.CHANGED),
        ({"priority": 2_000_000_000}, ActionOutcome.CHANGED),
        ({"phase": "Running", "reason": ""}, ActionOutcome.CHANGED),
    ],
    ids=["the same", "opted out", "precious", "another phase"],
)
def test_a_pod_of_nvidias_own_plugin_is_judged_by_what_was_just_read_too(fields, outcome):
    seen = replace(snapshot(NODE), nvidia_pods=(SICK[0],))
    plan, memory = make_plan(seen, POLICY, ReconcilerState(), CODECS_IN_USE)
    bench = Bench(NODE, SICK[0], judge=Judge(seen, POLICY, memory, CODECS_IN_USE))
    bench.client.touch("sick-0", **fields)
    assert bench.outcomes(*plan.actions) == {"sick-0": outcome}


def test_one_that_changes_between_read_and_eviction_is_read_again():
    bench, actions = bench_of(snapshot(NODE, SICK[0]))
    bench.client.first("evict", lambda: bench.client.touch("sick-0"))
    assert bench.outcomes(*actions) == {"sick-0": ActionOutcome.DONE}
    assert bench.client.count("evict") == 2


def test_a_pod_that_changes_before_every_eviction_is_skipped_after_some_tries():
    bench, actions = bench_of(snapshot(NODE, SICK[0]))
    for _ in range(9):
        bench.client.first("evict", lambda: bench.client.touch("sick-0"))
    assert bench.outcomes(*actions) == {"sick-0": ActionOutcome.CHANGED}
    assert bench.client.count("evict") == 3


def test_a_claim_of_a_pod_that_changes_all_the_time_is_cleared():
    bench, actions = bench_of(snapshot(NODE, LEFT))
    assert [entry.finding.rule for entry in actions] == [Rule.LEFTOVER_CLAIM]
    busy(bench, "left", message="x")
    assert bench.outcomes(*actions) == {"left": ActionOutcome.DONE}


def test_a_share_pod_that_changes_all_the_time_is_unbound():
    bench, actions = bench_of(snapshot(NODE, STUCK))
    busy(bench, "jupyter", ObjectKind.SHARE_POD, message="x")
    assert bench.outcomes(*actions) == {"jupyter": ActionOutcome.DONE}
    assert not bench.client.get("jupyter", ObjectKind.SHARE_POD).node


def test_a_holder_that_changes_all_the_time_goes():
    bench, actions = bench_of(snapshot(NODE, holder()))
    busy(bench, holder().ref.name, message="x")
    assert set(bench.outcomes(*actions).values()) == {ActionOutcome.DONE}


@pytest.mark.parametrize(
    "fields",
    [
        {"phase": "Running", "reason": ""},
        {"reason": "Evicted"},
        {"annotations": OUT},
        {"annotations": {MIRROR: "x"}},
        {"priority": 2_000_000_000},
        {"owner": None},
        {"deleted_at": 0.0},
    ],
    ids=str,
)
def test_a_pod_with_another_verdict_now_is_skipped(fields):
    bench, actions = bench_of(snapshot(NODE, SICK[0]))
    bench.client.touch("sick-0", **fields)
    assert bench.outcomes(*actions) == {"sick-0": ActionOutcome.CHANGED}
    assert bench.client.has("sick-0")
    assert bench.client.count("evict") == 0


@pytest.mark.parametrize("there", [{"ready": False}, {"allocatable": {}}], ids=str)
def test_its_node_is_judged_as_it_is_now(there):
    waits = assumed("waits")
    bench, actions = bench_of(snapshot(NODE, waits))
    assert [entry.finding.rule for entry in actions] == [Rule.ASSUMED_EXPIRED]
    bench.client.touch("gpu-1", ObjectKind.NODE, **there)
    bench.client.touch("waits", message="x")
    assert bench.outcomes(*actions) == {"waits": ActionOutcome.CHANGED}


def test_an_action_with_another_purpose_now_is_skipped():
    """Of what recovers and what tidies another number may be done."""
    kind = owner("StatefulSet")
    replaced = pod("train-1", owner=kind)
    bench, actions = bench_of(snapshot(NODE, refused(pod("train-0", owner=kind)), replaced))
    bench.client.touch("train-0", status_at=replaced.created_at + 60.0)
    assert bench.outcomes(*actions) == {"train-0": ActionOutcome.CHANGED}


def test_by_a_ledger_only_a_pod_is_judged_again_that_is_as_it_was():
    """The ledger is of the look before, and of the pod as it was then."""
    pods = crowd()
    seen = on_node(*pods, statements=[statement(each) for each in pods])
    policy = replace(POLICY, modes={Rule.DOUBLE_BOOKED: Mode.APPLY})
    plan, memory = make_plan(seen, policy, ReconcilerState(), CODECS_IN_USE)
    (entry,) = (each for each in plan.actions if each.finding.rule is Rule.DOUBLE_BOOKED)
    (before,) = (each for each in pods if each.ref.uid == entry.finding.object_ref.uid)
    judge, (there,) = Judge(seen, policy, memory, CODECS_IN_USE), seen.nodes
    newer = replace(before, resource_version="9")
    assert judge.current_action(entry, newer, there) == evict(newer)
    assert judge.current_action(entry, replace(newer, annotations={}), there) is None


# ---------------------------------------------------------------- whose lock it is


def locked(**fields):
    return replace(snapshot(LOCKED), **fields)


def test_a_lock_whose_owner_does_not_exist_goes():
    (entry,) = plan_of(locked(lock_owners={("ml", "gone"): None}), Rule.STALE_LOCK).actions
    assert entry.finding.cause == "owner_gone"


def test_a_lock_whose_owner_is_in_no_list_and_waits_stays():
    stranger = replace(assumed("gone", "hami"), containers=(), annotations={})
    plan = plan_of(locked(lock_owners={("ml", "gone"): stranger}), Rule.STALE_LOCK)
    assert skips(plan) == {"gpu-1": SkipReason.OWNER_WAITS}


def test_what_is_planned_of_a_stranger_s_lock_is_what_is_done():
    stranger = replace(ended(pod("gone", "hami")), containers=(), annotations={})
    seen = locked(lock_owners={("ml", "gone"): stranger})
    bench, actions = bench_of(seen)
    assert [entry.finding.cause for entry in actions] == ["owner_ended"]
    bench.client.put(stranger)
    assert bench.outcomes(*actions) == {"gpu-1": ActionOutcome.DONE}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_lock_whose_owner_has_gpus_of_nvidias_own_plugin_is_judged_by_that_pod(phase):
    owner = replace(ended(pod("gone", "hami"), phase), annotations={})
    seen = locked(lock_owners={}, nvidia_pods=(owner,))
    (entry,) = plan_of(seen, Rule.STALE_LOCK).actions
    assert entry.finding.cause == "owner_ended"


def test_a_lock_of_whose_owner_nothing_is_known_stays():
    plan = plan_of(locked(lock_owners={}), Rule.STALE_LOCK)
    assert skips(plan) == {"gpu-1": SkipReason.INCOMPLETE_VIEW}


def test_a_claim_of_another_pod_of_the_name_is_not_that_of_the_one_that_is_gone():
    bench, actions = bench_of(snapshot(NODE, LEFT))
    bench.client.touch("left", ref=replace(LEFT.ref, uid="another"), annotations={})
    assert bench.outcomes(*actions) == {"left": ActionOutcome.GONE}


def test_a_defect_after_a_refusal_has_done_nothing():
    bench, actions = bench_of(snapshot(NODE, SICK[0]))
    bench.client.first("evict", lambda: bench.client.touch("sick-0"))
    bench.client.first("evict", lambda: None)
    bench.client.first("pod", lambda: None)
    bench.client.first("pod", lambda: bench.client.refuse("pod", RuntimeError("a defect")))
    assert bench.outcomes(*actions) == {"sick-0": ActionOutcome.FAILED}
    assert bench.client.has("sick-0")


@pytest.mark.parametrize(
    ("now", "outcome"),
    [(volcano(), ActionOutcome.DONE), (volcano([RESTART]), ActionOutcome.CHANGED)],
    ids=["the same policy", "a policy that restarts"],
)
def test_a_dead_pod_whose_owner_decides_is_judged_again_and_its_owner_asked_again(now, outcome):
    sick = dead(*VOLCANO)
    bench, actions = bench_of(
        snapshot(NODE, sick, owners={owner_id(sick): seen(sick, **volcano())})
    )
    bench.client.owners[owner_id(sick).name] = seen(sick, **now).text
    busy(bench, sick.ref.name, message="x")
    assert bench.outcomes(*actions) == {sick.ref.name: outcome}
    assert bench.client.has(sick.ref.name) is (outcome is not ActionOutcome.DONE)
