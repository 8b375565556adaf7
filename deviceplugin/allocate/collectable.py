"""Which tenants have left: not before their containers are gone, whatever is said of their pods.

A pod that is over may still have a container that runs: it was deleted by force, its node was given
up, its container does not heed signals. And a pod that nobody mentions may only be unknown yet.
So two witnesses must agree: the API server that the pod holds no devices, and the node itself that
no container of it is left. The node's word is the pod's cgroup, which the kubelet removes after
the last container. Where cgroups cannot be read it is what the kubelet last said: of a pod that is
still known, that every container has ended, or that none was ever made; of one that is not, that
its devices are no longer in the kubelet's checkpoint. (The kubelet keeps them there while the pod
ends, but one that has lost its checkpoint can be wrong: so cgroups should be readable.) If a
witness is not heard, nobody leaves.

A node that shows a kubelet's tree of cgroups without any pod in it is no witness at once: it may be
another machine's. But the kubelet may also have removed the last pod's, and keeps its devices in
its checkpoint until the next pod comes. So after :data:`ALONE_SECONDS` in an unbroken row the API
server's word is enough there (:class:`Alone`).

That the API server does not mention a pod is its word only if it has known it, for it may tell of
a moment in the past. It has known those that it has shown, to us, or to the plugin that admitted
them before us; for the latter the kubelet has to have forgotten them as well.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.model import AdmittedPod
from vgpu.kube.objects import ContainerState, Pod, holds_devices

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
    """The UIDs of tenants that hold nothing any more.

    ``pods`` are all of the node's, None while the API server is not heard; ``live_pods`` are the
    UIDs that have a cgroup and ``assigned`` those in the kubelet's checkpoint, None where that
    cannot be read; ``now`` is unix seconds. ``shown`` are UIDs that have been among ``pods``
    before: without their pods, they are deleted.
    """
    if pods is None:
        return frozenset()
    known = _by_uid(pods)
    return frozenset(
        uid
        for uid, tenant in allocation_state.tenants.items()
        if _is_over(
            tenant,
            known.get(uid, ()),
            now,
            shown=uid in shown or _was_shown(tenant, live_pods, assigned),
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
    """The UIDs of tenants that the API server alone reports to be over; see :func:`collectable`."""
    if pods is None:
        return frozenset()
    known = _by_uid(pods)
    return frozenset(
        uid
        for uid, tenant in allocation_state.tenants.items()
        if _is_over(tenant, known.get(uid, ()), now, shown=uid in shown)
    )


class Alone:
    """Since when each tenant has been over by the API server's word alone."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def past(self, uids: Collection[str], now: float) -> frozenset[str]:
        """Those of them that have been among them long enough, each time that this was asked.

        ``uids`` are none where the node is a witness, or the API server is not heard; ``now`` is
        seconds that never go back.
        """
        self._since = {uid: self._since.get(uid, now) for uid in uids}
        return frozenset(uid for uid, at in self._since.items() if now - at >= ALONE_SECONDS)


def _by_uid(pods: Iterable[Pod]) -> Mapping[str, list[Pod]]:
    """By the UID on the node: a static pod's may be known of more than one."""
    known: dict[str, list[Pod]] = {}
    for pod in pods:
        known.setdefault(pod.kubelet_uid, []).append(pod)
    return known


def _was_shown(
    tenant: AdmittedPod, live_pods: frozenset[str] | None, assigned: Collection[str] | None
) -> bool:
    """Whether a plugin of ours has seen the pod, and the node knows nothing of it any more.

    What the kubelet has allocated it remembers as long as it knows the pod.
    """
    nowhere = live_pods is not None and assigned is not None and tenant.pod.uid not in assigned
    return nowhere and not tenant.foreign


def _is_over(tenant: AdmittedPod, pods: Collection[Pod], now: float, *, shown: bool) -> bool:
    """Whether the API server reports it. A static pod's UID may be known of more than one."""
    if not pods:
        grace = MOMENT_SECONDS if shown else GRACE_SECONDS
        return abs(now - tenant.since) >= grace  # before, if the clock was set back
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
    """Whether the kubelet reports of each container that it has ended, or never spoke of any."""
    return all(one.state is ContainerState.TERMINATED for one in pod.statuses)
