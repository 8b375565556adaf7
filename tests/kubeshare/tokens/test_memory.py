"""The memory of a pod: never above its limit, never below zero, and gone with its connections."""

from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from kubeshare.tokens.pod import MemoryBook

SIZES = st.integers(0, 5)  # few, so that processes have the same ones
LIMIT = 40


def test_what_a_process_frees_through_another_connection_is_no_other_processes():
    """Gemini 1.1: one process has a and c, the other one b; both have allocated as much."""
    book = MemoryBook()
    assert book.book("a", 60, 120)
    assert book.book("b", 60, 120)
    book.free("c", 60)
    assert book.booked == 60
    book.close("a")
    book.close("c")
    assert book.booked == 60
    book.close("b")
    assert book.booked == 0


def test_what_is_freed_is_forgotten_with_its_connections():
    book = MemoryBook()
    assert book.book("a", 60, 100)
    book.free("b", 60)
    assert (book.booked, "a" in book, "b" in book) == (0, False, False)


def test_what_nobody_has_booked_is_not_released():
    """As what a process of Gemini 1.1 has allocated before the daemon started."""
    book = MemoryBook()
    book.free("a", 60)
    assert book.book("b", 100, 100)
    assert not book.book("b", 1, 100)


def test_a_booking_without_its_connection_is_freed_by_its_size_or_with_the_pod():
    book = MemoryBook()
    assert book.book("a", 60, 100)
    assert book.book("b", 40, 100)
    book.detach("a")
    book.close("b")
    assert (book.booked, book.unattributed) == (60, 60)
    book.free("c", 60)
    assert (book.booked, book.unattributed) == (0, 0)
    assert book.book("a", 60, 100)
    book.detach("a")
    book.clear()
    assert book.booked == 0


def test_a_lower_limit_takes_nothing_back():
    book = MemoryBook()
    assert book.book("a", 60, 100)
    assert not book.book("a", 1, 50)
    assert book.booked == 60


class Process:
    """A process with one connection, or one for each message."""

    def __init__(self, number, connects_each_time):
        self.number, self.connects_each_time = number, connects_each_time
        self.opened, self.allocated = 0, []

    def connection(self):
        """That of the next message."""
        if self.connects_each_time or not self.opened:
            self.opened += 1
        return self.number, self.opened


class BookMachine(RuleBasedStateMachine):
    """Compared with what every process has allocated.

    ``booked == allocated`` while no connection is detached, and ``booked >= allocated`` always.
    """

    processes = Bundle("processes")

    def __init__(self):
        super().__init__()
        self.book = MemoryBook()
        self.alive, self.numbers = [], count()

    @rule(target=processes, connects_each_time=st.booleans())
    def starts(self, connects_each_time):
        process = Process(next(self.numbers), connects_each_time)
        self.alive.append(process)
        return process

    @rule(process=processes, size=SIZES)
    def allocates(self, process, size):
        before = self.book.booked
        if self.book.book(process.connection(), size, LIMIT):
            process.allocated.append(size)
        else:
            assert before + size > LIMIT

    @precondition(lambda self: any(each.allocated for each in self.alive))
    @rule(data=st.data())
    def frees(self, data):
        process = data.draw(st.sampled_from([each for each in self.alive if each.allocated]))
        size = data.draw(st.sampled_from(process.allocated))
        process.allocated.remove(size)
        self.book.free(process.connection(), size)

    @rule(process=consumes(processes), is_reversed=st.booleans())
    def ends(self, process, is_reversed):
        """The kernel closes its connections in any order."""
        numbers = range(process.opened, 0, -1) if is_reversed else range(1, process.opened + 1)
        for number in numbers:
            self.book.close((process.number, number))
        self.alive.remove(process)
        if not self.alive:
            self.book.clear()

    @rule(process=processes, number=st.integers(1, 3))
    def detached(self, process, number):
        """Its connections are too many; only those of one message are closed."""
        if process.connects_each_time:
            for each in range(1, number + 1):  # the oldest first
                self.book.detach((process.number, each))

    @invariant()
    def nothing_is_lost(self):
        allocated = sum(sum(each.allocated) for each in self.alive)
        if self.book.unattributed:
            assert self.book.booked >= allocated
        else:
            assert self.book.booked == allocated


TestBook = BookMachine.TestCase
TestBook.pytestmark = [pytest.mark.slow]
