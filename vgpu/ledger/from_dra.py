"""What the kubelet reports of ResourceClaims (dynamic resource allocation), as statements. Pure.

The kubelet's state knows the pods of a ResourceClaim by UID, and not their containers;
pod-resources knows the containers, and no UID. So the state decides who holds a device, and
pod-resources adds the containers. Both are the kubelet's own: no tenant can write them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from vgpu.ledger.statements import Statement
from vgpu.model.allocation import Share
from vgpu.model.facts import (
    CdiDevice,
    DriverResourceClaim,
    HeldResourceClaim,
    KubeletSample,
    PreparedResourceClaim,
    ResourceClaimSample,
)
from vgpu.model.names import PodRef, Scheme, Source
from vgpu.model.resource_claims import AllocatedDevice, ResourceClaim, ResourceClaimDevice

_Place = tuple[str, str, str]
"""Namespace, pod and ResourceClaim, by name."""


class ResourceClaimDetails:
    """What is known of ResourceClaims beyond the names of their devices: UUIDs and sizes."""

    def __init__(
        self, drivers: Iterable[DriverResourceClaim] = (), api: ResourceClaimSample | None = None
    ) -> None:
        """``drivers`` are from the checkpoints of drivers, ``api`` is from the API server."""
        driver_resource_claims = tuple(drivers)
        self._resource_claims: dict[str, ResourceClaim] = {}
        self._by_name: dict[tuple[str, str], ResourceClaim] = {}
        resource_claims = [one.resource_claim for one in driver_resource_claims]
        for resource_claim in (*resource_claims, *(api.resource_claims if api else ())):
            self._resource_claims[resource_claim.uid] = resource_claim
            self._by_name[resource_claim.namespace, resource_claim.name] = resource_claim
        self._published = api.uuids if api else {}
        self._uuids = {
            (one.resource_claim.uid, one.driver, device): uuid
            for one in driver_resource_claims
            for device, uuid in one.uuids.items()
        }

    def parts(
        self, namespace: str, device: ResourceClaimDevice
    ) -> Iterator[tuple[ResourceClaimDevice, Share]]:
        """The device with its share of it: several if it has several results, none if it observes.

        The size is unknown if no source has the status of the ResourceClaim.
        """
        resource_claim = self._resource_claims.get(device.resource_claim_uid)
        if not device.resource_claim_uid:  # of pod-resources alone
            resource_claim = self._by_name.get((namespace, device.resource_claim))
        results = [
            result
            for result in (resource_claim.results if resource_claim else ())
            if _is(result, device)
        ]
        if resource_claim and not device.resource_claim_uid:
            device = msgspec.structs.replace(device, resource_claim_uid=resource_claim.uid)
        name = self.uuid(device) or device.name
        if not results:
            yield device, Share(name)
        for result in results:
            if not result.admin:
                requests = device.requests or (result.request.partition("/")[0],)
                known = msgspec.structs.replace(device, share_id=result.share_id, requests=requests)
                yield known, Share(name, result.memory_bytes, result.cores_milli)

    def uuid(self, device: ResourceClaimDevice) -> str:
        """The UUID of the device; "" if it is not known."""
        own = self._uuids.get((device.resource_claim_uid, device.driver, device.device), "")
        return own or self._published.get((device.driver, device.pool, device.device), "")


def _is(result: AllocatedDevice, device: ResourceClaimDevice) -> bool:
    """Whether the result is about the device; an older kubelet does not know the share ID."""
    if (result.driver, result.pool, result.device) != (device.driver, device.pool, device.device):
        return False
    if device.share_id:
        return result.share_id == device.share_id
    names = {result.request, result.request.partition("/")[0]}
    return not device.requests or not names.isdisjoint(device.requests)


def resource_claim_statements(
    prepared: Iterable[PreparedResourceClaim],
    held: Iterable[HeldResourceClaim],
    pods: Iterable[PodRef],
    details: ResourceClaimDetails | None = None,
    users: Mapping[tuple[str, str], frozenset[str]] = MappingProxyType({}),
) -> Iterator[Statement]:
    """A statement for each source and container; ``pods`` are the node's.

    It has the devices of all of the container's ResourceClaims, without those that a ResourceClaim
    only observes (``adminAccess``). Containers that pod-resources does not name are those that use
    its devices by the driver (``users``, by pod UID and device), else the container is "".
    What pod-resources reports of a pod whose name is not that of exactly one pod, with this
    ResourceClaim where the state has it, is left out.
    """
    by_container: dict[tuple[Source, str, str], list[Statement]] = {}
    for statement in _of_each_resource_claim(
        prepared, held, pods, details or ResourceClaimDetails(), users
    ):
        place = statement.source, statement.pod.uid, statement.container
        by_container.setdefault(place, []).append(statement)
    for statements in by_container.values():
        yield msgspec.structs.replace(
            statements[0],
            shares=tuple(share for statement in statements for share in statement.shares),
            resource_claim_devices=tuple(
                resource_claim_device
                for statement in statements
                for resource_claim_device in statement.resource_claim_devices
            ),
            where=", ".join(statement.where for statement in statements),
        )


def _of_each_resource_claim(
    prepared: Iterable[PreparedResourceClaim],
    held: Iterable[HeldResourceClaim],
    pods: Iterable[PodRef],
    known: ResourceClaimDetails,
    users: Mapping[tuple[str, str], frozenset[str]],
) -> Iterator[Statement]:
    """A statement for each source, container and ResourceClaim."""
    known_pods = tuple(pods)
    refs = {pod.uid: pod for pod in known_pods}
    uids: dict[tuple[str, str], set[str]] = {}
    for pod in known_pods:
        uids.setdefault((pod.namespace, pod.name), set()).add(pod.uid)
    containers: dict[_Place, dict[str, HeldResourceClaim]] = {}
    for use in held:
        place = use.namespace, use.pod, use.resource_claim
        containers.setdefault(place, {})[use.container] = use
    named: dict[tuple[str, str, str], PreparedResourceClaim] = {}
    states = tuple(prepared)
    parts_of = {
        (one.namespace, one.name): _parts(known, one.namespace, one.devices) for one in states
    }
    rivals = Counter(
        (uid, device)
        for one in states
        for uid in one.pod_uids
        for device in {share.device for _, share in parts_of[one.namespace, one.name]}
    )
    for resource_claim in states:
        where = f"ResourceClaim {resource_claim.namespace}/{resource_claim.name}"
        devices = resource_claim.devices
        parts = parts_of[resource_claim.namespace, resource_claim.name]
        for uid in resource_claim.pod_uids:
            ref = refs.get(uid, PodRef(uid, "", ""))
            place = resource_claim.namespace, ref.name, resource_claim.name
            named[uid, resource_claim.namespace, resource_claim.name] = resource_claim
            names = containers.get(place) or _users(uid, parts, users, rivals)
            for container in sorted(names) or ("",):
                if parts or not devices:
                    yield _statement(Source.DRA_STATE, ref, container, parts, where)
    for (namespace, pod_name, resource_claim_name), uses in containers.items():
        candidates = uids.get((namespace, pod_name), set())
        matching = [
            uid for uid in candidates if (uid, namespace, resource_claim_name) in named
        ] or [*candidates]
        if len(matching) != 1:
            continue
        (uid,) = matching
        in_state = named.get((uid, namespace, resource_claim_name))
        for use in uses.values():
            where = f"pod-resources, ResourceClaim {namespace}/{resource_claim_name}"
            devices = _as_in_state(use.devices, in_state)
            parts = _parts(known, namespace, devices)
            if parts or not devices:
                yield _statement(Source.POD_RESOURCES, refs[uid], use.container, parts, where)


_Parts = tuple[tuple[ResourceClaimDevice, Share], ...]


def _users(
    uid: str,
    parts: _Parts,
    users: Mapping[tuple[str, str], frozenset[str]],
    rivals: Mapping[tuple[str, str], int],
) -> frozenset[str]:
    """The containers of the pod that use a device of the ResourceClaim.

    They have the device by this ResourceClaim, unless the pod has another one of the same device:
    then they may have it by the other.
    """
    places = {(uid, share.device) for _, share in parts}
    if any(rivals[place] > 1 for place in places):
        return frozenset()
    return frozenset[str]().union(*(users.get(place, ()) for place in places))


def _parts(
    details: ResourceClaimDetails, namespace: str, devices: Iterable[ResourceClaimDevice]
) -> _Parts:
    return tuple(part for device in devices for part in details.parts(namespace, device))


def _as_in_state(
    devices: tuple[ResourceClaimDevice, ...], prepared: PreparedResourceClaim | None
) -> tuple[ResourceClaimDevice, ...]:
    """The devices with the UID and requests that the state has for them."""
    by_name: dict[tuple[str, str], list[ResourceClaimDevice]] = {}
    for device in prepared.devices if prepared else ():
        by_name.setdefault((device.name, device.share_id), []).append(device)
    return tuple(
        known
        for device in devices
        for known in by_name.get((device.name, device.share_id), [device])
    )


def _statement(source: Source, pod: PodRef, container: str, parts: _Parts, where: str) -> Statement:
    return Statement(
        source=source,
        pod=pod,
        container=container,
        shares=tuple(share for _, share in parts),
        scheme=Scheme.DRA,
        where=where,
        resource_claim_devices=tuple(device for device, _ in parts),
    )


def left_resource_claims(
    kubelet: KubeletSample, api: ResourceClaimSample | None = None
) -> Iterator[tuple[str, str]]:
    """The devices of ResourceClaims that a driver has and the kubelet or the API server has not.

    A driver prepares a ResourceClaim after the kubelet has written it down, and the kubelet removes
    it after the driver has; the API server keeps it for as long as a pod uses it. What was not read
    is no evidence.
    """
    prepared = kubelet.resource_claims if kubelet.dra_state_known else None
    uids = None if prepared is None else {resource_claim.uid for resource_claim in prepared}
    for one in kubelet.driver_resource_claims:
        is_gone = api is not None and one.resource_claim.uid in api.gone
        if is_gone or (uids is not None and one.resource_claim.uid not in uids):
            name = f"{one.resource_claim.namespace}/{one.resource_claim.name}"
            where = f"ResourceClaim {name} of {one.driver}"
            if is_gone:
                where += ", which does not exist"
            for device, uuid in one.uuids.items():
                yield uuid, f"{where}, {device}"


def missing_specs(
    kubelet: KubeletSample, details: ResourceClaimDetails
) -> Iterator[tuple[str, str]]:
    """The devices of prepared ResourceClaims of which a CDI device is in no spec of the node.

    Those of pod-resources count only without the kubelet's state.
    """
    promised: Iterable[tuple[str, str, str, tuple[CdiDevice, ...]]] = (
        ((one.namespace, one.name, one.uid, one.cdi) for one in kubelet.resource_claims or ())
        if kubelet.dra_state_known
        else (
            (one.namespace, one.resource_claim, "", one.cdi) for one in kubelet.held_resource_claims
        )
    )
    for namespace, name, uid, cdi_devices in promised if kubelet.missing_cdi else ():
        for cdi in cdi_devices:
            if cdi.name in kubelet.missing_cdi:
                device = ResourceClaimDevice(uid, name, cdi.driver, cdi.pool, cdi.device)
                where = f"ResourceClaim {namespace}/{name} of {cdi.driver}, {cdi.device}"
                yield details.uuid(device) or device.name, f"{where}: no CDI spec has {cdi.name}"
