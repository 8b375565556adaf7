"""The pods that answers were guessed for without CDI, and the pods that were guessed in vain.

The kubelet never asks for a pod that has no kubelet or is about to go. Such a pod must not stay the
first guess: every answer that is made for it goes to the wrong container.
"""

import threading
from collections import Counter
from typing import Final

from deviceplugin.allocate.binder_state import BinderState
from deviceplugin.reasons import BindRefusal

PATIENCE: Final = 2
"""Number of wrong guesses after which a pod comes last.

One wrong guess is no evidence: the kubelet asks for two pods that were bound at the same moment in
either order, and asks for the other one next.
"""

_MOST: Final = 4096
"""Maximum number of remembered answers without a known owner, and of remembered pods."""


class Guesses:
    """The guesses. Any thread may use them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, str] = {}  # name of the answer -> UID on the node
        self._wrong: Counter[str] = Counter()  # by that UID

    def note(self, name: str, uid: str) -> None:
        """An answer was made for this pod."""
        with self._lock:
            while len(self._open) >= _MOST:
                del self._open[next(iter(self._open))]  # the kubelet that asked has died
            self._open[name] = uid

    def unlikely(self, state: BinderState) -> frozenset[str]:
        """The UIDs of pods that have been guessed in vain too often so far."""
        with self._lock:
            for assignment in state.all_assignments() if self._open else ():
                if assignment.name in self._open:
                    del self._wrong[assignment.pod_uid]  # the kubelet asks for this pod after all
                    refused = state.refusals.get((assignment.pod_uid, assignment.container))
                    crossed = refused is not None and refused.why is BindRefusal.CROSSED
                    if crossed:
                        self._wrong[self._open[assignment.name]] += 1
                    if crossed or state.is_ready(assignment):
                        del self._open[assignment.name]
            if len(self._wrong) > _MOST:
                self._wrong.clear()  # most UIDs are of pods that are gone
            return frozenset(uid for uid, times in self._wrong.items() if times >= PATIENCE)
