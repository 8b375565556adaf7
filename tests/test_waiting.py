"""A wait that fails reports what it waited for and the last state that it saw."""

import queue
import threading

import pytest

from tests.support import waiting
from tests.support.waiting import item_of, wait_emptied, wait_ended, wait_until


def failure_text(call, *args, **options):
    with pytest.raises(AssertionError) as error:
        call(*args, **options)
    return str(error.value)


def test_the_first_true_answer_is_returned():
    answers = iter([0, "", None, "at last", "later"])
    assert wait_until(lambda: next(answers), "there") == "at last"


def test_a_wait_that_fails_reports_the_last_answer_and_the_context():
    message = failure_text(wait_until, list, "three pods", seconds=0.01, context=lambda: "the log")
    assert message == "never three pods in 0.01 s; at last: []\nthe log"


def test_an_allowed_failure_counts_as_not_yet_and_is_reported_at_the_end():
    answers = iter([OSError("refused"), OSError("refused")])

    def ask():
        error = next(answers, None)
        if error:
            raise error
        return True

    assert wait_until(ask, "served", failures=(OSError,))
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 // 0, "served", failures=(OSError,))
    message = failure_text(wait_until, open, "served", seconds=0.01, failures=(TypeError,))
    assert "TypeError" in message


def test_who_comes_late_is_asked_once_more_after_the_end():
    asked = []
    failure_text(wait_until, lambda: asked.append(1), "there", seconds=-1.0)
    assert asked == [1]


def test_many_things_may_go_one_by_one_however_long_that_takes(monkeypatch):
    now = iter(range(1000))
    monkeypatch.setattr(waiting, "monotonic", lambda: next(now))
    left = [["a", "b", "c"]] * 4 + [["a", "b"]] * 4 + [["a"]] * 4 + [[]]
    rest = iter(left)
    wait_emptied(lambda: next(rest), "pods", seconds=5, pause=0)
    rest = iter(left)
    message = failure_text(wait_emptied, lambda: next(rest), "pods", seconds=1, pause=0)
    assert message == "pods: 3 are left, and none went for 1 s: ['a', 'b', 'c']"


def test_an_item_may_be_anything():
    items = queue.Queue()
    for item in (None, 0, {}):
        items.put(item)
    assert [item_of(items, "an item") for _ in range(3)] == [None, 0, {}]


def test_a_thread_that_never_ends_is_reported_with_its_stack(monkeypatch):
    monkeypatch.setattr(wait_until, "__kwdefaults__", wait_until.__kwdefaults__ | {"seconds": 0.01})
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait, name="stuck-one")
    thread.start()
    try:
        message = failure_text(wait_ended, thread, "it ends")
    finally:
        go_on.set()
    assert message.startswith("never it ends in 0.01 s; at last: False\n")
    assert "stuck-one:\n" in message
    assert "self._cond.wait" in message
    thread.join()
