"""Batches of decisions whose leader fails."""

from contextlib import contextmanager

import pytest

from scheduler.bind.group_commit import Decision, GroupCommit


def test_a_batch_whose_leader_never_had_the_node_lets_nobody_wait():
    """No memory for the node's lock, for example: the next decision leads a batch of its own."""
    failures = [MemoryError("no lock")]

    @contextmanager
    def alone(_node):
        if failures:
            raise failures.pop()
        yield

    def commit(_node, batch):
        for decision in batch:
            decision.outcome.set_result("decided")

    group = GroupCommit(alone, commit)
    with pytest.raises(MemoryError):
        group.decide("n1", Decision(None, None))
    assert not group.waiting
    assert group.decide("n1", Decision(None, None)) == "decided"
