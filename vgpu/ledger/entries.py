"""The ledger's result: who holds what on which device, by which sources."""

from collections.abc import Iterator

import msgspec

from vgpu.ledger.bounds import UNREGISTERED, Bounds
from vgpu.ledger.conflicts import Conflict
from vgpu.ledger.device_ids import DeviceIds
from vgpu.ledger.statements import Malformed, Statement, Wanted
from vgpu.model.allocation import Device, Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, Sharing, Source
from vgpu.model.resource_claims import ResourceClaimDevice


class ResourceClaimShare(msgspec.Struct, frozen=True, gc=False):
    """A part of a holding that is a ResourceClaim's, which may have more pods and containers."""

    resource_claim_device: ResourceClaimDevice
    memory_bytes: int | None
    cores_milli: int | None


class Holding(msgspec.Struct, frozen=True, gc=False):
    """One container on one device.

    Attributes:
        pod: by the UID that the node knows it by.
        container: "" where only the pod is known.
        share: the device by its name in the ledger, and all that the container has of it; of a
            holding on no known device: the name that was reported, "" if none was.
        scheme: the scheme of the claim.
        phase: assigned as soon as one source reports it.
        source: the source that decided that it is here.
        sources: all sources that do not contradict it, the most trusted first.
        since: when the phase began, unix seconds; None if no source reports.
        slots: how many shares of the device these are.
        alive: its container runs at this moment, and the kernel reports it.
        kind: when the container runs.
        order: of an init container or sidecar: its place among these, from 0, as they start.
        sized_by: the source of the share's memory; None if no source reports it for this device.
        resource_claim_shares: the parts that are of ResourceClaims.
        reused_ids: its (resource, device ID) that another container of the pod has, too; one of
            them has each at a time.
        sharing: how NVIDIA's own means share the device, as far as the kubelet knows; else None.
    """

    pod: PodRef
    container: str
    share: Share
    scheme: Scheme
    phase: Phase
    source: Source
    sources: tuple[Source, ...]
    since: float | None = None
    slots: int = 1
    alive: bool = False
    kind: ContainerKind = ContainerKind.APP
    order: int = 0
    sized_by: Source | None = None
    resource_claim_shares: tuple[ResourceClaimShare, ...] = ()
    reused_ids: DeviceIds = frozenset()
    sharing: Sharing | None = None


class HoldingSum(msgspec.Struct, frozen=True, gc=False):
    """The sum of a device's holdings; what no source reports counts as nothing."""

    memory_bytes: int = 0
    cores_milli: int = 0
    slots: int = 0


class DeviceEntry(msgspec.Struct, frozen=True, gc=False):
    """One device.

    Attributes:
        device: the device, with its capacity.
        holdings: its holdings, by pod and container.
        held: their sum, each pod at its peak (:func:`vgpu.model.allocation.effective`).
        disputed: statements that place a container here which more trusted ones place elsewhere.
        lost: the device was there and no longer answers.
    """

    device: Device
    holdings: tuple[Holding, ...] = ()
    held: HoldingSum = HoldingSum()
    disputed: tuple[Statement, ...] = ()
    lost: bool = False

    @property
    def free_memory_bytes(self) -> int | None:
        """The free memory, never below 0; None if the device's memory is unknown."""
        if self.device.memory_bytes is None:
            return None
        return max(0, self.device.memory_bytes - self.held.memory_bytes)

    @property
    def free_cores_milli(self) -> int:
        """The free cores, never below 0."""
        return max(0, self.device.cores_milli - self.held.cores_milli)


class Ledger(msgspec.Struct, frozen=True, gc=False):
    """All that is known of one node, however the sources disagree.

    Attributes:
        node: its name.
        devices: by index, then by name.
        unplaced: holdings whose device is unknown or not on the node.
        waiting: the requests of containers that hold nothing.
        unproven: statements about pods that no source shows to be alive or ended.
        leftovers: statements about ended or deleted pods, the normal ones included, and about init
            containers that have succeeded.
        conflicts: by kind, device and pod.
        of_other_schedulers: conflicts that are none where they are about a pod of another GPU
            scheduler, whose allocations no source has: processes without an allocation, and shares
            beside the device that its scheduler holds for it.
        malformed: what could not be read; each is a conflict too.
        read: the sources that this was made from.
        bounds: how much memory of a device a container can have.
    """

    node: str
    devices: tuple[DeviceEntry, ...]
    unplaced: tuple[Holding, ...] = ()
    waiting: tuple[Wanted, ...] = ()
    unproven: tuple[Statement, ...] = ()
    leftovers: tuple[Statement, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    of_other_schedulers: tuple[Conflict, ...] = ()
    malformed: tuple[Malformed, ...] = ()
    read: frozenset[Source] = frozenset()
    bounds: Bounds = UNREGISTERED

    @property
    def holdings(self) -> Iterator[Holding]:
        """All holdings, device by device, then those on no device."""
        for entry in self.devices:
            yield from entry.holdings
        yield from self.unplaced

    def of_pod(self, uid: str) -> tuple[Holding, ...]:
        """The holdings of a pod."""
        return tuple(holding for holding in self.holdings if holding.pod.uid == uid)
