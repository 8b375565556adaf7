"""The inspect page of gpushare's extender, with its JSON; pure. Amounts are units of memory.

The original counts a GPU by annotations and a pod by its limits, and lists no pod that is being
deleted; both are so here. Its total of a node is the node's own, and can be more than that of its
GPUs: each of three GPUs of a node with 32 units has 10. A pod whose annotations it cannot read is
on no GPU. It closes the connection for a node that it does not know; here that is an error in the
answer. Nodes are in the order of their names.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from scheduler.cluster.cached_node import InspectedNode
from vgpu.model.names import ContainerKind
from vgpu.model.objects import Pod
from vgpu.placement.candidate import UsedGpu
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.counted_claims import counted_claim
from vgpu.schemes.registry import names_of


def inspect_page(nodes: Iterable[InspectedNode], error: str = "") -> bytes:
    """The answer of ``/gpushare-scheduler/inspect``."""
    page: dict[str, Any] = {"nodes": [_node(node) for node in nodes]}
    if error:
        page["error"] = error
    return msgspec.json.encode(page)


def _node(node: InspectedNode) -> dict[str, Any]:
    devices = [_device(node, gpu) for gpu in node.gpus]
    return {
        "name": node.node.name,
        "totalGPU": node.node.capacity.get(names_of("gpushare").memory, 0),
        "usedGPU": sum(device["usedGPU"] for device in devices),
        "devs": devices,
    }


def _device(node: InspectedNode, gpu: UsedGpu) -> dict[str, Any]:
    return {
        "id": gpu.device.index,
        "totalGPU": gpu.capacity_bytes // node.unit_bytes,
        "usedGPU": gpu.memory_bytes // node.unit_bytes,
        "pods": [
            {
                "name": pod.ref.name,
                "namespace": pod.ref.namespace,
                "usedGPU": _requested(node, pod),
            }
            for pod in node.pods
            if pod.deleted_at is None and gpu.device.name in _devices(node, pod)
        ],
    }


def _devices(node: InspectedNode, pod: Pod) -> Sequence[str]:
    devices = {name: gpu.device for gpu in node.gpus for name in gpu.device.names}
    claim = counted_claim(pod, node.codec, devices, node.node.advertised).claim
    return [share.device for each in claim.allocations for share in each.shares] if claim else ()


def _requested(node: InspectedNode, pod: Pod) -> int:
    try:
        requests = node.codec.requests(pod)
    except ClaimError:
        return 0
    apps = (request for request in requests if request.kind is ContainerKind.APP)
    return sum((request.memory_bytes or 0) * request.count for request in apps) // node.unit_bytes
