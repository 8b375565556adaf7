"""When to release the node lock of Volcano's or HAMi's scheduler: once its owner is served.

A pod is served when the kubelet has an answer for it, even if the pod waits: the kubelet asks no
more. :mod:`deviceplugin.apiserver.lock_owners` handles a named owner that is over or gone.

The scheduler takes the lock for one pod and waits with the next pod until the lock is released.
HAMi's lock names its owner. Volcano's has only a time: the scheduler takes the lock and stamps the
pod's bind time right after, so the owner is the pod whose bind time follows most closely. If the
owner is ambiguous or unknown, the lock is left to the reconciler.

Tenants can annotate their pods, so a bind time alone makes no pod an owner: an owner also asks for
devices and has reservations, made at a time when the lock was in force.
"""

from collections.abc import Collection
from typing import Final

from vgpu.model.objects import Node, Pod
from vgpu.schemes.codec import NodeLock
from vgpu.schemes.text import number
from vgpu.schemes.volcano.codec import Volcano
from vgpu.schemes.volcano.text import MOST_SECONDS

STAMPED_BEFORE_SECONDS: Final = 60.0
"""Maximum time from a pod's stamp to the lock, in seconds: HAMi's scheduler stamps the pod first
and then tries several times to take the lock."""

EXPIRED_AFTER_SECONDS: Final = 300.0
"""Age in seconds at which Volcano's scheduler takes the lock for the next pod, with a new time."""

_UNKNOWN: Final = float("inf")
"""An unknown bind time: it may be in any lock's time, and follows no lock closely."""


def to_release(
    codec: Volcano, node: Node, pods: Collection[Pod], served: Collection[str]
) -> str | None:
    """The key of the lock; None if there is no lock, or if the lock is still needed."""
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
    """All pods that may own the lock."""
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
    keys = codec.key_set
    asks = any(container.limits.get(keys.number) for container in pod.containers)
    return asks and any(pod.annotations.get(key) for key in (keys.devices, keys.to_allocate))


def _stamp(codec: Volcano, pod: Pod) -> float:
    """The pod's bind time in unix seconds."""
    at = number(pod.annotations.get(codec.key_set.bind_time, ""), MOST_SECONDS)
    return _UNKNOWN if at is None else at
