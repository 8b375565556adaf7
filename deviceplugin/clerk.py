"""Answers the kubelet: Allocate with a name at once, PreStartContainer when its binding is made.

Allocate does not say for whom, so nothing of a pod's is in the answer where the runtime knows CDI.
It refuses what nobody on the node can be asking for, rather than hand out an environment that a
container then fails with.
"""

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from deviceplugin.binding import Gift, bind, gift
from deviceplugin.candidates import Candidate, Claims, candidates, no_candidate
from deviceplugin.desk import Desk
from deviceplugin.gate import State
from deviceplugin.guesses import Guesses
from deviceplugin.metrics import Wait
from deviceplugin.model import Assignment
from deviceplugin.pods import Pods
from deviceplugin.ports import Handout
from deviceplugin.reasons import Refused, Why
from deviceplugin.role import Role
from deviceplugin.steps import At, Step
from vgpu.kube import Pod
from vgpu.model import Device
from vgpu.schemes.language import Edits

log = logging.getLogger(__name__)

RECOVERY_PATIENCE_SECONDS: Final = 60.0
"""So long Allocate waits until it is known who holds what."""

SETTLING_SECONDS: Final = 2.0
"""So long a guess waits until it is known for whom the answers before it were."""

NOTHING: Final = Gift(Edits({}), {})

NAME_BYTES: Final = 12
"""Of a fresh name, in hexadecimal: 96 random bits."""


class Binder(Protocol):
    """Makes the bindings; see :class:`deviceplugin.binder.Binder`."""

    def recovered(self, seconds: float) -> bool:
        """Wait until who holds what is known; whether it is."""
        ...

    def state(self) -> State:
        """What it last found. Raises Refused NOT_RECOVERED."""
        ...

    def expect(self, name: str) -> None:
        """The kubelet is about to have an answer under this name."""
        ...

    def settled(self, seconds: float) -> bool:
        """Wait until all answers that were expected have an owner; whether they have."""
        ...

    def started(self, ids: frozenset[str], seconds: float) -> None:
        """Wait until the container with these IDs may start. Raises Refused."""
        ...


class Counts(Protocol):
    """Where it is counted what was answered."""

    def allocated(self, resource: str) -> None:
        """An answer was given."""
        ...

    def refused(self, step: str, why: Why) -> None:
        """An answer was refused."""
        ...

    def waited(self, wait: Wait, seconds: float) -> None:
        """So long the kubelet had to wait."""
        ...


Legacy = Callable[[int, tuple[Device, ...]], Mapping[str, str]]
"""Units that were asked for, the node's devices -> the environment of the original's refusal."""


class DeskClerk:
    """A :class:`deviceplugin.ports.Clerk` over binder and pods."""

    def __init__(
        self,
        binder: Binder,
        pods: Pods,
        counts: Counts,
        *,
        role: Role,
        node: str,
        handout: Handout,
        at: At,
        prestart_seconds: float,
        legacy: Legacy | None = None,
    ) -> None:
        """``legacy`` answers in place of a refusal, for those who count on the original's."""
        self._role = role
        self._claims = Claims(role.language)
        self._node = node
        self._binder = binder
        self._pods = pods
        self._handout = handout
        self._guesses = Guesses()
        self._counts = counts
        self._at = at
        self._prestart_seconds = prestart_seconds
        self._legacy = legacy

    def allocate(self, resource: str, ids: frozenset[str]) -> tuple[str, Edits]:
        """See :meth:`deviceplugin.ports.Clerk.allocate`."""
        self._at(Step.ALLOCATE_ASKED)
        begun = time.monotonic()
        try:
            answer = self._allocate(resource, ids)
        except Refused as error:
            self._counts.refused("allocate", error.why)
            if self._legacy and error.why is Why.NO_CANDIDATE:
                devices = self._binder.state().desk.devices
                return "", Edits(self._legacy(len(ids), devices))
            raise
        except Exception:
            self._counts.refused("allocate", Why.INTERNAL)
            raise
        self._counts.allocated(resource)
        self._counts.waited(Wait.ALLOCATE, time.monotonic() - begun)
        self._at(Step.ALLOCATE_ANSWERED)
        return answer

    def prestart(self, resource: str, ids: frozenset[str]) -> None:
        """See :meth:`deviceplugin.ports.Clerk.prestart`."""
        if resource != self._role.resources[0]:
            return
        self._at(Step.PRESTART_ASKED)
        begun = time.monotonic()
        try:
            self._binder.started(ids, self._prestart_seconds)
        except Refused as error:
            self._counts.refused("prestart", error.why)
            if error.why is Why.CROSSED:
                self._guesses.unlikely(self._binder.state())  # while it is known whose it was
            raise
        except Exception:
            self._counts.refused("prestart", Why.INTERNAL)
            raise
        self._counts.waited(Wait.PRESTART, time.monotonic() - begun)
        self._at(Step.PRESTART_ANSWERED)

    def _allocate(self, resource: str, ids: frozenset[str]) -> tuple[str, Edits]:
        if not self._binder.recovered(RECOVERY_PATIENCE_SECONDS):
            raise Refused(Why.NOT_RECOVERED, Why.NOT_RECOVERED.explanation)
        if resource != self._role.resources[0]:
            return "", Edits({})
        if self._handout.guesses:
            self._binder.settled(SETTLING_SECONDS)
        waiting = self._waiting(resource, len(ids))
        name = secrets.token_hex(NAME_BYTES)
        guessed = self._guess(waiting, ids, name) if self._handout.guesses else NOTHING
        answer = self._handout.early(name, guessed.edits, guessed.late_env)
        self._binder.expect(name)
        likeliest = f"{waiting[0].pod.ref.namespace}/{waiting[0].pod.ref.name}" if waiting else ""
        told = {"share": name, "resource": resource, "ids": len(ids)}
        log.info("answered", extra={**told, "candidates": len(waiting), "likeliest": likeliest})
        return name, answer

    def _waiting(self, resource: str, count: int) -> tuple[Candidate, ...]:
        """Who may be asking; () if nobody can tell. Raises Refused NO_CANDIDATE.

        Where only containers are known that may be asked for again, a new pod may not have been
        seen yet. A guess asks the API server before it believes one of them; a name does not have
        to, since it is nobody's.
        """
        pods: Mapping[str, Pod] | None = {}
        again: tuple[Candidate, ...] = ()
        for tell in (self._pods.known, self._pods.ask):
            pods = tell()
            there = (pods or {}).values()
            state = self._binder.state()
            answered = {(one.pod_uid, one.container) for one in state.all_assignments()}
            desk = state.desk
            unlikely = self._guesses.unlikely(state)
            found = candidates(
                self._claims, there, desk, resource, count, answered=answered, unlikely=unlikely
            )
            if self._legacy:
                found = tuple(one for one in found if self._is_promised(one.pod, desk))
            if found and not (self._handout.guesses and found[0].again):
                return found
            again = again if pods is None else found
        if again:
            return again
        if pods is None:  # the API server is not heard: who it is, the kubelet's checkpoint tells
            return ()
        raise no_candidate(self._claims, there, desk, resource, count, answered=answered)

    def _is_promised(self, pod: Pod, desk: Desk) -> bool:
        """Whether it has been promised something, without which the original has no candidate."""
        try:
            self._role.claim(pod, self._node, desk.devices, desk.books)
        except Refused:
            return False
        return True

    def _guess(self, waiting: tuple[Candidate, ...], ids: frozenset[str], name: str) -> Gift:
        """What the first of them would get. Raises Refused."""
        if not waiting:
            detail = "without CDI the API server has to say who waits, and it is not heard"
            raise Refused(Why.NOT_SEEN, detail)
        pod = waiting[0].pod
        guess = Assignment(pod.kubelet_uid, waiting[0].container, ids, name, Edits({}))
        desk = self._binder.state().desk
        desk = bind(self._role, self._node, desk, guess, pod, now=time.time())
        binding = desk.binding_of(guess)
        if binding is None:
            raise Refused(Why.INTERNAL, Why.INTERNAL.explanation, pod.ref, guess.container)
        self._guesses.note(name, pod.kubelet_uid)
        return gift(self._role, desk, pod, binding)
