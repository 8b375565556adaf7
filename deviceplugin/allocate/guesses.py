"""For whom answers were made without CDI, and which pods they were made for in vain.

A pod that the kubelet never asks for, because it is of no kubelet or is about to go, must not be
the first guess for ever: every answer that is made for it crosses the pod that is really asked for.
"""

import threading
from collections import Counter
from typing import Final

from deviceplugin.allocate.binder_state import BinderState
from deviceplugin.reasons import BindRefusal

PATIENCE: Final = 2
"""Wrong guesses after which a pod comes last.

One is no sign yet: two pods that were bound at the same moment are asked for in either order, and
the other one is next.
"""

_MOST: Final = 4096
"""Answers that are remembered while it is not known whose they are; pods, too."""


class Guesses:
    """Safe to be asked from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, str] = {}  # name of the answer -> UID on the node
        self._wrong: Counter[str] = Counter()  # by that UID

    def note(self, name: str, uid: str) -> None:
        """An answer was made for this pod."""
        with self._lock:
            while len(self._open) >= _MOST:
                del self._open[next(iter(self._open))]  # its kubelet has died
            self._open[name] = uid

    def unlikely(self, state: BinderState) -> frozenset[str]:
        """The UIDs of pods that answers were made for in vain too often, as far as is known now."""
        with self._lock:
            for one in state.all_assignments() if self._open else ():
                if one.name in self._open:
                    del self._wrong[one.pod_uid]  # the kubelet has asked for it after all
                    refused = state.refusals.get((one.pod_uid, one.container))
                    crossed = refused is not None and refused.why is BindRefusal.CROSSED
                    if crossed:
                        self._wrong[self._open[one.name]] += 1
                    if crossed or state.is_ready(one):
                        del self._open[one.name]
            if len(self._wrong) > _MOST:
                self._wrong.clear()  # most are of pods that are gone
            return frozenset(uid for uid, times in self._wrong.items() if times >= PATIENCE)
