"""Explains waiting pods in the background, on a thread of its own: of each tab the oldest first.

at most MOST_GROUPS groups of a snapshot, within CPU_SECONDS of processor time
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Self

from fleet.snapshot import FleetSnapshot
from fleet.waiting import PodTab, in_turns, similar_pods
from vgpucli.doctor.answer import error_place

log = logging.getLogger(__name__)

MOST_GROUPS: Final = 50
"""Maximum number of groups that are explained of one snapshot."""

CPU_SECONDS: Final = 5.0
"""Processor time for the explanations of one snapshot, in seconds."""

EXPLAINED: Final = frozenset({PodTab.WAITING, PodTab.ABNORMAL, PodTab.STARTING})
"""The tabs whose pods are explained."""


class Explainer:
    """Explains the groups of each new snapshot. A context manager."""

    def __init__(self, explained: Callable[[], None] = lambda: None) -> None:
        """``explained`` is called after each explanation: views that show it are out of date."""
        self._explained = explained
        self._wanted: FleetSnapshot | None = None
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="fleet-explainer", daemon=True)

    def explain(self, snapshot: FleetSnapshot) -> None:
        """Go on with this snapshot, and leave the one before."""
        with self._changed:
            self._wanted = snapshot
            self._changed.notify()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted is not None or self._is_closed)
                if self._is_closed:
                    return
                snapshot, self._wanted = self._wanted, None
            try:
                if snapshot is not None:
                    self._explain_all(snapshot)
            except Exception as error:  # noqa: BLE001 - the next snapshot is explained
                log.warning("pods were not explained", extra={"reason": error_place(error)})

    def _explain_all(self, snapshot: FleetSnapshot) -> None:
        groups = in_turns(group for group in similar_pods(snapshot) if group.tab in EXPLAINED)
        end = time.thread_time() + CPU_SECONDS
        for group in groups[:MOST_GROUPS]:
            if self._wanted is not None or self._is_closed or time.thread_time() > end:
                return
            try:
                snapshot.answers.pod(group.namespace, group.name)
            except Exception as error:  # noqa: BLE001 - whatever it is, other pods are explained
                snapshot.answers.fail(group.namespace, group.name)
                names = {"pod": f"{group.namespace}/{group.name}", "reason": error_place(error)}
                log.warning("the pod was not explained", extra=names)
            self._explained()
