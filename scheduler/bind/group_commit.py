"""Group commit: the decisions about a node that come while its Lease is being written are the next
write together.

The first decision of a batch waits until nobody else works on the node; those that come meanwhile
join it. Then the batch is closed, so that a decision about an idle node waits for nothing. Each
decision has an outcome of its own, in the order in which the decisions came.

    each decision is in exactly one batch
    number of writes of a node that are under way <= 1
    an outcome is known => the write of its batch has been answered
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager

from scheduler.cluster.reservations import PodPlacement
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.result import PlacementRefusal

Outcome = PodPlacement | PlacementRefusal
"""What was decided."""


class Decision:
    """A decision about a pod on a node.

    Attributes:
        scheme, demand: the pod's.
        outcome: what was decided, or why nothing was.
    """

    def __init__(self, scheme: SchedulerScheme, demand: PodDemand) -> None:
        self.scheme = scheme
        self.demand = demand
        self.outcome: Future[Outcome] = Future()

    @property
    def uid(self) -> str:
        """The UID of the pod."""
        return self.demand.pod.uid


class GroupCommit:
    """The open batches of all nodes. Any thread may call every method."""

    def __init__(
        self,
        alone: Callable[[str], AbstractContextManager[None]],
        commit: Callable[[str, Sequence[Decision]], None],
    ) -> None:
        """``alone`` is for the time in which a thread works on a node alone; ``commit`` sets the
        outcomes of a batch then.
        """
        self._alone = alone
        self._commit = commit
        self._guard = threading.Lock()
        self._open: dict[str, list[Decision]] = {}

    @property
    def waiting(self) -> int:
        """Number of decisions whose batch is still open."""
        with self._guard:
            return sum(map(len, self._open.values()))

    def decide(self, node: str, decision: Decision) -> Outcome:
        """The decision's outcome, once it is written; raises what ``commit`` set or raised."""
        with self._guard:
            batch = self._open.get(node)
            is_first = batch is None
            if batch is None:
                batch = self._open[node] = []
            batch.append(decision)
        if is_first:
            self._lead(node, batch)
        return decision.outcome.result()

    def _lead(self, node: str, batch: Sequence[Decision]) -> None:
        """Commit the batch when it is its turn: whatever happens, nobody waits for it for ever."""
        try:
            with self._alone(node):
                self._close(node, batch)
                self._commit(node, batch)
        except BaseException as error:
            self._close(node, batch)  # before its outcomes: nobody joins a batch without a leader
            for decision in batch:
                if not decision.outcome.done():
                    decision.outcome.set_exception(error)
            raise

    def _close(self, node: str, batch: Sequence[Decision]) -> None:
        """Let nobody join the batch any more."""
        with self._guard:
            if self._open.get(node) is batch:
                del self._open[node]
