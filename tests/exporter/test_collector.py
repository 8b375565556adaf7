"""One collector: its deadline, its record, and that nothing it does can hurt the sampler."""

import logging
import threading
import time

from tests.support.waiting import WAIT_SECONDS, wait_ended, wait_until
from vgpu.model.facts import ShimSample
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.sources.collector import MAX_EXAMPLES, Collector


def take(collector, argument=None):
    collector.begin(argument)
    collector.finish(time.monotonic() + WAIT_SECONDS)


def test_data_and_health_of_a_pass_that_worked():
    collector = Collector("x", lambda n: n + 1)
    before = time.time()
    take(collector, 41)
    row = collector.health()
    assert collector.data(0) == 42
    assert row.success
    assert row.duration >= 0
    assert before <= row.last_success <= time.time()
    assert row.failures == {}


def test_a_failed_pass_has_no_data_and_reports_its_reason(caplog):
    answers = [
        1,
        SourceError(Reason.ABSENT, "/x", "gone"),
        SourceError(Reason.ABSENT, "/x", "gone"),
    ]

    def collect(_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    collector = Collector("x", collect)
    take(collector)
    with caplog.at_level(logging.INFO):
        take(collector)
        take(collector)
    assert collector.data(0) is None
    assert not collector.health().success
    assert collector.health().failures == {Reason.ABSENT: 2}
    assert collector.health().last_error == "/x: gone"
    assert [(r.getMessage(), r.err) for r in caplog.records] == [("collector failed", "/x: gone")]


def test_a_pass_that_was_short_of_descriptors_is_no_success_and_keeps_what_it_has(caplog):
    want = Rejection("/pods", Reason.EXHAUSTED, "Too many open files")
    samples = [(), (want,), (want,), ()]
    collector = Collector("shim", lambda _: ShimSample((), samples.pop(0)))
    take(collector)
    first = collector.health()
    with caplog.at_level(logging.INFO):
        take(collector)
        take(collector)
    row = collector.health()
    assert not row.success
    assert not collector.ok
    assert row.failures == {Reason.EXHAUSTED: 2}
    assert row.last_success == first.last_success
    assert collector.data(0) == ShimSample((), (want,))
    failed = [r.err for r in caplog.records if r.getMessage() == "collector failed"]
    assert failed == [row.last_error]
    assert "/pods" in row.last_error
    take(collector)
    assert collector.health().success
    assert collector.health().last_error == ""


def test_a_defect_is_a_reason_and_never_an_exception():
    collector = Collector("x", lambda _: 1 // 0)
    take(collector)
    assert collector.health().failures == {Reason.INTERNAL: 1}
    take(collector)
    assert collector.health().failures == {Reason.INTERNAL: 2}


class HeavySample:
    """A sample whose refusals need more memory than there is."""

    @property
    def rejections(self):
        raise MemoryError


def test_a_pass_without_memory_is_exhausted_and_the_next_one_works():
    answers = [MemoryError(), HeavySample(), "data"]

    def collect(_):
        answer = answers.pop(0)
        if isinstance(answer, MemoryError):
            raise answer
        return answer

    collector = Collector("x", collect)
    take(collector)
    take(collector)  # none is left for its result either
    assert collector.health().failures == {Reason.EXHAUSTED: 2}
    assert collector.data(0) is None
    take(collector)
    assert (collector.data(0), collector.health().success) == ("data", True)


def test_a_hung_pass_is_abandoned_counted_once_and_never_doubled():
    begun, release, calls = threading.Event(), threading.Event(), []

    def collect(_):
        calls.append(1)
        begun.set()
        assert release.wait(WAIT_SECONDS), "the test never lets it go"
        return "late"

    collector = Collector("x", collect)
    assert collector.begin(None)
    wait_until(begun.is_set, "the pass has begun")
    collector.finish(time.monotonic() + 0.01)
    assert collector.stuck
    assert not collector.begin(None)
    collector.finish(time.monotonic() + WAIT_SECONDS)  # returns at once: it is known to be late
    row = collector.health()
    assert (row.success, row.failures, calls) == (False, {Reason.TIMEOUT: 1}, [1])
    assert row.stuck_seconds > 0
    release.set()
    wait_until(
        lambda: not collector.stuck and collector.data(0),
        "the late pass returns",
        context=lambda: str(collector.health()),
    )
    assert collector.data(0) == "late"
    assert collector.health().success
    assert collector.health().stuck_seconds == 0


def test_data_that_is_too_old_is_withdrawn():
    collector = Collector("x", lambda _: 1)
    before = time.monotonic()
    take(collector)
    assert collector.data(before) == 1
    assert collector.data(time.monotonic() + 1) is None


def test_a_collector_that_is_closed_leaves_no_thread():
    collector = Collector("closed", lambda _: 1)
    take(collector)
    (thread,) = (each for each in threading.enumerate() if each.name == "collector-closed")
    collector.close()
    wait_ended(thread, "the collector's thread ends")


def test_refused_inputs_are_counted_and_logged_once_while_they_last(caplog):
    bad = Rejection("/a\nb", Reason.TRUNCATED, "short")
    samples = [(bad,), (bad,), (), (bad,)]
    collector = Collector("shim", lambda _: ShimSample((), samples.pop(0)))
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            take(collector)
    row = collector.health()
    assert row.rejected == {Reason.TRUNCATED: 1}
    assert row.rejections == {Reason.TRUNCATED: 3}
    assert row.examples == ("'/a\\nb': the file ends before its content does (short)",)
    assert len(caplog.records) == 2


def test_ten_thousand_refusals_do_not_fill_the_log(caplog):
    many = tuple(Rejection(f"/{i}", Reason.EMPTY) for i in range(10_000))
    collector = Collector("shim", lambda _: ShimSample((), many))
    with caplog.at_level(logging.WARNING):
        take(collector)
    assert len(caplog.records) == MAX_EXAMPLES + 1
    assert collector.health().rejected == {Reason.EMPTY: 10_000}


def test_a_replaced_driver_is_a_fatal_error_for_the_sampler():
    error = SourceError(Reason.VERSION_MISMATCH, "nvmlInit", "")

    def collect(_):
        raise error

    collector = Collector("nvml", collect)
    take(collector)
    assert collector.fatal is error


def test_before_the_first_pass_success_is_unknown():
    assert Collector("x", int).health().success is None


def test_freshness_counts_from_the_beginning_of_a_pass():
    begun = []
    collector = Collector("x", lambda _: begun.append(time.monotonic()) or time.sleep(0.2) or 1)
    take(collector)
    assert collector.data(begun[0] + 0.1) is None


def test_a_pass_that_returned_just_in_time_is_not_called_late():
    collector = Collector("x", lambda _: 1)
    take(collector)
    collector.finish(0.0)
    assert not collector.stuck
    assert collector.health().success
