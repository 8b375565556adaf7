"""The ResourceClaims of a pod, and which GPUs drivers of dynamic allocation have free. Pure.

kube-controller-manager makes the ResourceClaim of a template and writes its name into the pod's
status (``pkg/controller/resourceclaim/controller.go``); kube-scheduler allocates devices to it.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from vgpu.kube.dra_objects import PublishedDevices
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.model.objects import Pod, UsedClaim
from vgpu.model.resource_claims import ResourceClaim
from vgpu.model.units import count
from vgpucli.explain.model import ExplainReason
from vgpucli.explain.sentences import names_text

UNCHECKED: Final = "kubectl describe resourceclaim: vgpu does not judge what it selects devices by"
"""What shows whether a node has devices for a ResourceClaim."""


class KnownClaim(msgspec.Struct, frozen=True):
    """A ResourceClaim of a pod.

    Attributes:
        text: its state, for people.
        reason: why the pod waits for it; None if it is allocated, or if that is not known.
        advice: what to do; "" if nothing.
        is_allocated: whether it has devices.
    """

    text: str
    reason: ExplainReason | None = None
    advice: str = ""
    is_allocated: bool = False


def known_claims(
    pod: Pod, known: ClusterResourceClaims, *, are_read: bool
) -> tuple[KnownClaim, ...]:
    """The ResourceClaims that the pod names, then others that are reserved for it.

    Without ``are_read`` a ResourceClaim that is not ``known`` may exist.
    """
    by_name = {(each.namespace, each.name): each for each in known.resource_claims}
    named = {each.name for each in pod.used_claims}
    reserved = (
        each
        for each in known.resource_claims
        if each.name not in named and any(ref.uid == pod.ref.uid for ref in each.reserved_for)
    )
    own = (_of_entry(pod, used, by_name, are_read=are_read) for used in pod.used_claims)
    return (*own, *map(_state, reserved))


def _of_entry(
    pod: Pod, used: UsedClaim, by_name: Mapping[tuple[str, str], ResourceClaim], *, are_read: bool
) -> KnownClaim:
    namespace = pod.ref.namespace
    if not used.name:
        template = f"ResourceClaimTemplate {namespace}/{used.template or used.entry}"
        return KnownClaim(
            f"no ResourceClaim has been made from {template}",
            ExplainReason.RESOURCE_CLAIM_MISSING,
            f"check that {template} exists: kube-controller-manager makes the ResourceClaim of it",
        )
    claim = by_name.get((namespace, used.name))
    if claim is not None:
        return _state(claim)
    title = f"ResourceClaim {namespace}/{used.name}"
    if not are_read:
        return KnownClaim(f"{title} was not read")
    return KnownClaim(
        f"{title} does not exist",
        ExplainReason.RESOURCE_CLAIM_MISSING,
        f"create {title}, or correct its name in the pod's template",
    )


def _state(claim: ResourceClaim) -> KnownClaim:
    title = f"ResourceClaim {claim.namespace}/{claim.name}"
    if not claim.results:
        return KnownClaim(
            f"{title} is not allocated{_selection_text(claim)}",
            ExplainReason.RESOURCE_CLAIMS_WAIT,
            f"kubectl describe resourceclaim -n {claim.namespace} {claim.name} shows what it"
            " requests, and kubectl get resourceslices what the drivers have",
        )
    devices = ", ".join(f"{each.device} of {each.driver}" for each in claim.results)
    where = f" on node {claim.node}" if claim.node else ""
    return KnownClaim(f"{title} has {devices}{where}", is_allocated=True)


def _selection_text(claim: ResourceClaim) -> str:
    """What the claim selects devices by; nothing here judges whether a device matches."""
    if not claim.device_classes:
        return ""
    selectors = " and its selectors (CEL)" if claim.has_selectors else ""
    classes = names_text(claim.device_classes)
    return f" (not checked: which devices match DeviceClass {classes}{selectors})"


def free_devices(known: ClusterResourceClaims) -> Iterator[str]:
    """What each driver has free of the GPUs that it publishes, by node, as sentences."""
    published = PublishedDevices(known.slices)
    taken = {
        (each.driver, each.pool, each.device)
        for claim in known.resource_claims
        for each in claim.results
        if not each.admin
    }
    devices: dict[tuple[str, str], list[bool]] = {}
    for name, device in published.devices.items():
        if device.uuid:
            devices.setdefault((published.nodes[name], name[0]), []).append(name not in taken)
    for (node, driver), is_free in sorted(devices.items()):
        yield (
            f"{node or 'no single node'}: {sum(is_free)} of {count(len(is_free), 'GPU')} of"
            f" {driver} not allocated"
        )
