"""What the kubelet reports of ResourceClaims (dynamic resource allocation), as statements. Pure.

The kubelet's state knows the pods of a ResourceClaim by UID, and not their containers;
pod-resources knows the containers, and no UID. So the state decides who holds a device, and
pod-resources adds the containers. Both are the kubelet's own: no tenant can write them.
"""

from collections.abc import Iterable, Iterator

from vgpu.facts import HeldResourceClaim, PreparedResourceClaim
from vgpu.ledger.statements import Statement
from vgpu.model import ClaimedDevice, PodRef, Scheme, Share, Source

_Place = tuple[str, str, str]
"""Namespace, pod and ResourceClaim, by name."""


def resource_claim_statements(
    prepared: Iterable[PreparedResourceClaim],
    held: Iterable[HeldResourceClaim],
    pods: Iterable[PodRef],
) -> Iterator[Statement]:
    """A statement for each source, ResourceClaim and container; ``pods`` are the node's.

    The container is "" where pod-resources does not name it. What pod-resources reports of a pod
    whose name is not that of exactly one pod, with this ResourceClaim where the state has it, is
    left out.
    """
    known_pods = tuple(pods)
    refs = {pod.uid: pod for pod in known_pods}
    uids: dict[tuple[str, str], set[str]] = {}
    for pod in known_pods:
        uids.setdefault((pod.namespace, pod.name), set()).add(pod.uid)
    containers: dict[_Place, dict[str, HeldResourceClaim]] = {}
    for use in held:
        place = use.namespace, use.pod, use.claim
        containers.setdefault(place, {})[use.container] = use
    named: dict[tuple[str, str, str], PreparedResourceClaim] = {}
    for resource_claim in prepared:
        where = f"ResourceClaim {resource_claim.namespace}/{resource_claim.name}"
        for uid in resource_claim.pod_uids:
            ref = refs.get(uid, PodRef(uid, "", ""))
            place = resource_claim.namespace, ref.name, resource_claim.name
            named[uid, resource_claim.namespace, resource_claim.name] = resource_claim
            for container in sorted(containers.get(place, ())) or ("",):
                yield _statement(Source.DRA_STATE, ref, container, resource_claim.devices, where)
    for (namespace, pod_name, claim), uses in containers.items():
        candidates = uids.get((namespace, pod_name), set())
        matching = [uid for uid in candidates if (uid, namespace, claim) in named] or [*candidates]
        if len(matching) != 1:
            continue
        (uid,) = matching
        known = named.get((uid, namespace, claim))
        for use in uses.values():
            where = f"pod-resources, ResourceClaim {namespace}/{claim}"
            devices = _as_in_state(use.devices, known)
            yield _statement(Source.POD_RESOURCES, refs[uid], use.container, devices, where)


def _as_in_state(
    devices: tuple[ClaimedDevice, ...], prepared: PreparedResourceClaim | None
) -> tuple[ClaimedDevice, ...]:
    """The devices with the UID and requests that the state has for them."""
    by_name: dict[tuple[str, str], list[ClaimedDevice]] = {}
    for device in prepared.devices if prepared else ():
        by_name.setdefault((device.name, device.share_id), []).append(device)
    return tuple(
        known
        for device in devices
        for known in by_name.get((device.name, device.share_id), [device])
    )


def _statement(
    source: Source, pod: PodRef, container: str, devices: tuple[ClaimedDevice, ...], where: str
) -> Statement:
    return Statement(
        source=source,
        pod=pod,
        container=container,
        shares=tuple(Share(device.name) for device in devices),
        scheme=Scheme.DRA,
        where=where,
        claimed=devices,
    )
