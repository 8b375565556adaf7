"""Who may be asking, when the kubelet asks for some devices and does not say for whom.

With CDI this only lets Allocate refuse at once what nobody on the node can be asking for. Without
CDI the first candidate is the guess that the answer is made for, in the original plugins' order.
Whether it was right, the kubelet's checkpoint shows before the container may start.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.reasons import BindRefusal, BindRefused
from vgpu.kube.objects import MIRROR, Container, ContainerState, Pod, holds_devices
from vgpu.model import Claim, ContainerKind
from vgpu.schemes.codec import ClaimError, SchemeCodec

Key = tuple[str, str]
"""UID on the node, and container."""

_NAMED: Final = 4
"""Containers that a refusal names."""

_MOST_CLAIMS: Final = 4096
"""That are remembered."""

_INIT_LIST: Final = frozenset({ContainerKind.INIT, ContainerKind.SIDECAR})

_LATE: Final = float("inf")


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A container that waits for devices, or, ``again``, that had some and may need them again.

    A kubelet that has lost its checkpoint asks again for what it gave out before.
    """

    pod: Pod
    container: str
    again: bool = False


class Claims:
    """What pods' annotations say, read once of each version of a pod: it is asked all the time.

    Safe to be asked from any thread.
    """

    def __init__(self, codec: SchemeCodec) -> None:
        self._codec = codec
        self._read: dict[str, tuple[Pod, Claim | None, bool]] = {}

    def of(self, pod: Pod) -> tuple[Claim | None, bool]:
        """The claim, if there is one that can be read, and whether it can be."""
        found = self._read.get(pod.ref.uid)
        if found is None or found[0] is not pod:
            if len(self._read) >= _MOST_CLAIMS:
                self._read = {}  # most are of pods that are gone
            try:
                found = pod, self._codec.claim(pod), True
            except ClaimError:
                found = pod, None, False
            self._read[pod.ref.uid] = found
        return found[1:]


def candidates(
    claims: Claims,
    pods: Iterable[Pod],
    allocation_state: AllocationState,
    resource: str,
    count: int,
    *,
    answered: Collection[Key] = (),
    unlikely: Collection[str] = (),
) -> tuple[Candidate, ...]:
    """The containers that ask for just so many, the likeliest first.

    First those of a pod of which the kubelet has asked for others already, for it asks for all of
    a pod in a row; then by the time when the scheduler promised it, or else when the pod was made.
    A claim that is not there or cannot be read comes late, and later still a pod that the kubelet
    will hardly ask for: it is being deleted, reports that it is the mirror of a static pod, or is
    one of the ``unlikely``, which are UIDs on the node. Last comes what may be asked for again.
    ``answered`` are containers that the kubelet has an answer for, though they may not be bound.
    """
    askers = sorted(
        _askers(claims, pods, allocation_state, resource, answered),
        key=lambda asker: (_is_unlikely(asker, unlikely), _order(asker)),
    )
    found = [
        Candidate(asker.pod, container.name, again)
        for asker in askers
        for again, containers in ((False, asker.first), (True, asker.again))
        for container in containers
        if container.limits[resource] == count and not asker.failed
    ]
    return tuple(sorted(found, key=lambda candidate: candidate.again))


def no_candidate(
    claims: Claims,
    pods: Iterable[Pod],
    allocation_state: AllocationState,
    resource: str,
    count: int,
    *,
    answered: Collection[Key] = (),
) -> BindRefused:
    """The refusal when nobody asks for just so many; it names who comes near."""
    askers = sorted(_askers(claims, pods, allocation_state, resource, answered), key=_order)
    near = [words for asker in askers for words in _near(asker, resource)]
    rest = f" and {len(near) - _NAMED} more" if len(near) > _NAMED else ""
    waiting = f"waiting there: {', '.join(near[:_NAMED])}{rest}; none wants {count}"
    where = f"node {askers[0].pod.node}" if askers else "this node"
    detail = f"{count} of {resource} were requested on {where}"
    return BindRefused(
        BindRefusal.NO_CANDIDATE, f"{detail}; {waiting if near else 'no pod waits there'}"
    )


def in_order_of_asking(pod: Pod) -> tuple[Container, ...]:
    """The containers as the kubelet asks for them: those of the init list, then the others."""
    inits = [one for one in pod.containers if one.kind in _INIT_LIST]
    return (*inits, *(one for one in pod.containers if one.kind is ContainerKind.APP))


# ---------------------------------------------------------------- who asks


class _Asker(msgspec.Struct, frozen=True, gc=False):
    """A pod with containers that ask for the resource: for the first time, or again.

    ``begun`` is whether the kubelet has asked for one of them already; ``claim`` is None if there
    is none, or if it is not ``legible``.
    """

    pod: Pod
    claim: Claim | None
    legible: bool
    first: tuple[Container, ...]
    again: tuple[Container, ...]
    begun: bool

    @property
    def failed(self) -> bool:
        """Whether the pod was abandoned."""
        return self.claim is not None and self.claim.failed


def _askers(
    claims: Claims,
    pods: Iterable[Pod],
    allocation_state: AllocationState,
    resource: str,
    answered: Collection[Key],
) -> Iterator[_Asker]:
    names: dict[str, set[str]] = {}
    for uid, container in answered:
        names.setdefault(uid, set()).add(container)
    for pod in pods:
        asking = [one for one in in_order_of_asking(pod) if one.limits.get(resource, 0) > 0]
        if not asking or not holds_devices(pod):
            continue
        uid = pod.kubelet_uid
        tenant = allocation_state.tenants.get(uid)
        bindings = tenant.bindings if tenant else ()
        served = {*names.get(uid, ()), *(one.container for one in bindings)}
        started = _has_started(pod)
        claim, legible = claims.of(pod)
        yield _Asker(
            pod,
            claim,
            legible,
            first=tuple(one for one in asking if not started and one.name not in served),
            again=tuple(one for one in asking if started or one.name in served),
            begun=bool(served),
        )


def _has_started(pod: Pod) -> bool:
    """Whether any of its containers ever has: by then the kubelet has asked for all of them."""
    return any(
        one.state is not ContainerState.WAITING or one.restarts or one.id for one in pod.statuses
    )


def _is_unlikely(asker: _Asker, unlikely: Collection[str]) -> bool:
    """Whether the kubelet will hardly ask for it.

    Anybody may call a pod a mirror, and no kubelet asks for that. A static pod is asked for before
    it has a mirror, so that of a true one the kubelet has asked for a container already.
    """
    informer = MIRROR in asker.pod.annotations and not asker.begun
    return informer or asker.pod.deleted_at is not None or asker.pod.kubelet_uid in unlikely


def _order(asker: _Asker) -> tuple[bool, bool, bool, float, float, str, str]:
    """Smaller is likelier."""
    pod, claim = asker.pod, asker.claim
    made = _LATE if pod.created_at is None else pod.created_at
    promised = made if claim is None or claim.assumed_at is None else claim.assumed_at
    who = (pod.ref.namespace, pod.ref.name)
    return (not asker.begun, not asker.legible, claim is None, promised, made, *who)


def _near(asker: _Asker, resource: str) -> Iterator[str]:
    """What it waits for, or why it is not considered, in words."""
    name = f"{asker.pod.ref.namespace}/{asker.pod.ref.name}"
    if asker.failed:
        yield f"{name} has failed"
        return
    for one in asker.first:
        yield f"{name} wants {one.limits[resource]} (container {one.name})"
