"""Pods and ResourceClaims as they were read, put together. Pure."""

from collections.abc import Iterable

from vgpu.kube.kept_keys import shares_gpus
from vgpu.kube.objects import Pod
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.model import ResourceClaim, ResourceSlice


def with_resource_claims(
    pods: Iterable[Pod],
    claims: Iterable[ResourceClaim] = (),
    slices: Iterable[ResourceSlice] = (),
) -> tuple[tuple[Pod, ...], ClusterResourceClaims]:
    """The pods that share GPUs, and the ResourceClaims with the pods that only use these."""
    sharing: list[Pod] = []
    claiming: list[Pod] = []
    for pod in pods:
        (sharing if shares_gpus(pod) else claiming).append(pod)
    return tuple(sharing), ClusterResourceClaims(tuple(claims), tuple(slices), tuple(claiming))
