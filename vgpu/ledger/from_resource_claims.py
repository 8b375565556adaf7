"""The API server's ResourceClaims and ResourceSlices, as statements and devices of nodes. Pure.

The status of a ResourceClaim has what the scheduler allocated, and the pods that may use it. So a
pod holds devices from then on, whether the kubelet has prepared them or not. Containers are not in
it: only a pod of a single container names one.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from vgpu.kube.dra_objects import PublishedDevices
from vgpu.ledger.from_api import only_container
from vgpu.ledger.statements import Statement
from vgpu.model.allocation import Device, Share
from vgpu.model.names import PodRef, Scheme, Source
from vgpu.model.objects import Pod, holds_devices
from vgpu.model.resource_claims import (
    AllocatedDevice,
    ResourceClaim,
    ResourceClaimDevice,
    ResourceSlice,
)


class ClusterResourceClaims(msgspec.Struct, frozen=True):
    """What the API server has of dynamic resource allocation; nothing where it serves none.

    ``pods`` are those that use ResourceClaims and share GPUs in no other way.
    """

    resource_claims: tuple[ResourceClaim, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    pods: tuple[Pod, ...] = ()


class NodeResourceClaims(msgspec.Struct, frozen=True):
    """The part of one node: what its pods hold, the devices with a UUID, and these pods."""

    statements: tuple[Statement, ...] = ()
    devices: tuple[Device, ...] = ()
    pods: tuple[Pod, ...] = ()


NO_RESOURCE_CLAIMS: Final = NodeResourceClaims()


def node_resource_claims(
    known: ClusterResourceClaims, others: Iterable[Pod] = ()
) -> dict[str, NodeResourceClaims]:
    """The parts of the nodes; ``others`` are pods that share GPUs, too."""
    published = PublishedDevices(known.slices)
    refs = {pod.ref.uid: pod for pod in (*others, *known.pods)}
    statements: dict[str, dict[str, list[Statement]]] = {}
    for resource_claim in known.resource_claims:
        for node, statement in _statements(resource_claim, published, refs):
            statements.setdefault(node, {}).setdefault(statement.pod.uid, []).append(statement)
    devices: dict[str, dict[str, Device]] = {}
    for name, device in published.devices.items():
        if device.uuid and published.nodes[name]:
            devices.setdefault(published.nodes[name], {})[device.uuid] = Device(
                uuid=device.uuid,
                memory_bytes=device.memory_bytes,
                model=device.model,
                parent=device.parent,
            )
    pods: dict[str, list[Pod]] = {}
    for pod in known.pods:
        pods.setdefault(pod.node, []).append(pod)
    return {
        node: NodeResourceClaims(
            tuple(map(_joined, statements.get(node, {}).values())),
            tuple(devices.get(node, {}).values()),
            tuple(pods.get(node, ())),
        )
        for node in sorted(statements.keys() | devices.keys() | pods.keys())
        if node
    }


def _statements(
    resource_claim: ResourceClaim, published: PublishedDevices, pods: Mapping[str, Pod]
) -> Iterator[tuple[str, Statement]]:
    """A statement for each pod and node; a result that only observes a device holds nothing."""
    results = [result for result in resource_claim.results if not result.admin]
    for ref in resource_claim.reserved_for if results else ():
        pod = pods.get(ref.uid)
        if pod is not None and not holds_devices(pod):
            continue
        by_home: dict[str, list[AllocatedDevice]] = {}
        for result in results:
            name = result.driver, result.pool, result.device
            home = published.nodes.get(name) or resource_claim.node or (pod.node if pod else "")
            by_home.setdefault(home, []).append(result)
        for home, here in by_home.items():
            yield (
                home,
                _statement(
                    resource_claim, ref, only_container(pod) if pod else "", here, published
                ),
            )


def _statement(
    resource_claim: ResourceClaim,
    pod: PodRef,
    container: str,
    results: Iterable[AllocatedDevice],
    published: PublishedDevices,
) -> Statement:
    parts = [(_device_of(resource_claim, result), result) for result in results]
    return Statement(
        source=Source.RESOURCE_CLAIM,
        pod=pod,
        container=container,
        shares=tuple(
            Share(
                _uuid(resource_claim_device, published) or resource_claim_device.name,
                result.memory_bytes,
                result.cores_milli,
            )
            for resource_claim_device, result in parts
        ),
        scheme=Scheme.DRA,
        where=f"ResourceClaim {resource_claim.namespace}/{resource_claim.name}",
        resource_claim_devices=tuple(resource_claim_device for resource_claim_device, _ in parts),
    )


def _device_of(resource_claim: ResourceClaim, result: AllocatedDevice) -> ResourceClaimDevice:
    """The result as the device of its ResourceClaim."""
    return ResourceClaimDevice(
        resource_claim.uid,
        resource_claim.name,
        result.driver,
        result.pool,
        result.device,
        result.share_id,
        (result.request.partition("/")[0],),
    )


def _uuid(resource_claim_device: ResourceClaimDevice, published: PublishedDevices) -> str:
    device = published.devices.get(
        (resource_claim_device.driver, resource_claim_device.pool, resource_claim_device.device)
    )
    return device.uuid if device else ""


def _joined(statements: list[Statement]) -> Statement:
    """The statements about one pod as one, since a source makes one for each container."""
    return msgspec.structs.replace(
        statements[0],
        shares=tuple(share for statement in statements for share in statement.shares),
        resource_claim_devices=tuple(
            resource_claim_device
            for statement in statements
            for resource_claim_device in statement.resource_claim_devices
        ),
        where=", ".join(statement.where for statement in statements),
    )
