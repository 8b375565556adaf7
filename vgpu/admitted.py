"""Who holds shares of a node's devices, as our own plugin keeps it: tenants with their bindings.

These values are in our own checkpoint as they stand here; see :mod:`vgpu.own_checkpoint` before a
field is renamed. A checkpoint of a plugin that knew no kinds has app containers only: such a
tenant holds the sum of all its containers, until its pod's spec has been seen.
"""

import msgspec

from vgpu.effective import effective_shares
from vgpu.model import Allocation, ContainerKind, PodRef, Share


class Binding(msgspec.Struct, frozen=True, gc=False):
    """One container's shares, under the name of the answer that the kubelet has for it.

    ``shares`` name devices by UUID, in the order in which the container sees them; ``at`` is
    unix seconds.
    """

    container: str
    name: str
    shares: tuple[Share, ...]
    at: float

    @property
    def devices(self) -> tuple[str, ...]:
        """UUIDs."""
        return tuple(share.device for share in self.shares)


class AdmittedPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that holds devices of this node.

    Attributes:
        pod: by the UID that the node knows it by.
        allocations: what each of its containers may use, devices by UUID; decided once, for all.
            Init containers and sidecars are in the order of the pod's spec. Most schedulers
            promise nothing to an init container: it has no allocation of its own then.
        bindings: of the containers that the kubelet has asked for, each container once.
        since: when it was admitted, unix seconds.
        foreign: it was admitted by another plugin; its containers have no bindings of ours.
        beside: what it was seen to use of further devices when the plugin started.
        initialized: its init containers have succeeded since the node started, and hold nothing.
    """

    pod: PodRef
    allocations: tuple[Allocation, ...]
    bindings: tuple[Binding, ...] = ()
    since: float = 0.0
    foreign: bool = False
    beside: tuple[Share, ...] = ()
    initialized: bool = False

    @property
    def shares(self) -> tuple[Share, ...]:
        """Those of each of its containers, whenever it runs, and what it uses beside."""
        own = (share for each in self.allocations for share in each.shares)
        return (*own, *self.beside)

    @property
    def held(self) -> tuple[Share, ...]:
        """What it holds: at its peak, and what it uses beside."""
        running = self.allocations
        if self.initialized:
            running = tuple(each for each in running if each.kind is not ContainerKind.INIT)
        return (*effective_shares(running), *self.beside)

    def allocation(self, container: str) -> Allocation | None:
        """Of one container; None if it has none of its own."""
        return next((each for each in self.allocations if each.container == container), None)

    def binding(self, container: str) -> Binding | None:
        """Of one container, as far as the kubelet has asked."""
        for each in self.bindings:  # asked often: a loop takes a third of what next() does
            if each.container == container:
                return each
        return None
