"""When the node lock of Volcano's or HAMi's scheduler may go: its owner, and only that, is served.

Served is who has the kubelet's answer, be it that it waits: nobody asks for it any more. That a
named owner is over or gone is looked at elsewhere (:mod:`deviceplugin.apiserver.lock_owners`).

The scheduler takes it for one pod and waits with the next until it is gone. HAMi's names whose it
is. Volcano's has only a time: the scheduler takes the lock and stamps the pod's bind time right
after, so the pod whose bind time follows most closely is meant. Where it might be another's, or is
nobody's that we know, the lock is the reconciler's part.

Tenants can annotate their pods, so that a bind time alone makes nobody an owner: it is one that
asks for devices and has reservations, made at a time when the lock was in force.
"""

from collections.abc import Collection
from typing import Final

from vgpu.kube.objects import Node, Pod
from vgpu.schemes.codec import NodeLock
from vgpu.schemes.text import number
from vgpu.schemes.volcano.codec import Volcano
from vgpu.schemes.volcano.text import MOST_SECONDS

STAMPED_BEFORE_SECONDS: Final = 60.0
"""HAMi's scheduler stamps the pod before it has the lock, for which it tries several times."""

EXPIRED_AFTER_SECONDS: Final = 300.0
"""By then Volcano's scheduler takes the lock again for the next pod, with another time."""

_UNKNOWN: Final = float("inf")
"""A bind time that is unknown: it may be in any lock's time, and follows none closely."""


def to_release(
    codec: Volcano, node: Node, pods: Collection[Pod], served: Collection[str]
) -> str | None:
    """The key of the lock; None if there is none, or it is still needed."""
    for lock in codec.locks(node):
        if lock.since is None:
            continue
        owners = _owners(codec, lock, lock.since, pods, served)
        if owners and all(pod.kubelet_uid in served for pod in owners):
            return lock.key
    return None


def _owners(
    codec: Volcano,
    lock: NodeLock,
    since: float,
    pods: Collection[Pod],
    served: Collection[str],
) -> list[Pod]:
    """Everybody who may be meant."""
    if lock.owner is not None:
        named = (pod for pod in pods if (pod.ref.namespace, pod.ref.name) == lock.owner)
        return [pod for pod in named if _stamp(codec, pod) >= since - STAMPED_BEFORE_SECONDS]
    if codec.key_set.for_all:  # HAMi's, without the owner that it always writes
        return []
    stamps = [(_stamp(codec, pod), pod) for pod in pods if _is_promised(codec, pod)]
    within = since + EXPIRED_AFTER_SECONDS
    later = [(at, pod) for at, pod in stamps if since <= at <= within or at == _UNKNOWN]
    closest = min((at for at, _ in later), default=_UNKNOWN)
    if closest == _UNKNOWN:
        return []
    return [
        pod for at, pod in later if at == closest or not (pod.terminal or pod.kubelet_uid in served)
    ]


def _is_promised(codec: Volcano, pod: Pod) -> bool:
    """Whether a scheduler can have locked a node for the pod."""
    said = codec.key_set
    asks = any(each.limits.get(said.number) for each in pod.containers)
    return asks and any(pod.annotations.get(key) for key in (said.devices, said.to_allocate))


def _stamp(codec: Volcano, pod: Pod) -> float:
    """Bind time in unix seconds."""
    at = number(pod.annotations.get(codec.key_set.bind_time, ""), MOST_SECONDS)
    return _UNKNOWN if at is None else at
