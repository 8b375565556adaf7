"""One look at all sources: what of it counts, and which of them was not whole."""

import threading
import time

from tests.support.waiting import WAIT_SECONDS
from vgpu.model.facts import LimitSample, ProcessSample, ShimSample
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.sources.collector import Collector
from vgpu.sources.observation import Collectors, observe

SHIM, LIMITS = ShimSample(()), LimitSample(())


def answers(*samples):
    """What a collector collects: these in turn, of which the last one goes on."""
    left = list(samples)

    def collect(_):
        sample = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(sample, Exception):
            raise sample
        return sample

    return collect


def look(on, stale=3600.0, timeout=WAIT_SECONDS):
    return observe(on, time.time(), timeout, stale)


def test_a_sample_that_was_read_for_this_observation_is_never_stale():
    on = Collectors(
        shim=Collector("shim", answers(SHIM)),
        limits=Collector("limits", answers(LIMITS)),
        process=Collector("process", answers(ProcessSample({}, True, None))),
    )
    seen = look(on, stale=0.0)  # any look takes longer than that
    assert (seen.shim, seen.limits) == (SHIM, LIMITS)
    assert seen.process is not None
    assert not seen.incomplete


def test_a_sample_of_an_earlier_observation_counts_until_it_is_stale():
    release = threading.Event()
    on = Collectors(shim=Collector("shim", answers(SHIM)))
    look(on)
    on.shim.collect = lambda _: release.wait(WAIT_SECONDS) and SHIM
    late = look(on, timeout=0.0)
    assert late.shim == SHIM
    assert late.incomplete == {"shim"}  # it may lack who has come since
    assert look(on, timeout=0.0, stale=0.0).shim is None
    release.set()


def test_a_source_that_failed_or_read_only_a_part_is_incomplete_and_one_that_is_off_is_not():
    want = Rejection("/x", Reason.EXHAUSTED)
    on = Collectors(
        shim=Collector("shim", answers(SourceError(Reason.UNREADABLE, "/roots"))),
        limits=Collector("limits", answers(LimitSample((), (want,)))),
    )
    seen = look(on)
    assert (seen.shim, seen.own) == (None, None)
    assert seen.limits is not None
    assert seen.incomplete == {"shim", "limits"}
