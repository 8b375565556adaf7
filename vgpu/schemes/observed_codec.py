"""The codec of a system that is only observed: nothing of it is in annotations. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from vgpu.model.allocation import Allocation, Claim, Device, Request
from vgpu.model.names import PodRef, Scheme
from vgpu.model.objects import Node, Pod
from vgpu.schemes.codec import BaseCodec, ClaimError, ContainerEdits, Slot


class ObservedCodec(BaseCodec, frozen=True):
    """Reads and writes nothing: the system's allocations are in the node's own data.

    ``system`` is the name of its row and of its scheme.
    """

    system: str

    @property
    def name(self) -> str:
        """The name of its row."""
        return self.system

    @property
    def scheme(self) -> Scheme:
        """Its scheme."""
        return Scheme.named(self.system)

    @property
    def resources(self) -> tuple[str, ...]:
        """None: the row's ``named_devices`` reads its resources."""
        return ()

    def requests(self, pod: Pod) -> tuple[Request, ...]:  # noqa: ARG002  # there are none
        """None."""
        return ()

    def claim(self, pod: Pod) -> Claim | None:  # noqa: ARG002
        """None: no annotation names a device."""
        return None

    def claim_keys(self, pod: Pod) -> tuple[str, ...]:  # noqa: ARG002
        """None."""
        return ()

    def annotations(
        self,
        claim: Claim,
        devices: Mapping[str, Device],  # noqa: ARG002
        containers: Sequence[str] = (),  # noqa: ARG002
    ) -> dict[str, str]:
        """Raises ClaimError: it has no annotations."""
        self._refuse(claim.pod)

    def devices(self, node: Node) -> tuple[Device, ...]:  # noqa: ARG002
        """None: no annotation registers GPUs."""
        return ()

    def slot(self, resource: str, device_id: str) -> Slot:
        """Raises ClaimError: its device IDs are no slots of ours."""
        raise ClaimError(self.system, resource, device_id, "a system that is only observed")

    def device_ids(self, resource: str, devices: tuple[Device, ...]) -> Iterator[str]:  # noqa: ARG002
        """None."""
        return iter(())

    def edits(
        self,
        pod: PodRef,
        allocation: Allocation,  # noqa: ARG002
        devices: Mapping[str, Device],  # noqa: ARG002
    ) -> ContainerEdits:
        """Raises ClaimError: its own plugin injects devices."""
        self._refuse(pod)

    def _refuse(self, pod: PodRef) -> NoReturn:
        name = f"{pod.namespace}/{pod.name}"
        raise ClaimError(name, self.system, "", "a system that is only observed")
