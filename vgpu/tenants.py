"""Who holds shares of a node's devices, as our own plugin keeps it: tenants with their bindings.

These values are in our own checkpoint as they stand here; see :mod:`vgpu.own_checkpoint` before a
field is renamed.
"""

import msgspec

from vgpu.model import Allocation, PodRef, Share


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


class Tenant(msgspec.Struct, frozen=True, gc=False):
    """A pod that holds devices of this node.

    Attributes:
        pod: by the UID that the node knows it by.
        allocations: what each of its containers may use, devices by UUID; decided once, for all.
            Init containers that end before the others start have none of their own.
        bindings: of the containers that the kubelet has asked for, each container once.
        since: when it was admitted, unix seconds.
        foreign: it was admitted by another plugin; its containers have no bindings of ours.
        beside: what it was seen to use of further devices when the plugin started.
    """

    pod: PodRef
    allocations: tuple[Allocation, ...]
    bindings: tuple[Binding, ...] = ()
    since: float = 0.0
    foreign: bool = False
    beside: tuple[Share, ...] = ()

    @property
    def shares(self) -> tuple[Share, ...]:
        """All that it holds: of all its containers together, and what it uses beside."""
        own = (share for each in self.allocations for share in each.shares)
        return (*own, *self.beside)

    def allocation(self, container: str) -> Allocation | None:
        """Of one container; None if it has none of its own."""
        return next((each for each in self.allocations if each.container == container), None)

    def binding(self, container: str) -> Binding | None:
        """Of one container, as far as the kubelet has asked."""
        for each in self.bindings:  # asked often: a loop takes a third of what next() does
            if each.container == container:
                return each
        return None
