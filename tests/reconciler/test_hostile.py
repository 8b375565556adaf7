"""What tenants write, and what cannot be seen, harms nobody else: attacks, one by one."""

import os
import signal
import threading
from contextlib import contextmanager
from itertools import chain, repeat

import pytest

from reconciler import cluster_index
from reconciler.apply.applier import Applier, ApplyOptions
from reconciler.apply.audit import Audit, AuditError, read
from reconciler.apply.restore import Undo, restore
from reconciler.commands.apply import agreed, stopped_by_signals
from reconciler.cycle import Cycles, Ending, PreparedPlan
from reconciler.model import OPT_OUT, ActionResult, Coverage, Entry
from reconciler.observe.dump import DumpObserver
from reconciler.plan import make_plan
from reconciler.policy import Ages, Mode, Policy
from reconciler.reasons import ActionOutcome, Cause, Rule, SkipReason
from reconciler.reconciler_state import MOST, ReconcilerState
from reconciler.session import LateObserver, NoAudit, expect_right_clock
from tests.reconciler.fake_client import FakeClient, FakeTime
from tests.reconciler.node_samples import on_node, statement
from tests.reconciler.samples import (
    CODECS_IN_USE,
    HOUR,
    MINUTE,
    NOW,
    assumed,
    editing,
    holder,
    lock,
    node,
    owner,
    planned,
    pod,
    prestart_failed,
    real_pod,
    refused,
    replace,
    share_pod,
    snapshot,
    unbound,
    waiting,
    with_ledgers,
)
from tests.support.reconcile_plans import unmoved
from vgpu.apiserver.connection import ClusterError, clock_ahead
from vgpu.inventory import Units
from vgpu.ledger.cluster import home
from vgpu.model.names import ContainerKind, Source
from vgpu.model.objects import MIRROR, Container, ContainerState, Status
from vgpu.schemes.volcano.codec import HAMI

AT_ONCE = Ages(*[0.0] * len(Ages.__struct_fields__))
"""Acts on everything as soon as it is seen."""


def plan_of(seen, *rules, **fields):
    """What these rules would do at once; all others are off."""
    modes = {rule: Mode.APPLY if rule in rules else Mode.OFF for rule in Rule}
    policy = Policy(modes=modes, ages=AT_ONCE, **fields)
    return make_plan(seen, policy, ReconcilerState(), CODECS_IN_USE)[0]


def skips(plan):
    return {entry.finding.object_ref.name: entry.skip for entry in plan.skipped}


# ---------------------------------------------------------------- another tenant's pod


def crowd(last=5):
    """A full GPU, and an old pod of another tenant's that claims to be on that GPU, too."""
    victims = [pod(f"victim-{at}", owner=owner(name=f"victim-{at}")) for at in range(5)]
    liar = pod("liar", namespace="evil", owner=owner(name="liar"), created_at=NOW - 9 * HOUR)
    return [*victims[:last], liar]


def test_a_lie_in_an_annotation_evicts_nobody_from_afar():
    plan = plan_of(with_ledgers(snapshot(*crowd())), Rule.DOUBLE_BOOKED)
    assert plan.actions == ()
    assert set(skips(plan).values()) == {SkipReason.NO_NODE_EVIDENCE}


def test_a_lie_in_an_annotation_evicts_nobody_from_the_node_either():
    pods = crowd()
    statements = [statement(each) for each in pods[:-1]]
    assert plan_of(on_node(*pods, statements=statements), Rule.DOUBLE_BOOKED).actions == ()


@pytest.mark.parametrize("source", [Source.SHIM, Source.LIMIT_FILE])
def test_nor_does_a_lie_in_a_file_within_a_tenants_reach(source):
    pods = crowd()
    statements = [*(statement(each) for each in pods[:-1]), statement(pods[-1], source=source)]
    assert plan_of(on_node(*pods, statements=statements), Rule.DOUBLE_BOOKED).actions == ()


def test_what_the_kubelet_shows_of_all_of_them_is_enough():
    pods = crowd()
    plan = plan_of(
        on_node(*pods, statements=[statement(each) for each in pods]), Rule.DOUBLE_BOOKED
    )
    assert len(plan.actions) == 1


def test_a_pod_that_claims_to_be_a_static_one_is_not_taken_for_another_pod():
    """A static pod's UID is a hash without dashes: no UID of the API server looks like it."""
    uid = "6f1f5a0e-0b9e-4a1c-9d52-0b7a3c1f4c11"
    victim = pod("victim", uid=uid)
    liar = replace(refused(pod("liar", namespace="evil")), annotations={MIRROR: uid})
    assert liar.kubelet_uid == liar.ref.uid
    for pods in ((victim, liar), (liar, victim)):
        held = on_node(*pods, statements=[statement(victim)]).ledgers["gpu-1"].holdings
        assert [holding.pod.uid for holding in held] == [uid]
    static = pod(annotations={MIRROR: "f" * 32})
    assert static.kubelet_uid == "f" * 32


def test_a_promise_that_cannot_be_read_is_not_kept_because_another_one_is():
    """Whose lock it is may still be served by the plugin that can read it."""
    kept = pod("owner", "gpushare")
    torn = assumed("owner", "hami", annotations=kept.annotations)
    (hami,), (gpushare,) = torn.containers, kept.containers
    torn = replace(
        torn,
        annotations={**torn.annotations, HAMI.devices: "GPU-1,NVIDIA"},
        containers=(replace(hami, limits={**hami.limits, **gpushare.limits}),),
    )
    plan = plan_of(snapshot(node("gpu-1", annotations=lock(torn)), torn), Rule.STALE_LOCK)
    assert skips(plan) == {"gpu-1": SkipReason.OWNER_WAITS}


# ---------------------------------------------------------------- a GPU that is taken meanwhile


def evicting_the_orphan(*meanwhile):
    """The outcome for an orphaned holder, if these were made after it was planned."""
    plan = plan_of(snapshot(holder()), Rule.KUBESHARE)
    assert len(plan.actions) == 1
    client = FakeClient(holder(), *meanwhile)
    time = FakeTime()
    applier = Applier(client, NoAudit(), ApplyOptions(clock=time, monotonic=time, sleep=time.sleep))
    (result,) = applier.apply(plan, unmoved())
    assert client.has(holder().ref.name) is (result.outcome is not ActionOutcome.DONE)
    return result.outcome, result.detail


def test_an_orphaned_holder_goes():
    assert evicting_the_orphan() == (ActionOutcome.DONE, "")
    assert evicting_the_orphan(share_pod(gpuid="other"))[0] is ActionOutcome.DONE
    assert evicting_the_orphan(share_pod(node="gpu-2"))[0] is ActionOutcome.DONE


@pytest.mark.parametrize(
    "user",
    [
        share_pod(served=False),
        share_pod(served=False, node=""),
        replace(real_pod(share_pod()), phase="Pending"),
    ],
)
def test_a_holder_whose_gpu_was_allocated_again_since_stays(user):
    """Nothing of the holder itself changes with that: its version is no evidence."""
    outcome, detail = evicting_the_orphan(user)
    assert outcome is ActionOutcome.CHANGED
    assert f"{user.ref.namespace}/{user.ref.name}" in detail


def test_a_holder_stays_where_share_pods_cannot_be_read():
    plan = plan_of(snapshot(holder()), Rule.KUBESHARE)
    client = FakeClient(holder())
    client.refuse("sharepod_pages", ClusterError(403, "Forbidden", "user cannot list sharepods"))
    (result,) = Applier(client, NoAudit()).apply(plan, unmoved())
    assert result.outcome is ActionOutcome.FORBIDDEN
    assert client.has(holder().ref.name)


def test_without_kubeshares_kind_nobody_uses_a_holder():
    plan = plan_of(snapshot(holder()), Rule.KUBESHARE)
    client = FakeClient(holder())
    client.refuse("sharepod_pages", ClusterError(404, "NotFound", "no such kind"))
    assert [result.outcome for result in Applier(client, NoAudit()).apply(plan, unmoved())] == [
        ActionOutcome.DONE
    ]


def test_a_pod_with_an_owner_is_nobodys_holder():
    for kind in ("ReplicaSet", "DaemonSet"):
        assert plan_of(snapshot(holder(owner=owner(kind))), Rule.KUBESHARE).entries == ()


# ---------------------------------------------------------------- what cannot be seen


def test_on_a_node_that_cannot_be_seen_nothing_is_touched_since_it_may_have_opted_out():
    sick = refused(pod())
    seen = snapshot(sick)
    assert plan_of(seen, Rule.REFUSED).actions
    unseen = replace(seen, nodes=(), complete=seen.complete - {Coverage.NODES})
    assert skips(plan_of(unseen, Rule.REFUSED)) == {"train-0": SkipReason.INCOMPLETE_VIEW}
    gone = replace(seen, nodes=())
    assert plan_of(gone, Rule.REFUSED).actions, "a node that is no more has opted out of nothing"


# ---------------------------------------------------------------- a tenant's noise


def noise(number, **fields):
    """What one tenant makes with one template: pods that never come anywhere, with a claim each."""
    return [
        unbound(f"noise-{at}", namespace="evil", owner=owner(name="noise"), **fields)
        for at in range(number)
    ]


def test_one_tenants_leftovers_do_not_trip_the_breaker_for_all():
    spam = [refused(pod(f"spam-{at}", namespace="evil")) for at in range(200)]
    ill = assumed("ill", node="gpu-2")
    plan = plan_of(
        snapshot(node("gpu-1"), node("gpu-2"), *noise(200), *spam, ill),
        *(Rule.REFUSED, Rule.ASSUMED_EXPIRED, Rule.ASSUMED_UNBOUND),
    )
    assert not plan.breaker.tripped
    assert plan.breaker.wanted == 3
    assert "ill" in {entry.finding.object_ref.name for entry in plan.actions}
    assert plan.actions[0].finding.object_ref.name == "ill"


def test_what_takes_a_pod_away_from_somebody_counts_each_time():
    ill = [assumed(f"ill-{at}") for at in range(11)]
    plan = plan_of(snapshot(*ill), Rule.ASSUMED_EXPIRED)
    assert plan.breaker.tripped
    assert (plan.breaker.wanted, plan.actions) == (11, ())


@pytest.mark.parametrize(
    "ill",
    [prestart_failed, lambda each: waiting(each, "RunContainerError", "no-gpu-has-8GiB-to-run")],
)
def test_who_asks_for_no_gpu_was_refused_none(ill):
    sick = ill(pod())
    rules = (Rule.PRESTART_FAILED, Rule.NO_GPU_MATCHED)
    assert plan_of(snapshot(sick), *rules).actions
    idle = tuple(replace(each, limits={}) for each in sick.containers)
    assert plan_of(snapshot(replace(sick, containers=idle)), *rules).entries == ()


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
def test_the_name_of_an_image_is_its_users_and_no_evidence(reason):
    message = 'Back-off pulling image "no-gpu-has-8gib-to-run"'
    sick = waiting(pod(), reason, message)
    assert plan_of(snapshot(sick), Rule.NO_GPU_MATCHED).entries == ()


def test_a_pod_behind_a_gate_keeps_no_lock_since_nobody_can_have_promised_it_anything():
    locked = node("gpu-1", annotations=lock(style="volcano"))
    waiter = unbound(namespace="evil")
    kept = plan_of(snapshot(locked, waiter), Rule.STALE_LOCK)
    assert skips(kept) == {"gpu-1": SkipReason.OWNER_WAITS}
    gated = plan_of(snapshot(locked, replace(waiter, gated=True)), Rule.STALE_LOCK)
    assert [entry.finding.cause for entry in gated.actions] == [Cause.NOBODY_WAITS]


@pytest.mark.slow
def test_one_tenants_many_troubles_do_not_keep_everybody_elses_from_growing_old():
    """No object records since when a holder is an orphan: the state must keep it."""
    promise = unbound("any", "gpushare").annotations
    timeless = {key: text for key, text in promise.items() if "TIME" not in key}
    crowd = [
        replace(each, annotations={**timeless, OPT_OUT: "false"})
        for each in noise(MOST + 100, style="gpushare")
    ]
    policy = Policy(modes={Rule.KUBESHARE: Mode.APPLY})
    memory = ReconcilerState()
    for minute in range(8):
        at = NOW + minute * MINUTE
        seen = snapshot(*crowd, *([holder()] if minute else []), now=at)
        plan, memory = make_plan(seen, policy, memory, CODECS_IN_USE)
    assert len(memory.seen) == MOST
    assert [entry.finding.rule for entry in plan.actions] == [Rule.KUBESHARE]


def test_a_repair_is_checked_against_the_ledger_of_its_node_and_not_of_the_whole_cluster(
    monkeypatch,
):
    """Else each of a tenant's many tiny pods would have every pod of the cluster read again."""
    first = Container("main", {"volcano.sh/vgpu-number": 1}, ContainerKind.INIT)
    runs = (Status("app", ContainerState.RUNNING),)
    pods = [
        replace(
            assumed(f"noise-{at}", node=f"gpu-{at}", phase="Running"),
            containers=(Container("app"), first),
            statuses=runs,
        )
        for at in range(20)
    ]
    read = []
    monkeypatch.setattr(
        cluster_index, "home", lambda pod, found: read.append(pod) or home(pod, found)
    )
    plan = plan_of(snapshot(*pods), Rule.RECOVER)
    assert {entry.finding.cause for entry in plan.actions} == {Cause.RUNS_UNASSIGNED}
    assert len(read) == len(pods)


# ---------------------------------------------------------------- an audit that somebody made up


def hostile(path, key, **fields):
    """An audit that claims that this annotation of a node was changed."""
    target = node("gpu-1", uid="uid-of-gpu-1")
    made = editing(target, key)
    made = replace(made, action=replace(made.action, **fields))
    with Audit.open(path) as audit:
        audit.result(planned(snapshot()), ActionResult(Entry(made), ActionOutcome.DONE))


def test_an_audit_does_not_write_what_the_reconciler_never_changes(tmp_path):
    """Such annotations are not even read, so that a change would not be noticed."""
    path = str(tmp_path / "audit.jsonl")
    key = "kubectl.kubernetes.io/last-applied-configuration"
    hostile(path, key, before={key: "evil"})
    client = FakeClient(node("gpu-1", uid="uid-of-gpu-1"))
    (restored,) = restore(read(path), client, NoAudit(), clock=lambda: NOW)
    assert (restored.undo, client.count("patch_node")) == (Undo.FAILED, 0)
    assert key in restored.detail


def test_an_edit_has_a_before_image_of_just_what_it_changes(tmp_path):
    path = tmp_path / "audit.jsonl"
    hostile(str(path), "hami.io/mutex.lock", before={"hami.io/mutex.lock": "1"})
    path.write_text(path.read_text().replace('"after":{"hami.io/mutex.lock"', '"after":{"x"'))
    with pytest.raises(AuditError, match=r"line 1: .*other annotations"):
        list(read(str(path)))


# ---------------------------------------------------------------- who is slow, or is stopped


def test_a_stopped_applier_does_not_report_a_lost_leadership():
    pods = [refused(pod("one")), refused(pod("two"))]
    plan = plan_of(snapshot(*pods), Rule.REFUSED)
    answers = chain([False], repeat(True))
    applier = Applier(FakeClient(*pods), NoAudit(), ApplyOptions(stopping=lambda: next(answers)))
    results = [(result.outcome, result.detail) for result in applier.apply(plan, unmoved())]
    assert results == [(ActionOutcome.DONE, ""), (ActionOutcome.OUT_OF_TIME, "stopped by a signal")]


@contextmanager
def acting(number, action):
    """What the signal does, whoever has started the tests (nohup ignores SIGHUP)."""
    before = signal.signal(number, action)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_an_apply_in_good_order_and_a_second_one_at_once(number):
    stopping = threading.Event()
    with acting(number, signal.SIG_DFL):
        with stopped_by_signals(stopping):
            assert signal.getsignal(number) != signal.SIG_DFL, "it would end the action under way"
            os.kill(os.getpid(), number)
            assert stopping.is_set()
            assert signal.getsignal(number) == signal.SIG_DFL
        assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_asks_for_nothing_does_nothing_to_an_apply(number):
    stopping = threading.Event()
    with acting(number, signal.SIG_DFL):
        with stopped_by_signals(stopping):
            assert signal.getsignal(number) == signal.SIG_IGN
            os.kill(os.getpid(), number)
        assert not stopping.is_set()
        assert signal.getsignal(number) == signal.SIG_DFL


def test_an_apply_under_nohup_outlives_its_terminal():
    stopping = threading.Event()
    with acting(signal.SIGHUP, signal.SIG_IGN):
        with stopped_by_signals(stopping):
            os.kill(os.getpid(), signal.SIGHUP)
        assert not stopping.is_set()


class Reader:
    """A person who reads a plan for so many seconds each time, and then answers yes."""

    def __init__(self, *seen, seconds):
        self.seen = [made(each) for each in seen]
        self.looked, self.asked, self.shown = [], [], []
        self.now, self.seconds = 0.0, seconds

    def view(self):
        self.looked.append(self.seen.pop(0))
        return self.looked[-1]

    def show(self, plan, remark=""):
        self.shown.append((plan, remark))

    def confirm(self, plan):
        self.asked.append(plan)
        self.now += self.seconds
        return True

    def agree(self):
        return agreed(self.view, self.show, self.confirm, lambda: self.now)


def made(seen):
    plan = plan_of(seen, Rule.REFUSED)
    return PreparedPlan(plan, seen, CODECS_IN_USE, ReconcilerState(), {})


ONE = snapshot(refused(pod("one")))
TWO = snapshot(refused(pod("one")), refused(pod("two")))
NOBODY = snapshot(pod("one"))


def test_who_agrees_at_once_gets_what_they_read():
    reader = Reader(ONE, seconds=5.0)
    assert reader.agree() is reader.looked[0]
    assert [plan for plan, _ in reader.shown] == reader.asked == reader.looked


def test_who_agrees_late_to_what_is_still_so_is_not_asked_again():
    reader = Reader(ONE, ONE, seconds=600.0)
    assert reader.agree() is reader.looked[1]
    assert len(reader.asked) == len(reader.shown) == 1


def test_who_agrees_late_to_what_has_changed_is_asked_again():
    reader = Reader(ONE, TWO, TWO, seconds=600.0)
    assert reader.agree() is reader.looked[2]
    assert reader.asked == reader.looked[:2]
    assert "changed" in reader.shown[1][1]


def test_who_agrees_late_to_what_has_passed_does_nothing():
    reader = Reader(ONE, NOBODY, seconds=600.0)
    agreed = reader.agree()
    assert agreed.plan.actions == ()
    assert len(reader.asked) == 1


# ---------------------------------------------------------------- a clock that is wrong

DATE = "Sat, 21 Nov 2026 03:00:00 GMT"
THEN = 1795230000.0


@pytest.mark.parametrize(
    ("date", "sent", "received", "ahead"),
    [
        (DATE, THEN, THEN + 0.9, 0.0),
        (DATE, THEN + 0.9, THEN + 0.95, 0.0),
        (DATE, THEN - 50, THEN + 0.5, 0.0),
        (DATE, THEN + 601, THEN + 602, 600.0),
        (DATE, THEN - 700, THEN - 600, -600.0),
        ("", THEN, THEN, 0.0),
        ("yesterday", THEN, THEN, 0.0),
        ("Sat, 21 Nov 99999 03:00:00 GMT", THEN, THEN, 0.0),
        ("Sat, 21 Nov 2026 03:00:00 +99999999999", THEN, THEN, 0.0),
    ],
)
def test_an_answers_date_shows_the_least_difference_of_our_clock(date, sent, received, ahead):
    assert clock_ahead(date, sent, received) == ahead


class Server:
    """An API server whose clock differs from ours."""

    server = "https://api"

    def __init__(self, ahead):
        self.clock_ahead = ahead


@pytest.mark.parametrize(("ahead", "margin"), [(61.0, 60.0), (-61.0, 60.0), (6.0, 0.0)])
def test_by_a_wrong_clock_nothing_is_judged(ahead, margin):
    observer = LateObserver(
        lambda: DumpObserver(
            b'{"kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "a", "uid": "u"}}]}',
            "dump",
            Units(),
        ),
        lambda: expect_right_clock(Server(ahead), margin),
    )
    cycle = Cycles(observer, Policy(), apply=lambda *_: pytest.fail("applied")).run()
    assert cycle.ending is Ending.BLIND
    assert ("ahead of" if ahead > 0 else "behind") in cycle.error


@pytest.mark.parametrize(("ahead", "margin"), [(60.0, 60.0), (-60.0, 60.0), (0.0, 0.0)])
def test_clocks_may_differ_by_the_margin(ahead, margin):
    expect_right_clock(Server(ahead), margin)
