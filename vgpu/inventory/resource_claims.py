"""Pods and ResourceClaims as they were read, put together. Pure."""

from collections.abc import Iterable

from vgpu.kube.kept_keys import shares_gpus
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.model.objects import Pod
from vgpu.model.resource_claims import ResourceClaim, ResourceSlice


def with_resource_claims(
    pods: Iterable[Pod],
    resource_claims: Iterable[ResourceClaim] = (),
    slices: Iterable[ResourceSlice] = (),
) -> tuple[tuple[Pod, ...], ClusterResourceClaims]:
    """The pods that share GPUs, and the ResourceClaims with the pods that only use these."""
    sharing: list[Pod] = []
    resource_claim_pods: list[Pod] = []
    for pod in pods:
        (sharing if shares_gpus(pod) else resource_claim_pods).append(pod)
    return tuple(sharing), ClusterResourceClaims(
        tuple(resource_claims), tuple(slices), tuple(resource_claim_pods)
    )
