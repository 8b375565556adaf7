"""Which admitted pods have left: only those whose containers are gone, whatever their status is.

A pod that is over may still have a running container: the pod was deleted by force, its node was
abandoned, or the container ignores signals. And a pod that no source names may only be unknown yet.
So two witnesses must agree: the API server that the pod holds no devices, and the node itself that
no container of the pod is left. The node's evidence is the pod's cgroup, which the kubelet removes
after the last container. If cgroups cannot be read, the evidence is the kubelet's last report: for
a known pod, that every container has ended or that none was ever made; for an unknown pod, that its
devices are no longer in the kubelet's checkpoint. (The kubelet keeps them there while the pod ends,
but a kubelet that has lost its checkpoint can be wrong: so cgroups should be readable.) If a
witness does not answer, no pod leaves.

A kubelet's tree of cgroups without any pod is no evidence at first: it may be another machine's.
But the kubelet may also have removed the last pod's cgroup, and it keeps that pod's devices in its
checkpoint until the next pod comes. So in this case the API server's report is enough once it has
stayed the same for :data:`ALONE_SECONDS` (:class:`Alone`).

A pod that is missing at the API server counts as deleted only if the API server has known it, for
its answer may be from the past. It has known the pods that it has shown to us, or to the plugin
that admitted them before us; for the latter the kubelet has to have forgotten them as well.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.model import AdmittedPod
from vgpu.model.objects import ContainerState, Pod, holds_devices

GRACE_SECONDS: Final = 60.0
"""Maximum time after its admission for which a pod may be missing in the watch, in seconds."""

ALONE_SECONDS: Final = 300.0
"""Minimum time for which the API server alone must report a pod as over, in seconds; longer than
the kubelet gives a container to end."""

MOMENT_SECONDS: Final = 5.0
"""Maximum time after its admission for which a pod may have no cgroup, in seconds."""


def collectable(
    allocation_state: AllocationState,
    pods: Iterable[Pod] | None,
    live_pods: frozenset[str] | None,
    assigned: Collection[str] | None,
    now: float,
    *,
    shown: Collection[str] = (),
) -> frozenset[str]:
    """The UIDs of admitted pods that hold nothing any more.

    ``pods`` are all pods of the node, None while the API server does not answer. ``live_pods`` are
    the UIDs that have a cgroup and ``assigned`` the UIDs in the kubelet's checkpoint, None where
    they cannot be read. ``now`` is unix seconds. ``shown`` are UIDs that have been among ``pods``
    before: if they are missing now, their pods are deleted.
    """
    if pods is None:
        return frozenset()
    known = _by_uid(pods)
    return frozenset(
        uid
        for uid, admitted_pod in allocation_state.admitted_pods.items()
        if _is_over(
            admitted_pod,
            known.get(uid, ()),
            now,
            shown=uid in shown or _was_shown(admitted_pod, live_pods, assigned),
        )
        and _is_empty(uid, known.get(uid, ()), live_pods, assigned)
    )


def over(
    allocation_state: AllocationState,
    pods: Iterable[Pod] | None,
    now: float,
    *,
    shown: Collection[str] = (),
) -> frozenset[str]:
    """The UIDs of pods that the API server alone reports to be over; see :func:`collectable`."""
    if pods is None:
        return frozenset()
    known = _by_uid(pods)
    return frozenset(
        uid
        for uid, admitted_pod in allocation_state.admitted_pods.items()
        if _is_over(admitted_pod, known.get(uid, ()), now, shown=uid in shown)
    )


class Alone:
    """Since when the API server alone has reported each pod as over."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def past(self, uids: Collection[str], now: float) -> frozenset[str]:
        """The UIDs that have been in every call's ``uids`` for long enough.

        ``uids`` is empty if the node is a witness or the API server does not answer; ``now`` is
        monotonic seconds.
        """
        self._since = {uid: self._since.get(uid, now) for uid in uids}
        return frozenset(uid for uid, since in self._since.items() if now - since >= ALONE_SECONDS)


class EndedPods:
    """The admitted pods that have left, by a node that removes the cgroups of ended pods."""

    def __init__(
        self,
        with_cgroup: Callable[[], frozenset[str] | None],
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """``with_cgroup`` returns the UIDs that have a cgroup; None if cgroups cannot be read.

        ``clock`` returns unix seconds, ``monotonic`` seconds that never go back.
        """
        self._with_cgroup = with_cgroup
        self._clock = clock
        self._monotonic = monotonic
        self._alone = Alone()

    def gone(
        self,
        allocation_state: AllocationState,
        pods: Iterable[Pod] | None,
        assigned: Collection[str] | None,
        shown: Collection[str],
    ) -> frozenset[str]:
        """The UIDs of pods that have left by now; the arguments are as of :func:`collectable`."""
        live_pods, now = self._with_cgroup(), self._clock()
        known = None if pods is None else tuple(pods)
        alone = frozenset[str]()
        if live_pods == frozenset():
            alone = over(allocation_state, known, now, shown=shown)
        past = self._alone.past(alone, self._monotonic())
        left = collectable(allocation_state, known, live_pods or None, assigned, now, shown=shown)
        return left | past


def _by_uid(pods: Iterable[Pod]) -> Mapping[str, list[Pod]]:
    """Pods by the UID on the node: several pods may have a static pod's UID."""
    known: dict[str, list[Pod]] = {}
    for pod in pods:
        known.setdefault(pod.kubelet_uid, []).append(pod)
    return known


def _was_shown(
    admitted_pod: AdmittedPod, live_pods: frozenset[str] | None, assigned: Collection[str] | None
) -> bool:
    """Whether a plugin of ours has seen the pod, and the node knows nothing of it any more.

    The kubelet remembers what it has allocated as long as it knows the pod.
    """
    nowhere = (
        live_pods is not None and assigned is not None and admitted_pod.pod.uid not in assigned
    )
    return nowhere and not admitted_pod.foreign


def _is_over(admitted_pod: AdmittedPod, pods: Collection[Pod], now: float, *, shown: bool) -> bool:
    """Whether the API server reports it as over. Several pods may have a static pod's UID."""
    if not pods:
        grace = MOMENT_SECONDS if shown else GRACE_SECONDS
        return abs(now - admitted_pod.since) >= grace  # negative if the clock was set back
    return not any(map(holds_devices, pods))


def _is_empty(
    uid: str,
    pods: Collection[Pod],
    live_pods: frozenset[str] | None,
    assigned: Collection[str] | None,
) -> bool:
    """Whether the node reports that no container of the pod is left."""
    if live_pods is not None:
        return uid not in live_pods
    if pods:
        return all(map(_has_ended, pods))
    return assigned is not None and uid not in assigned


def _has_ended(pod: Pod) -> bool:
    """Whether the kubelet reports every container as ended, or has never reported any."""
    return all(status.state is ContainerState.TERMINATED for status in pod.statuses)
