"""A simulated node and its pods as the API server reports them: JSON values."""

from collections.abc import Container, Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from simulator.scenario import Scenario, SimulatedContainer, SimulatedPod, identity
from simulator.scheme_objects import (
    REPLICAS,
    SPLIT,
    SimulatedClaim,
    System,
    annotations,
    claims,
    registered,
    requests,
)
from simulator.store import Json
from vgpu.model.allocation import Device
from vgpu.model.units import GIB, MIB
from vgpu.schemes.gpushare.node import NAMES
from vgpu.schemes.volcano.codec import HAMI, VOLCANO, Volcano


def stamp(seconds: float) -> str:
    """Unix seconds as Kubernetes writes them."""
    return f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%dT%H:%M:%SZ}"


def pods_file(pods: Iterable[Json]) -> bytes:
    """What ``kubectl get pods -A -o json`` prints of them."""
    whole = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}}
    return msgspec.json.encode(whole | {"items": list(pods)})


# ---------------------------------------------------------------- pods


def pod_objects(scenario: Scenario, start: float) -> Iterator[Json]:
    """All pods of the node that exist; ``start`` is the unix time of second 0."""
    all_claims = claims(scenario, start)
    for pod in scenario.pods:
        if not pod.deleted:
            own = [claim for claim in all_claims if claim.pod is pod]
            yield _pod(scenario.node, pod, own, stamp(start + pod.created))


def _pod(node: str, pod: SimulatedPod, pod_claims: list[SimulatedClaim], created: str) -> Json:
    limits = {claim.container.name: requests(claim) for claim in pod_claims}
    status: Json = {"phase": pod.phase, "startTime": created}
    if pod.reason:
        status |= {"reason": pod.reason, "message": pod.message}
    if pod.admitted:
        status["containerStatuses"] = [_container_status(pod, c, created) for c in pod.containers]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.ref.name,
            "namespace": pod.ref.namespace,
            "uid": pod.ref.uid,
            "creationTimestamp": created,
            "annotations": {
                key: value for claim in pod_claims for key, value in annotations(claim).items()
            },
            **_owned(pod),
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {
                    "name": container.name,
                    "image": f"registry.example/{container.name}:1.0",
                    "resources": {
                        "limits": limits.get(container.name, {}),
                        "requests": limits.get(container.name, {}),
                    },
                }
                for container in pod.containers
            ],
        },
        "status": status,
    }


def _owned(pod: SimulatedPod) -> Json:
    if not pod.owner:
        return {}
    kind, name = pod.owner.split("/")
    owner = {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "name": name,
        "uid": identity(f"{pod.ref.namespace}/{pod.owner}"),
        "controller": True,
    }
    return {"ownerReferences": [owner]}


def _container_status(pod: SimulatedPod, container: SimulatedContainer, created: str) -> Json:
    container_id = f"containerd://{container.id}"
    ended = {"exitCode": 0, "reason": "Completed", "containerID": container_id}
    return {
        "name": container.name,
        "containerID": container_id,
        "ready": pod.running,
        "restartCount": 0,
        "state": {"running": {"startedAt": created}} if pod.running else {"terminated": ended},
    }


# ---------------------------------------------------------------- the node


def node_object(scenario: Scenario) -> Json:
    """The node: what the plugins of the systems in use on it offer, and which GPUs they register.

    Of the registers only one is there, HAMi's if it can be: by it alone who counts GPUs by number
    is seen to mean the same ones. gpu-memory-factor is 1024, as in
    :mod:`simulator.scheme_objects`.
    """
    devices = tuple(
        Device(gpu.uuid, gpu.index, gpu.memory_bytes, slots=SPLIT, model=gpu.name)
        for gpu in scenario.gpus
    )
    systems = {claim.system for claim in claims(scenario, 0)}
    marks: dict[str, str] = {}
    if System.HAMI in systems:
        marks |= Volcano(HAMI).register(devices)
    elif System.VOLCANO in systems:
        marks |= Volcano(VOLCANO, GIB // MIB).register(devices)
    offered = {name: str(len(ids)) for name, ids in registered(scenario).items()}
    if System.GPUSHARE in systems:
        offered[NAMES.count] = str(len(devices))
    quantities = {"cpu": "64", "memory": "512Gi", "pods": "110", **offered}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": scenario.node,
            "uid": identity(f"node {scenario.node}"),
            "annotations": marks,
            "labels": {
                "kubernetes.io/hostname": scenario.node,
                **_discovered(scenario, systems),
            },
        },
        "spec": {},
        "status": {
            "capacity": quantities,
            "allocatable": quantities,
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {
                "kubeletVersion": "v1.34.4",
                "containerRuntimeVersion": "containerd://2.1.4",
            },
        },
    }


def _discovered(scenario: Scenario, systems: Container[System]) -> dict[str, str]:
    """The labels of NVIDIA's GPU feature discovery, which describe a node by its first GPU."""
    strategies = {System.NVIDIA: "time-slicing", System.MPS: "mps"}
    strategy = next((text for system, text in strategies.items() if system in systems), "")
    if not strategy:
        return {}
    gpu = scenario.gpus[0]
    return {
        "nvidia.com/gpu.count": str(len(scenario.gpus)),
        "nvidia.com/gpu.product": gpu.name.replace(" ", "-"),
        "nvidia.com/gpu.memory": str(gpu.memory_bytes // MIB),
        "nvidia.com/gpu.replicas": str(REPLICAS),
        "nvidia.com/gpu.sharing-strategy": strategy,
    }
