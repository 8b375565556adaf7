"""The codec of DRA: its pods have no annotations, and nodes register no GPUs in theirs.

Who holds which device is in ResourceClaims, which the kubelet reports: :mod:`vgpu.ledger.from_dra`.
"""

from collections.abc import Iterator, Mapping, Sequence

from vgpu.kube.objects import Node, Pod
from vgpu.model import Allocation, Claim, Device, PodRef, Request, Scheme
from vgpu.schemes.codec import BaseCodec, ClaimError, ContainerEdits, Slot


class Dra(BaseCodec, frozen=True):
    """Finds nothing in pods and nodes, and writes nothing into them."""

    @property
    def name(self) -> str:
        """As in :class:`SchemeCodec`."""
        return "dra"

    @property
    def scheme(self) -> Scheme:
        """As in :class:`SchemeCodec`."""
        return Scheme.DRA

    @property
    def resources(self) -> tuple[str, ...]:
        """None: ResourceClaims are no extended resources."""
        return ()

    def requests(self, pod: Pod) -> tuple[Request, ...]:  # noqa: ARG002  # in ResourceClaims
        """None."""
        return ()

    def claim(self, pod: Pod) -> Claim | None:  # noqa: ARG002  # in ResourceClaims
        """None."""
        return None

    def claim_keys(self, pod: Pod) -> tuple[str, ...]:  # noqa: ARG002  # there are none
        """None."""
        return ()

    def annotations(
        self,
        claim: Claim,
        devices: Mapping[str, Device],  # noqa: ARG002
        containers: Sequence[str] = (),  # noqa: ARG002
    ) -> dict[str, str]:
        """Raises ClaimError: a ResourceClaim is no annotation."""
        pod = claim.pod
        raise ClaimError(f"{pod.namespace}/{pod.name}", "ResourceClaim", "", "no annotation has it")

    def devices(self, node: Node) -> tuple[Device, ...]:  # noqa: ARG002  # in ResourceSlices
        """None: a driver registers its devices in ResourceSlices."""
        return ()

    def slot(self, resource: str, device_id: str) -> Slot:
        """Raises ClaimError: there is no extended resource."""
        raise ClaimError("ResourceClaim", resource, device_id, "no device ID of DRA")

    def device_ids(
        self,
        resource: str,  # noqa: ARG002  # there is none
        devices: tuple[Device, ...],  # noqa: ARG002
    ) -> Iterator[str]:
        """None."""
        return iter(())

    def edits(
        self,
        pod: PodRef,
        allocation: Allocation,  # noqa: ARG002
        devices: Mapping[str, Device],  # noqa: ARG002
    ) -> ContainerEdits:
        """Raises ClaimError: the driver's CDI spec has them."""
        name = f"{pod.namespace}/{pod.name}"
        raise ClaimError(name, "ResourceClaim", "", "its driver injects the devices")
