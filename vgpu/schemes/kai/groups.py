"""KAI Scheduler's GPU groups on their nodes: reservation pods, and the GPUs that they have. Pure.

A group is a GPU that pods share. A bare pod in a namespace of its own, the reservation pod, has
that GPU from the device plugin, and reports its UUID by an annotation. A tenant has the label of
its group. The two belong together by the value of the label and by the node:

    gpu(tenant, g) = u ⟺ the reservation pods of g on the tenant's node name exactly one GPU, u

(``pkg/binder/binding/resourcereservation/resource_reservation.go``.)
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import structs

from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.schemes.kai.keys import (
    FRACTIONS,
    GPU_GROUP,
    RESERVATION,
    RESERVATION_NAME,
    RESERVATION_NAMESPACES,
    RESERVED_GPU,
)
from vgpu.schemes.kubeshare.text import is_uuid

_OF_SEVERAL: Final = f"{GPU_GROUP}/"

Place = tuple[str, str]
"""A node and a group on it."""


def is_group_key(key: str) -> bool:
    """Whether a label of this key names a group."""
    return key == GPU_GROUP or key.startswith(_OF_SEVERAL)


def groups_of(pod: Pod) -> tuple[str, ...]:
    """The groups of a pod, each once, the plain label's first."""
    labels = pod.labels
    plain = labels.get(GPU_GROUP, "")
    several = (value for key, value in sorted(labels.items()) if key.startswith(_OF_SEVERAL))
    return tuple(dict.fromkeys(filter(None, (plain, *several))))


def is_reservation(pod: Pod) -> bool:
    """Whether the pod keeps a GPU for a group: by its namespace and a label."""
    if pod.ref.namespace not in RESERVATION_NAMESPACES:
        return False
    return RESERVATION in pod.labels.items() or GPU_GROUP in pod.labels


def resembles_reservation(pod: Pod) -> bool:
    """Whether a pod of another namespace may keep a GPU, since KAI has a flag for its name.

    Whoever writes labels and annotations can make a pod look so: it shows nothing but a doubt.
    """
    if RESERVATION not in pod.labels.items() and RESERVED_GPU not in pod.annotations:
        return False
    return not any(key in pod.annotations for key in FRACTIONS) and bool(groups_of(pod))


def doubted_groups(pods: Iterable[Pod]) -> frozenset[Place]:
    """The groups of pods that look as reservation pods in a namespace of another name.

    Any tenant may write such marks, so that they are no proof of a GPU. But a group of which there
    is such a pod is not known to have no reservation pod.
    """
    return frozenset(
        (pod.node, group)
        for pod in pods
        if pod.labels and pod.node and not is_reservation(pod) and resembles_reservation(pod)
        for group in groups_of(pod)
    )


def may_be_reservation(ref: PodRef) -> bool:
    """Whether a pod of which only the name is known is a reservation pod."""
    return ref.namespace in RESERVATION_NAMESPACES and ref.name.startswith(RESERVATION_NAME)


def reserved_gpu(pod: Pod) -> str:
    """The UUID that a reservation pod reports; "" if it has reported none."""
    text = pod.annotations.get(RESERVED_GPU, "")
    return text if is_uuid(text) else ""


class GpuGroups(msgspec.Struct, frozen=True):
    """The groups on their nodes.

    Attributes:
        reservations: the reservation pods of each group, ended ones too, by name.
        tenants: the pods of each group.
    """

    reservations: Mapping[Place, tuple[Pod, ...]] = {}
    tenants: Mapping[Place, tuple[Pod, ...]] = {}

    def gpu(self, node: str, group: str) -> str:
        """The GPU of a group; "" if no reservation pod names one, or they name several."""
        named = {reserved_gpu(pod) for pod in self.reservations.get((node, group), ())} - {""}
        return named.pop() if len(named) == 1 else ""


def gpu_groups(pods: Iterable[Pod]) -> GpuGroups:
    """The groups of these pods that are bound."""
    reservations: dict[Place, list[Pod]] = {}
    tenants: dict[Place, list[Pod]] = {}
    for pod in pods:
        if not pod.node or not pod.labels:
            continue
        kept = reservations if is_reservation(pod) else tenants
        for group in groups_of(pod):
            kept.setdefault((pod.node, group), []).append(pod)
    return GpuGroups(_by_name(reservations), _by_name(tenants))


def _by_name(pods: Mapping[Place, list[Pod]]) -> dict[Place, tuple[Pod, ...]]:
    return {
        place: tuple(sorted(of_one, key=lambda pod: (pod.ref.namespace, pod.ref.name, pod.ref.uid)))
        for place, of_one in pods.items()
    }


def resolved(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """The pods, the tenants with the GPUs of their groups if all of these are known."""
    everything = tuple(pods)
    if not any(map(is_reservation, everything)):
        return everything
    groups = gpu_groups(everything)
    return tuple(_with_gpus(pod, groups) for pod in everything)


def _with_gpus(pod: Pod, groups: GpuGroups) -> Pod:
    if not pod.node or not pod.labels or is_reservation(pod):
        return pod
    gpus = tuple(groups.gpu(pod.node, group) for group in groups_of(pod))
    if not gpus or not all(gpus) or gpus == pod.group_gpus:
        return pod
    return structs.replace(pod, group_gpus=gpus)
