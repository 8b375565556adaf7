"""The work queue: no key is worked on twice at a time, none is lost, what fails waits longer."""

import itertools
import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.waiting import WAIT_SECONDS, wait_ended, wait_until
from vgpu.apiserver.backoff import LONGEST_SECONDS, ItemBackoff
from vgpu.apiserver.work_queue import KeyQueue, WorkQueue

# ---------------------------------------------------------------- all orders of events

keys = st.sampled_from("abcd")
pauses = st.sampled_from([0.0, 0.5, 1.0, 3.0, LONGEST_SECONDS])


class KeyQueues(RuleBasedStateMachine):
    """A queue beside a model of it: what must come, in which order, and what is worked on."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.queue = KeyQueue(ItemBackoff(lambda: 1.0))
        self.waiting = []  # in the order in which they must be returned
        self.working = set()
        self.dirty = set()
        self.delayed = {}  # when each begins to wait; of one moment in the order of their coming
        self.order = itertools.count()
        self.failures = dict.fromkeys("abcd", 0)
        self.shut_down = False

    def expect(self, key):
        if key in self.working:
            self.dirty.add(key)
        elif key not in self.waiting:
            self.waiting.append(key)

    def expect_later(self, key, seconds):
        if seconds <= 0:
            self.expect(key)
        else:
            when = self.now + seconds, next(self.order)
            if key not in self.delayed or when[0] < self.delayed[key][0]:
                self.delayed[key] = when

    @rule(key=keys)
    def is_added(self, key):
        self.queue.add(key)
        if not self.shut_down:
            self.expect(key)

    @rule(key=keys, seconds=pauses)
    def is_added_later(self, key, seconds):
        self.queue.add_after(key, seconds, self.now)
        if not self.shut_down:
            self.expect_later(key, seconds)

    @rule(key=keys)
    def fails(self, key):
        self.queue.add_rate_limited(key, self.now)
        if not self.shut_down:
            self.failures[key] += 1
            self.expect_later(key, min(2.0 ** (self.failures[key] - 1), LONGEST_SECONDS))

    @rule(key=keys)
    def is_forgotten(self, key):
        self.queue.forget(key)
        self.failures[key] = 0

    @rule(seconds=pauses)
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def is_taken(self):
        key = self.queue.get(self.now)
        for (at, _), due in sorted((when, key) for key, when in self.delayed.items()):
            if at <= self.now:
                del self.delayed[due]
                self.expect(due)
        if not self.waiting:
            assert key is None
            return
        assert key == self.waiting.pop(0)
        assert key not in self.working
        self.working.add(key)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def is_done(self, data):
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.queue.done(key)
        self.working.remove(key)
        if key in self.dirty:
            self.dirty.remove(key)
            self.expect(key)

    @precondition(lambda self: not self.shut_down)
    @rule()
    def is_shut_down(self):
        self.queue.shut_down()
        self.shut_down = True
        self.delayed.clear()

    @invariant()
    def it_knows_the_same(self):
        assert len(self.queue) == len(self.waiting)
        assert self.queue.next_at() == min((at for at, _ in self.delayed.values()), default=None)
        assert {key: self.queue.failures(key) for key in self.failures} == self.failures
        assert self.queue.is_shut_down == self.shut_down
        assert self.queue.is_drained == (self.shut_down and not (self.waiting or self.working))

    def teardown(self):
        """Whatever was added comes in the end."""
        self.now += 2 * LONGEST_SECONDS
        left = {*self.waiting, *self.dirty, *self.delayed}
        came = set()
        for key in tuple(self.working):
            self.queue.done(key)
        while (key := self.queue.get(self.now)) is not None:
            assert key not in came
            came.add(key)
        assert came == left


TestKeyQueues = KeyQueues.TestCase
TestKeyQueues.settings = settings(stateful_step_count=40)


# ---------------------------------------------------------------- several threads


def test_a_waiting_worker_gets_added_keys_and_none_after_the_shutdown():
    queue, came = WorkQueue(), []

    def work():
        while (key := queue.get()) is not None:
            came.append(key)
            queue.done(key)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for number in range(20):
        queue.add(number)
    queue.add_after("later", 0.01)
    wait_until(lambda: len(came) == 21, "all keys come")
    queue.shut_down()
    for worker in workers:
        wait_ended(worker, "the worker ends")
    queue.add("too late")
    assert len(queue) == 0
    assert set(came) == {*range(20), "later"}


def test_a_key_is_with_one_worker_at_a_time():
    queue = WorkQueue()
    busy, twice, worked = set(), [], []

    def work():
        while (key := queue.get()) is not None:
            if key in busy:
                twice.append(key)
            busy.add(key)
            worked.append(key)
            queue.add(key) if len(worked) < 200 else None
            busy.discard(key)
            queue.done(key)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for key in "ab":
        queue.add(key)
    for worker in workers:
        worker.start()
    wait_until(lambda: len(worked) >= 200, "both keys come again and again")
    queue.shut_down()
    for worker in workers:
        wait_ended(worker, "the worker ends")
    assert twice == []


def test_the_end_waits_for_work_that_is_under_way():
    queue = WorkQueue()
    queue.add("a")
    assert queue.get() == "a"
    queue.shut_down()
    assert not queue.wait_drained(0)
    threading.Thread(target=queue.done, args=("a",)).start()
    assert queue.wait_drained(WAIT_SECONDS)
    assert queue.get() is None


def test_a_key_that_fails_comes_again_later_each_time():
    now = [0.0]
    queue = WorkQueue(ItemBackoff(lambda: 1.0), monotonic=lambda: now[0])
    for seconds in (1.0, 2.0, 4.0):
        queue.add_rate_limited("a")
        assert len(queue) == 0
        now[0] += seconds
        assert queue.get() == "a"
        queue.done("a")
    assert queue.failures("a") == 3
    queue.forget("a")
    assert queue.failures("a") == 0
