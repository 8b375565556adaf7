"""Answers the kubelet: Allocate with a name at once, PreStartContainer when its binding is made.

Allocate does not name the pod, so the answer has nothing of a pod if the runtime knows CDI. The
plugin refuses a request that no container on the node can have made, instead of answering with an
environment in which the container then fails.

Without CDI the answer is guessed for one pod. The kubelet never asks for a pod that has no kubelet
or is about to go. Such a pod must not stay the first guess: every answer that is made for it goes
to the wrong container (:class:`Guesses`).
"""

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder import Binder
from deviceplugin.allocate.binder_state import BinderState
from deviceplugin.allocate.binding import Injection, bind, injection
from deviceplugin.allocate.binding_writer import AllocateContext
from deviceplugin.allocate.candidates import Candidate, Claims, candidates, no_candidate
from deviceplugin.failpoints import Step
from deviceplugin.metrics import PluginMetrics, Wait
from deviceplugin.model import ContainerDevices
from deviceplugin.reasons import BindRefusal, BindRefused
from vgpu.model.allocation import Device
from vgpu.model.objects import Pod
from vgpu.schemes.codec import ContainerEdits

log = logging.getLogger(__name__)

RECOVERY_PATIENCE_SECONDS: Final = 60.0
"""Maximum time that Allocate waits for the recovery of allocations, in seconds."""

SETTLING_SECONDS: Final = 2.0
"""Maximum time that a guess waits for the bindings of earlier answers, in seconds."""

PATIENCE: Final = 2
"""Number of wrong guesses after which a pod comes last.

One wrong guess is no evidence: the kubelet asks for two pods that were bound at the same moment in
either order, and asks for the other one next.
"""

MOST_GUESSES: Final = 4096
"""Maximum number of remembered answers without a known owner, and of remembered pods."""

NOTHING: Final = Injection(ContainerEdits({}), {})

NAME_BYTES: Final = 12
"""Bytes of a fresh name, which is written in hexadecimal: 96 random bits."""


Legacy = Callable[[int, tuple[Device, ...]], Mapping[str, str]]
"""Units that were asked for, the node's devices -> the environment of the original's refusal."""


class PodAllocator:
    """A :class:`deviceplugin.ports.Allocator` over binder and pods."""

    def __init__(
        self,
        context: AllocateContext,
        binder: Binder,
        counts: PluginMetrics,
        *,
        prestart_seconds: float,
        legacy: Legacy | None = None,
    ) -> None:
        """``legacy`` answers in place of a refusal, for users who rely on the original's."""
        self._adapter = context.adapter
        self._claims = Claims(context.adapter.codec)
        self._node = context.node
        self._binder = binder
        self._pods = context.pods
        self._injector = context.injector
        self._guesses = Guesses()
        self._counts = counts
        self._failpoint = context.failpoint
        self._prestart_seconds = prestart_seconds
        self._legacy = legacy

    def allocate(self, resource: str, ids: frozenset[str]) -> tuple[str, ContainerEdits]:
        """See :meth:`deviceplugin.ports.Allocator.allocate`."""
        self._failpoint(Step.ALLOCATE_ASKED)
        begun = time.monotonic()
        try:
            answer = self._allocate(resource, ids)
        except BindRefused as error:
            self._counts.refused("allocate", error.why)
            if self._legacy and error.why is BindRefusal.NO_CANDIDATE:
                devices = self._binder.state().allocation_state.devices
                return "", ContainerEdits(self._legacy(len(ids), devices))
            raise
        except Exception:
            self._counts.refused("allocate", BindRefusal.INTERNAL)
            raise
        self._counts.allocated(resource)
        self._counts.waited(Wait.ALLOCATE, time.monotonic() - begun)
        self._failpoint(Step.ALLOCATE_ANSWERED)
        return answer

    def prestart(self, resource: str, ids: frozenset[str]) -> None:
        """See :meth:`deviceplugin.ports.Allocator.prestart`."""
        if resource != self._adapter.resources[0]:
            return
        self._failpoint(Step.PRESTART_ASKED)
        begun = time.monotonic()
        try:
            self._binder.started(ids, self._prestart_seconds)
        except BindRefused as error:
            self._counts.refused("prestart", error.why)
            if error.why is BindRefusal.CROSSED:
                self._guesses.unlikely(self._binder.state())  # while the answer's owner is known
            raise
        except Exception:
            self._counts.refused("prestart", BindRefusal.INTERNAL)
            raise
        self._counts.waited(Wait.PRESTART, time.monotonic() - begun)
        self._failpoint(Step.PRESTART_ANSWERED)

    def _allocate(self, resource: str, ids: frozenset[str]) -> tuple[str, ContainerEdits]:
        if not self._binder.recovered(RECOVERY_PATIENCE_SECONDS):
            raise BindRefused(BindRefusal.NOT_RECOVERED, BindRefusal.NOT_RECOVERED.explanation)
        if resource != self._adapter.resources[0]:
            return "", ContainerEdits({})
        if self._injector.guesses:
            self._binder.settled(SETTLING_SECONDS)
        waiting = self._waiting(resource, len(ids))
        name = secrets.token_hex(NAME_BYTES)
        guessed = self._guess(waiting, ids, name) if self._injector.guesses else NOTHING
        answer = self._injector.response(name, guessed.edits, guessed.late_env)
        self._binder.expect(name)
        likeliest = f"{waiting[0].pod.ref.namespace}/{waiting[0].pod.ref.name}" if waiting else ""
        fields = {"share": name, "resource": resource, "ids": len(ids)}
        log.info(
            "Allocate answered",
            extra={**fields, "candidates": len(waiting), "likeliest": likeliest},
        )
        return name, answer

    def _waiting(self, resource: str, count: int) -> tuple[Candidate, ...]:
        """The containers that may be asked for; () if no source knows. Raises BindRefused
        NO_CANDIDATE.

        If all known candidates are containers that may be asked for again, the watch may not have
        shown a new pod yet. A guess asks the API server before it trusts one of them; a name does
        not have to, since it belongs to no container yet.
        """
        pods: Mapping[str, Pod] | None = {}
        again: tuple[Candidate, ...] = ()
        for tell in (self._pods.known, self._pods.ask):
            pods = tell()
            there = (pods or {}).values()
            state = self._binder.state()
            answered = {
                (assignment.pod_uid, assignment.container) for assignment in state.all_assignments()
            }
            allocation_state = state.allocation_state
            unlikely = self._guesses.unlikely(state)
            likely = candidates(
                self._claims,
                there,
                allocation_state,
                resource,
                count,
                answered=answered,
                unlikely=unlikely,
            )
            if self._legacy:
                likely = tuple(
                    candidate
                    for candidate in likely
                    if self._is_promised(candidate.pod, allocation_state)
                )
            if likely and not (self._injector.guesses and likely[0].again):
                return likely
            again = again if pods is None else likely
        if again:
            return again
        if pods is None:  # no answer of the API server: the kubelet's checkpoint shows the pod
            return ()
        raise no_candidate(
            self._claims, there, allocation_state, resource, count, answered=answered
        )

    def _is_promised(self, pod: Pod, allocation_state: AllocationState) -> bool:
        """Whether the pod has a reservation, without which it is no candidate for the original."""
        try:
            self._adapter.claim(
                pod, self._node, allocation_state.devices, allocation_state.capacity
            )
        except BindRefused:
            return False
        return True

    def _guess(self, waiting: tuple[Candidate, ...], ids: frozenset[str], name: str) -> Injection:
        """The injection of the first of them. Raises BindRefused."""
        if not waiting:
            detail = (
                "without CDI, the waiting pods are read from the API server, and it does not answer"
            )
            raise BindRefused(BindRefusal.NOT_SEEN, detail)
        pod = waiting[0].pod
        guess = ContainerDevices(
            pod.kubelet_uid, waiting[0].container, ids, name, ContainerEdits({})
        )
        allocation_state = self._binder.state().allocation_state
        allocation_state = bind(
            self._adapter, self._node, allocation_state, guess, pod, now=time.time()
        )
        binding = allocation_state.binding_of(guess)
        if binding is None:
            raise BindRefused(
                BindRefusal.INTERNAL, BindRefusal.INTERNAL.explanation, pod.ref, guess.container
            )
        self._guesses.note(name, pod.kubelet_uid)
        return injection(self._adapter, allocation_state, pod, binding)


class Guesses:
    """The pods that answers were guessed for, and the pods that were guessed in vain.

    Any thread may use them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, str] = {}  # name of the answer -> UID on the node
        self._wrong: Counter[str] = Counter()  # by that UID

    def note(self, name: str, uid: str) -> None:
        """An answer was made for this pod."""
        with self._lock:
            while len(self._open) >= MOST_GUESSES:
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
            if len(self._wrong) > MOST_GUESSES:
                self._wrong.clear()  # most UIDs are of pods that are gone
            return frozenset(uid for uid, times in self._wrong.items() if times >= PATIENCE)
