"""The annotations, labels and locks to write: those of the allocation state that the API server
lacks. Pure.

Each result is of one object, so that a failing object delays no other.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from deviceplugin.model import AdmittedPod
from deviceplugin.scheme_adapter import AnnotationPatch, NodePatch, SchemeAdapter
from vgpu.model.allocation import Device
from vgpu.model.objects import Node, Pod


class DesiredState(msgspec.Struct, frozen=True):
    """The state of the node and its pods at one moment.

    Attributes:
        devices: the node's, with their health; () if they are not known yet.
        named: the devices by every name.
        admitted_pods, pods: by the UID that the node knows a pod by; pods as the API server has
            them.
        node: as the API server has it; None if the API server does not answer.
        served: UIDs of pods with an answer of the kubelet's for every container (it is bound, or
            refused, perhaps only for now), and of pods with a finally refused container.
        refused: UIDs of pods with a finally refused container.
    """

    devices: tuple[Device, ...]
    named: Mapping[str, Device]
    admitted_pods: Mapping[str, AdmittedPod]
    pods: Mapping[str, Pod]
    node: Node | None
    served: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()


def of_pod(adapter: SchemeAdapter, desired: DesiredState, uid: str, now: float) -> AnnotationPatch:
    """The annotations to write of one of the pods."""
    pod = desired.pods[uid]
    if uid in desired.refused:
        return adapter.failure_annotations(pod)
    admitted_pod = desired.admitted_pods.get(uid)
    return adapter.pod_annotations(pod, admitted_pod, desired.named, now) if admitted_pod else {}


def of_node(adapter: SchemeAdapter, desired: DesiredState, now: float) -> NodePatch:
    """The patch of the node; empty while its devices are not known: it may have GPUs."""
    if desired.node is None or not desired.devices:
        return NodePatch()
    return adapter.node_annotations(desired.node, desired.devices, now)


def lock_of(
    adapter: SchemeAdapter, desired: DesiredState, spent: Collection[str], now: float
) -> str | None:
    """The key of the node's lock that is to be released.

    The owner's annotations are written first: without the lock the scheduler sends the next pod.
    ``spent`` are UIDs of pods whose lock was released before: no later lock is theirs.
    """
    if desired.node is None or not adapter.codec.locks(desired.node):
        return None
    pods = {uid: pod for uid, pod in desired.pods.items() if uid not in spent}
    served = desired.served.intersection(pods)
    up_to_date = {uid for uid in served if not of_pod(adapter, desired, uid, now)}
    return adapter.lock_to_release(desired.node, pods.values(), up_to_date)


def capacity_patch(node: Node, capacity: Mapping[str, int]) -> list[dict[str, Any]]:
    """A JSON patch (RFC 6902) that replaces the capacity in the status of this node's UID."""
    patch: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": node.uid}]
    for resource, count in capacity.items():
        name = resource.replace("~", "~0").replace("/", "~1")
        for where in ("capacity", "allocatable"):
            path = f"/status/{where}/{name}"
            patch.append({"op": "add", "path": path, "value": str(count)})
    return patch
