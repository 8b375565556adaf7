"""The containers that the kubelet may be asking for: Allocate does not name the container.

With CDI, Allocate uses this only to refuse at once a request that no container can have made.
Without CDI the answer is made for the first candidate, in the original plugins' order. The
kubelet's checkpoint shows whether that guess was right before the container may start.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.reasons import BindRefusal, BindRefused
from vgpu.model.allocation import Claim
from vgpu.model.names import ContainerKind
from vgpu.model.objects import MIRROR, Container, ContainerState, Pod, holds_devices
from vgpu.schemes.codec import ClaimError, SchemeCodec

Key = tuple[str, str]
"""UID on the node, and container."""

_NAMED: Final = 4
"""Maximum number of containers that a refusal names."""

_MOST_CLAIMS: Final = 4096
"""Maximum number of claims that are remembered."""

_INIT_LIST: Final = frozenset({ContainerKind.INIT, ContainerKind.SIDECAR})

_LATE: Final = float("inf")


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A container that waits for devices, or, ``again``, that had some and may need them again.

    A kubelet that has lost its checkpoint asks again for devices that it has allocated before.
    """

    pod: Pod
    container: str
    again: bool = False


class Claims:
    """The claims in pods' annotations, decoded once for each version of a pod.

    Any thread may use this.
    """

    def __init__(self, codec: SchemeCodec) -> None:
        self._codec = codec
        self._read: dict[str, tuple[Pod, Claim | None, bool]] = {}

    def of(self, pod: Pod) -> tuple[Claim | None, bool]:
        """The claim, None if there is no readable one, and whether it is readable."""
        entry = self._read.get(pod.ref.uid)
        if entry is None or entry[0] is not pod:
            if len(self._read) >= _MOST_CLAIMS:
                self._read = {}  # most claims are of pods that are gone
            try:
                entry = pod, self._codec.claim(pod), True
            except ClaimError:
                entry = pod, None, False
            self._read[pod.ref.uid] = entry
        return entry[1:]


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
    """The containers that ask for exactly ``count`` devices, the likeliest first.

    First come containers of a pod for which the kubelet has asked already, since it asks for all
    containers of a pod in a row. The others follow by the time of the scheduler's reservation, or
    of the pod's creation. Pods without a readable claim come late. Pods that the kubelet will
    hardly ask for come later: pods that are being deleted, that claim to be the mirror of a static
    pod, or that are ``unlikely`` (UIDs on the node). Containers that may be asked for again come
    last. ``answered`` are containers that the kubelet has an answer for, even if they are not
    bound.
    """
    askers = sorted(
        _askers(claims, pods, allocation_state, resource, answered),
        key=lambda asker: (_is_unlikely(asker, unlikely), _order(asker)),
    )
    waiting = [
        Candidate(asker.pod, container.name, again)
        for asker in askers
        for again, containers in ((False, asker.first), (True, asker.again))
        for container in containers
        if container.limits[resource] == count and not asker.failed
    ]
    return tuple(sorted(waiting, key=lambda candidate: candidate.again))


def no_candidate(
    claims: Claims,
    pods: Iterable[Pod],
    allocation_state: AllocationState,
    resource: str,
    count: int,
    *,
    answered: Collection[Key] = (),
) -> BindRefused:
    """The refusal when no container asks for ``count`` devices; it names the nearest ones."""
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
    """The containers in the kubelet's order: those of the init list, then the others."""
    inits = [container for container in pod.containers if container.kind in _INIT_LIST]
    return (
        *inits,
        *(container for container in pod.containers if container.kind is ContainerKind.APP),
    )


# ---------------------------------------------------------------- pods that ask


class _Asker(msgspec.Struct, frozen=True, gc=False):
    """A pod with containers that ask for the resource: for the first time, or again.

    ``begun``: whether the kubelet has asked for one of them already. ``claim`` is None if the pod
    has none, or if the claim is not ``legible``.
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
        asking = [spec for spec in in_order_of_asking(pod) if spec.limits.get(resource, 0) > 0]
        if not asking or not holds_devices(pod):
            continue
        uid = pod.kubelet_uid
        admitted_pod = allocation_state.admitted_pods.get(uid)
        bindings = admitted_pod.bindings if admitted_pod else ()
        served = {*names.get(uid, ()), *(binding.container for binding in bindings)}
        started = _has_started(pod)
        claim, legible = claims.of(pod)
        yield _Asker(
            pod,
            claim,
            legible,
            first=tuple(spec for spec in asking if not started and spec.name not in served),
            again=tuple(spec for spec in asking if started or spec.name in served),
            begun=bool(served),
        )


def _has_started(pod: Pod) -> bool:
    """Whether any container has ever started: by then the kubelet has asked for all of them."""
    return any(
        status.state is not ContainerState.WAITING or status.restarts or status.id
        for status in pod.statuses
    )


def _is_unlikely(asker: _Asker, unlikely: Collection[str]) -> bool:
    """Whether the kubelet will hardly ask for the pod.

    Anybody may call a pod a mirror, and no kubelet asks for a false one. The kubelet asks for a
    static pod before the mirror exists, so it has asked for a container of a true mirror already.
    """
    informer = MIRROR in asker.pod.annotations and not asker.begun
    return informer or asker.pod.deleted_at is not None or asker.pod.kubelet_uid in unlikely


def _order(asker: _Asker) -> tuple[bool, bool, bool, float, float, str, str]:
    """The sort key; smaller is likelier."""
    pod, claim = asker.pod, asker.claim
    made = _LATE if pod.created_at is None else pod.created_at
    reserved_at = made if claim is None or claim.assumed_at is None else claim.assumed_at
    who = (pod.ref.namespace, pod.ref.name)
    return (not asker.begun, not asker.legible, claim is None, reserved_at, made, *who)


def _near(asker: _Asker, resource: str) -> Iterator[str]:
    """What the pod waits for, or why it is not considered, for people."""
    name = f"{asker.pod.ref.namespace}/{asker.pod.ref.name}"
    if asker.failed:
        yield f"{name} has failed"
        return
    for container in asker.first:
        yield f"{name} wants {container.limits[resource]} (container {container.name})"
