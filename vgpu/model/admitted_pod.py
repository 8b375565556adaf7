"""The pods that hold shares of a node's devices, as our own plugin keeps them, with bindings.

Our own checkpoint has these values with these field names; see :mod:`vgpu.model.own_checkpoint`
before a rename. A checkpoint of a plugin without container kinds has app containers only: such a
pod holds the sum of all its containers, until its spec has been seen.
"""

import msgspec

from vgpu.model.allocation import Allocation, Share, effective_shares
from vgpu.model.names import ContainerKind, PodRef


class Binding(msgspec.Struct, frozen=True, gc=False):
    """One container's shares, with the name of the answer that the kubelet has for it.

    ``shares`` name devices by UUID, in the order in which the container sees them; ``at`` is
    unix seconds.
    """

    container: str
    name: str
    shares: tuple[Share, ...]
    at: float

    @property
    def devices(self) -> tuple[str, ...]:
        """The UUIDs of the devices."""
        return tuple(share.device for share in self.shares)


class AdmittedPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that holds devices of this node.

    Attributes:
        pod: the pod, by its UID on the node.
        allocations: what each of its containers may use, devices by UUID; decided once.
            Init containers and sidecars are in the order of the pod's spec. Most schedulers
            reserve nothing for an init container, which then has no allocation of its own.
        bindings: one for each container that the kubelet has asked for.
        since: when it was admitted, unix seconds.
        foreign: another plugin admitted it; its containers have no bindings of ours.
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
        """The shares of all its containers, whenever they run, and ``beside``."""
        own = (share for allocation in self.allocations for share in allocation.shares)
        return (*own, *self.beside)

    @property
    def held(self) -> tuple[Share, ...]:
        """The shares that it holds at its peak, and ``beside``."""
        running = self.allocations
        if self.initialized:
            running = tuple(own for own in running if own.kind is not ContainerKind.INIT)
        return (*effective_shares(running), *self.beside)

    def allocation(self, container: str) -> Allocation | None:
        """The allocation of one container; None if it has none of its own."""
        return next((own for own in self.allocations if own.container == container), None)

    def binding(self, container: str) -> Binding | None:
        """The binding of one container; None if the kubelet has not asked for it."""
        for binding in self.bindings:  # called often: a loop takes a third of the time of next()
            if binding.container == container:
                return binding
        return None
