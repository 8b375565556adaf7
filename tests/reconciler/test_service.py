"""The loop of the long-running reconciler: the leader works, a stopped process begins nothing."""

import logging
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reconciler.cycle import Cycle, Ending
from reconciler.metrics import ReconcilerMetrics
from reconciler.model import Breaker, Plan, Scope
from reconciler.policy import Mode
from reconciler.schedule import Missed
from reconciler.service import HUNG_SECONDS, Loop, routes
from tests.support.waiting import WAIT_SECONDS, wait_ended, wait_until
from vgpu.inventory import unit_doubt
from vgpu.metrics.render import Format
from vgpu.model.objects import Node
from vgpu.model.units import MIB
from vgpu.schemes.volcano.row import VOLCANO_ROW
from vgpu.web.message import HttpRequest

DEADLINE = 120.0


class Cycles:
    """Cycles that end as configured."""

    def __init__(self, *endings):
        self.endings = list(endings) or [Ending.APPLIED]
        self.runs, self.forgotten = 0, 0
        self.held = threading.Event()
        self.held.set()
        self.running = threading.Event()

    def run(self):
        self.runs += 1
        self.running.set()
        self.held.wait(WAIT_SECONDS)
        return Cycle(float(self.runs), self.endings[min(self.runs, len(self.endings)) - 1])

    def forget(self):
        self.forgotten += 1


class Candidate:
    """Knows who leads."""

    identity = "me"

    def __init__(self, holder):
        self.holder = holder

    def leads(self):
        return self.holder == self.identity


class Clock:
    """Seconds that go on by a tenth at each call, or by the amount of a sleep."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.1
        return self.now


@pytest.fixture
def stopping():
    return threading.Event()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(stopping, clock, monkeypatch):
    monkeypatch.setattr("reconciler.service.STEP_SECONDS", 0.0)  # the clock goes on by itself

    def loop(cycles, leader=None):
        numbers = ReconcilerMetrics(Scope.CLUSTER, Mode.APPLY)
        made = Loop(cycles, numbers, leader, stopping, deadline=DEADLINE, monotonic=clock)
        return made, numbers

    return loop


def counted(numbers):
    text = numbers.render().body(Format.TEXT).decode()
    return {
        next(iter(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        if family.name in ("vgpu_reconcile_cycles", "vgpu_reconcile_missed_cycles")
        for sample in family.samples
        if sample.value
    }


def status(loop, numbers, path):
    return routes(loop, numbers)[path](HttpRequest("GET", path, "", {})).status


def test_who_leads_works(make):
    loop, numbers = make(Cycles(), Candidate("me"))
    loop.cycle()
    assert counted(numbers) == {"applied": 1}


def unconfirmed(name, share=8 * MIB):
    return unit_doubt(Node(name), VOLCANO_ROW, MIB, [share])


def test_a_unit_in_doubt_is_logged_once_whichever_nodes_have_it(make, caplog):
    plans = [
        Plan("id", 1.0, Scope.CLUSTER, (), (), (), Breaker(0, 10, 0), unit_doubts=doubts)
        for doubts in (
            (unconfirmed("gpu-1"),),
            (unconfirmed("gpu-2", share=7 * MIB), unconfirmed("gpu-3")),
            (),
            (unconfirmed("gpu-1"),),
        )
    ]
    cycles = Cycles()
    cycles.run = lambda: Cycle(1.0, Ending.PLANNED, plans.pop(0))
    loop, numbers = make(cycles)
    with caplog.at_level(logging.INFO, "reconciler.service"):
        for nodes in (1, 2, 0, 1):
            loop.cycle()
            page = numbers.render().body(Format.TEXT).decode()
            assert f'vgpu_reconcile_unit_unconfirmed_nodes{{scheme="volcano"}} {nodes}\n' in page
            assert 'vgpu_reconcile_unit_unconfirmed_nodes{scheme="gpushare"} 0\n' in page
    notes = [vars(each).get("reason", each.msg) for each in caplog.records if "unit" in each.msg]
    begun = (
        "unit unconfirmed on gpu-1: a share has 8 MiB with --volcano.memory-factor 1;"
        " 8 or more would fit"
    )
    assert notes == [begun, "a unit of memory is confirmed again", begun]


def test_what_could_not_be_seen_is_logged_when_it_begins(make, caplog):
    blind, seeing = (
        Plan("id", 1.0, Scope.NODE, (), (), (), Breaker(0, 10, 0), notes=notes)
        for notes in (("folders are not judged",), ())
    )
    plans = [blind, blind, seeing, blind]
    cycles = Cycles()
    cycles.run = lambda: Cycle(1.0, Ending.PLANNED, plans.pop(0))
    loop, numbers = make(cycles)
    counts = []
    while plans:
        caplog.clear()
        loop.cycle()
        reasons = [vars(each).get("reason", "") for each in caplog.records]
        counts.append(sum("folders are not judged" in reason for reason in reasons))
    assert counts == [1, 0, 0, 1]
    assert b"vgpu_reconcile_notes 1" in numbers.render().body(Format.TEXT)


def test_who_stands_by_looks_at_nothing_and_forgets_what_it_knew(make):
    cycles = Cycles()
    loop, numbers = make(cycles, Candidate("another"))
    loop.cycle()
    assert (cycles.runs, cycles.forgotten) == (0, 1)
    assert counted(numbers) == {"standby": 1}
    assert status(loop, numbers, "/-/ready") == 200


@pytest.mark.parametrize("holder", ["", "me"])
def test_if_nobody_knows_who_leads_that_is_no_standing_by(make, holder):
    candidate = Candidate(holder)
    candidate.leads = lambda: False
    cycles = Cycles()
    loop, numbers = make(cycles, candidate)
    loop.cycle()
    assert cycles.runs == 0
    assert counted(numbers) == {"blind": 1}
    assert status(loop, numbers, "/-/ready") == 503


def test_the_first_cycle_waits_until_it_is_known_who_leads(make, stopping):
    candidate = Candidate("")
    cycles = Cycles()
    loop, numbers = make(cycles, candidate)
    asked = []

    def leads():
        asked.append(True)
        if len(asked) > 3:
            candidate.holder = "me"
        return candidate.holder == "me"

    candidate.leads = leads
    loop.cycle()
    assert cycles.runs == 1
    assert counted(numbers) == {"applied": 1}


def test_ready_is_who_has_seen_something_once(make):
    loop, numbers = make(Cycles(Ending.BLIND, Ending.PARTLY, Ending.BLIND))
    seen = []
    for _ in range(3):
        loop.cycle()
        seen.append(status(loop, numbers, "/-/ready"))
    assert seen == [503, 200, 200]


def test_a_cycle_that_never_ends_is_not_healthy(make, clock):
    cycles = Cycles()
    cycles.held.clear()
    loop, numbers = make(cycles)
    thread = threading.Thread(target=loop.cycle)
    thread.start()
    wait_until(cycles.running.is_set, "the cycle runs")
    assert status(loop, numbers, "/-/healthy") == 200
    clock.now += DEADLINE + HUNG_SECONDS + 1
    assert status(loop, numbers, "/-/healthy") == 503
    assert not loop.finish(0.01)
    cycles.held.set()
    wait_ended(thread, "the cycle ends")
    assert loop.finish(WAIT_SECONDS)
    assert status(loop, numbers, "/-/healthy") == 200


def test_the_page_at_the_root_leads_to_the_metrics_and_probes(make):
    page = routes(*make(Cycles()))["/"](HttpRequest("GET", "/", "", {})).body.decode()
    assert "vgpu reconciler" in page
    for path in ("/metrics", "/-/healthy", "/-/ready"):
        assert f'<a href="{path}">' in page


def test_a_stopped_process_begins_nothing(make, stopping):
    cycles = Cycles()
    loop, numbers = make(cycles, Candidate("me"))
    stopping.set()
    loop.cycle()
    assert cycles.runs == 0
    assert counted(numbers) == {}


def test_a_missed_cycle_is_counted_and_logged_with_its_defect(make, caplog):
    loop, numbers = make(Cycles())
    with caplog.at_level(logging.ERROR):
        loop.missed(Missed.FAILED, RuntimeError("a defect"))
    assert counted(numbers) == {"failed": 1}
    assert "a defect" in caplog.text
