"""What the binder does not take for granted: old readings, old boots, pods that no source names.

A real binder over real late files or CDI specs; the kubelet's checkpoint and the API server are
what a test makes them.
"""

import threading
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from deviceplugin.adapters.volcano import VolcanoAdapter
from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder import Binder
from deviceplugin.allocate.binder_state import Recovered
from deviceplugin.allocate.binding import bind, injection
from deviceplugin.allocate.binding_writer import AllocateContext
from deviceplugin.failpoints import noop
from deviceplugin.injection.cdi import CdiInjector
from deviceplugin.injection.files import FileInjector
from deviceplugin.reasons import BindRefusal, BindRefused
from deviceplugin.recovery.startup import CheckpointContent
from tests.deviceplugin.allocation_values import (
    GPUS,
    NODE,
    ROLE,
    A,
    B,
    C,
    assignment,
    claimed,
    pod,
    share,
)
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.model.names import Scheme
from vgpu.schemes.volcano.codec import Volcano
from vgpu.schemes.volcano.key_set import VOLCANO

FIRST, SECOND, THIRD = ("1" * 24, "2" * 24, "3" * 24)
PATIENT, HASTY = WAIT_SECONDS, 0.3


class Table:
    """The kubelet's checkpoint."""

    def __init__(self):
        self.rows, self.writes = (), 0

    def put(self, *rows):
        self.rows, self.writes = rows, self.writes + 1

    def stamp(self):
        return self.writes

    def read(self):
        return self.rows


class Pods:
    """The API server; ``hang`` keeps who asks it."""

    def __init__(self):
        self.watched, self.heard = {}, True
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()

    def put(self, *made):
        self.watched = {one.kubelet_uid: one for one in made}

    def known(self):
        return dict(self.watched) if self.heard else None

    def find(self, uid):
        return (self.known() or {}).get(uid)

    def ask(self):
        self.asked.set()
        assert self.answers.wait(PATIENT), "the test never lets it answer"
        return dict(self.watched)


class Nobody:
    """A store and a watcher that let everything pass."""

    def save(self, admitted_pods: Iterable[object]) -> None:
        list(admitted_pods)

    def __getattr__(self, name):
        return lambda *_: None


class Bench:
    def __init__(self, folder, make):
        paths = replace(VOLCANO.paths, containers=str(folder / "containers"))
        self.adapter = VolcanoAdapter(Volcano(paths=paths), split_count=ROLE.split_count)
        self.table, self.pods, self.gone = Table(), Pods(), set()
        self.injector = make(str(folder / "handout"), Scheme.VOLCANO, "this-boot")
        self.found = [Recovered(AllocationState.of(GPUS))]
        self.known = []
        self.binder = Binder(
            AllocateContext(self.adapter, NODE, self.pods, self.injector, noop),
            self.table,
            Nobody(),
            Nobody(),
            lambda state, *_: self.gone & state.allocation_state.admitted_pods.keys(),
        )

    def start(self):
        self.binder.start(self.recover)
        assert self.binder.recovered(PATIENT)

    def recover(self, known):
        self.known.append(tuple(known))
        return self.found.pop(0) if len(self.found) > 1 else self.found[0]

    def answered(self, about, name, ids, *, as_if=None):
        """The kubelet's entry of a pod, with what Allocate answered, be it for another."""
        row = assignment(about, name=name, ids=ids)
        guess = assignment(as_if or about, name=name, ids=ids)
        allocation_state = bind(
            self.adapter, NODE, AllocationState.of(GPUS), guess, as_if or about, now=1.0
        )
        given = injection(
            self.adapter, allocation_state, as_if or about, allocation_state.binding_of(guess)
        )
        return replace(row, answer=self.injector.response(name, given.edits, given.late_env))

    def assign(self, *rows):
        for row in rows:
            self.binder.expect(row.name)
        self.table.put(*rows)

    def why_not(self, ids, seconds=HASTY):
        with pytest.raises(BindRefused) as refused:
            self.binder.started(frozenset(ids), seconds)
        return refused.value.why

    def wait_refused(self, ids, why):
        """A busy machine may need longer than HASTY to find the reason."""
        wait_until(lambda: self.why_not(ids) is why, f"refused for {why}")


@pytest.fixture(params=[CdiInjector, FileInjector], ids=["cdi", "files"])
def bench(request, tmp_path, monkeypatch):
    monkeypatch.setattr("deviceplugin.adapters.volcano.LOCK_FOLDER", str(tmp_path / "lock"))
    bench = Bench(tmp_path, request.param)
    yield bench
    bench.pods.answers.set()
    bench.binder.stop()


def test_a_container_that_is_bound_may_start(bench):
    bench.start()
    first = pod("first", share(A, 2))
    bench.pods.put(first)
    bench.assign(bench.answered(first, FIRST, ("id-0",)))
    bench.binder.started(frozenset({"id-0"}), PATIENT)
    assert bench.injector.written() == {FIRST}


def test_what_was_read_before_the_kubelets_request_is_no_evidence(bench):
    bench.start()
    gone, waits, comes = (
        pod("gone", share(A, 2)),
        pod("waits", share(C, 1)),
        pod("comes", share(B, 3)),
    )
    bench.pods.put(gone)
    old = bench.answered(gone, FIRST, ("id-0",))
    bench.assign(old)
    bench.binder.started(frozenset({"id-0"}), PATIENT)
    # The API server hangs while it is asked for one pod, and the IDs of the dead go to another.
    bench.pods.put()
    bench.pods.answers.clear()
    third = bench.answered(waits, THIRD, ("id-9",))
    bench.assign(old, third)
    wait_until(bench.pods.asked.is_set, "the API server is asked")
    bench.pods.watched = {"comes": comes}
    bench.assign(bench.answered(comes, SECOND, ("id-0",), as_if=gone), third)
    assert bench.why_not({"id-0"}) is BindRefusal.NOT_SEEN
    bench.pods.answers.set()
    if bench.injector.guesses:
        assert bench.why_not({"id-0"}, PATIENT) is BindRefusal.CROSSED
    else:
        bench.binder.started(frozenset({"id-0"}), PATIENT)
        assert SECOND in bench.injector.written()


def test_nobody_new_is_served_before_it_is_known_who_was_there(bench):
    bench.pods.heard = False
    there, comes = pod("there", share(A, 6)), pod("comes", share(A, 6))
    full = AllocationState.of(GPUS).admitted(there, claimed(there), 1.0)
    bench.found = [Recovered(AllocationState.of(GPUS), (), frozenset({"there"})), Recovered(full)]
    bench.start()
    bench.pods.put(there, comes)  # it answers who asks, and its watch is not back yet
    bench.assign(bench.answered(comes, FIRST, ("id-0",)))
    assert bench.why_not({"id-0"}) is BindRefusal.NOT_SEEN
    bench.pods.heard = True
    bench.binder.wake()
    bench.wait_refused({"id-0"}, BindRefusal.NO_ROOM)
    assert len(bench.known) == 2


def test_a_pod_with_devices_that_do_not_exist_is_not_started_again(bench):
    one, two = pod("one", share(A, 6)), pod("two", share(A, 6))
    empty = AllocationState.of(GPUS)
    alone = [empty.admitted(each, claimed(each), 1.0).admitted_pods for each in (one, two)]
    allocation_state, conflicts = AllocationState.over(
        GPUS, [admitted_pod for each in alone for admitted_pod in each.values()]
    )
    assert conflicts
    bench.found = [Recovered(allocation_state)]
    bench.pods.put(one, two)
    bench.assign(bench.answered(one, FIRST, ("id-0",)), bench.answered(two, SECOND, ("id-1",)))
    bench.start()
    bench.binder.started(frozenset({"id-0"}), PATIENT)
    bench.wait_refused({"id-1"}, BindRefusal.NO_ROOM)
    assert bench.injector.written() == {FIRST}


def test_a_gpu_that_is_lost_for_a_moment_is_no_reason_to_give_the_pod_up(bench):
    bench.start()
    first = pod("first", share(A, 2))
    bench.pods.put(first)
    bench.binder.offer(GPUS)
    allocation_state = bind(
        bench.adapter,
        NODE,
        AllocationState.of(GPUS),
        assignment(first, name=FIRST),
        first,
        now=1.0,
    )
    bench.found = [Recovered(allocation_state)]
    lost, _ = allocation_state.with_devices(GPUS[1:])
    with pytest.raises(BindRefused) as refused:
        injection(
            bench.adapter, lost, first, allocation_state.binding_of(assignment(first, name=FIRST))
        )
    assert refused.value.why is BindRefusal.UNKNOWN_DEVICE
    assert not refused.value.final


def test_an_older_boots_admitted_pods_count_where_the_kubelet_still_has_our_answer():
    first, second = pod("first", share(A, 2)), pod("second", share(B, 2))
    rows = [assignment(first, name=FIRST), assignment(second, name=SECOND)]
    allocation_state = AllocationState.of(GPUS)
    for row, each in zip(rows, (first, second), strict=True):
        allocation_state = bind(ROLE, NODE, allocation_state, row, each, now=1.0)
    admitted_pods = tuple(allocation_state.admitted_pods.values())
    older = CheckpointContent(admitted_pods, this_boot=False)
    assert older.trusted(()) == ()
    assert [one.pod.uid for one in older.trusted(rows[:1])] == ["first"]
    forged = replace(rows[0], pod_uid="second", container="main")
    assert older.trusted([forged]) == ()
    assert CheckpointContent(admitted_pods, this_boot=True).trusted(()) == admitted_pods
