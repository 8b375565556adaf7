"""The memory of a pod: never above its limit, never below zero, and gone with its connections."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kubeshare.tokens.pod import MemoryBook

CONNECTIONS = st.integers(0, 3)
SIZES = st.integers(0, 100)


def test_another_connection_frees_what_one_has_booked():
    book = MemoryBook()
    assert book.book("a", 60, 100)
    assert not book.book("b", 41, 100)
    assert book.book("b", 40, 100)
    book.free("b", 70)
    assert book.booked == 30
    book.close("b")
    assert book.booked == 30
    book.close("a")
    assert book.booked == 0


def test_a_lower_limit_takes_nothing_back():
    book = MemoryBook()
    assert book.book("a", 60, 100)
    assert not book.book("a", 1, 50)
    assert book.booked == 60


class BookMachine(RuleBasedStateMachine):
    """Compared with sums of what every connection has."""

    def __init__(self):
        super().__init__()
        self.book = MemoryBook()
        self.model = Counter()

    @rule(connection=CONNECTIONS, size=SIZES, limit=SIZES)
    def allocates(self, connection, size, limit):
        before = self.model.total()
        accepted = self.book.book(connection, size, limit)
        assert accepted == (before + size <= limit)
        self.model[connection] += size * accepted

    @rule(connection=CONNECTIONS, size=SIZES)
    def frees(self, connection, size):
        own = min(size, self.model[connection])
        before = self.book.booked
        self.book.free(connection, size)
        assert self.book.booked == max(0, before - size)
        self.model[connection] -= own
        for other in [*self.model]:  # whose the rest was shows when they close
            if self.book.booked == self.model.total():
                break
            taken = min(self.model[other], self.model.total() - self.book.booked)
            self.model[other] -= taken

    @rule()
    def all_close(self):
        for connection in range(4):
            self.book.close(connection)
        self.model.clear()
        assert self.book.booked == 0

    @invariant()
    def sums_agree(self):
        assert self.book.booked == self.model.total() >= 0


TestBook = BookMachine.TestCase
TestBook.pytestmark = [pytest.mark.slow]
