"""The events of rejected pods: when one is written, and what a pod that is tried often costs."""

import pytest

from scheduler.verbs.extender import INTERVAL_SECONDS, RejectionEvents
from vgpu.model.names import PodRef

POD = PodRef("uid-a", "ns", "a")


class Rejecting:
    """Rejects a pod at a time that the test sets, for a text that the test sets."""

    def __init__(self):
        self.now, self.text, self.explained, self.written = 1000.0, "full", 0, []
        self.events = RejectionEvents(self.written.append, lambda: self.now)

    def explain(self):
        self.explained += 1
        return self.text

    def reject(self, after=0.0):
        self.now += after
        self.events.rejected(POD, self.explain)

    def texts(self):
        self.events.finish(5.0)
        return [note.message for note in self.written]


@pytest.fixture
def rejecting():
    return Rejecting()


def test_a_pod_that_is_tried_all_the_time_is_explained_once_a_minute(rejecting):
    for _ in range(150):
        rejecting.reject(after=1.0)
    assert rejecting.explained == 3
    assert rejecting.texts() == ["full"]


def test_a_changed_text_is_written_after_a_minute_at_most(rejecting):
    rejecting.reject()
    rejecting.reject(after=INTERVAL_SECONDS)
    rejecting.text = "unhealthy"
    rejecting.reject(after=INTERVAL_SECONDS - 1)
    assert rejecting.explained == 2
    rejecting.reject(after=1)
    assert rejecting.texts() == ["full", "unhealthy"]
