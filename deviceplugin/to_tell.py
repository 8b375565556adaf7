"""What others are to be told now: what the desk knows, less what the API server says already. Pure.

Each answer is of one subject alone, so that one that cannot be told holds up no other.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from deviceplugin.model import Tenant
from deviceplugin.role import Marks, NodeMarks, Role
from vgpu.kube import Node, Pod
from vgpu.model import Device


class Look(msgspec.Struct, frozen=True):
    """What is so at one moment.

    Attributes:
        devices: the node's, with their health; none if they are not known yet.
        named: the same, by every name.
        tenants, pods: by the UID that the node knows a pod by; pods as the API server has them.
        node: as the API server has it; None if it is not heard.
        served: UIDs of pods of which the kubelet has an answer for every container: it is bound, or
            refused, be it for now; or of which one is finally refused.
        refused: UIDs of pods of which a container is finally refused.
    """

    devices: tuple[Device, ...]
    named: Mapping[str, Device]
    tenants: Mapping[str, Tenant]
    pods: Mapping[str, Pod]
    node: Node | None
    served: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()


def of_pod(role: Role, look: Look, uid: str, now: float) -> Marks:
    """Annotations of one of the pods."""
    pod = look.pods[uid]
    if uid in look.refused:
        return role.failure_marks(pod)
    tenant = look.tenants.get(uid)
    return role.pod_marks(pod, tenant, look.named, now) if tenant else {}


def of_node(role: Role, look: Look, now: float) -> NodeMarks:
    """Of the node; nothing while its devices are not known: that is no node without cards."""
    if look.node is None or not look.devices:
        return NodeMarks()
    return role.node_marks(look.node, look.devices, now)


def lock_of(role: Role, look: Look, spent: Collection[str], now: float) -> str | None:
    """The key of the node's lock that is to be released.

    Its owner is told first: without the lock the scheduler sends the next pod. ``spent`` are UIDs
    of pods whose lock has gone before: no later one is theirs.
    """
    if look.node is None or not role.language.locks(look.node):
        return None
    pods = {uid: pod for uid, pod in look.pods.items() if uid not in spent}
    served = look.served.intersection(pods)
    told = {uid for uid in served if not of_pod(role, look, uid, now)}
    return role.lock_to_release(look.node, pods.values(), told)


def capacity_patch(node: Node, capacity: Mapping[str, int]) -> list[dict[str, Any]]:
    """A JSON patch (RFC 6902) of the status of that very node; what is there is replaced."""
    patch: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": node.uid}]
    for resource, count in capacity.items():
        name = resource.replace("~", "~0").replace("/", "~1")
        for where in ("capacity", "allocatable"):
            path = f"/status/{where}/{name}"
            patch.append({"op": "add", "path": path, "value": str(count)})
    return patch
