"""The devices of a node's running containers, by sources that no tenant can write."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import structs

from vgpu.ledger import Holding, Ledger
from vgpu.ledger.liveness import node_uid
from vgpu.model.allocation import Allocation
from vgpu.model.names import Source
from vgpu.model.objects import ContainerState, Pod
from vgpu.schemes.mig import mig_slot

TRUSTED: Final = frozenset(
    {
        Source.PROCESS,
        Source.DRA_STATE,
        Source.POD_RESOURCES,
        Source.CHECKPOINT,
        Source.OWN_CHECKPOINT,
    }
)
"""Better sources than annotations; unlike a shim's files, tenants cannot write them."""


class RunningDevices:
    """The devices of one node's containers, by the node's ledger."""

    def __init__(self, ledger: Ledger, name: Callable[[str], str]) -> None:
        """``name`` returns a device's name in the ledger for any of its names."""
        self._name = name
        self._parts = {entry.device.name for entry in ledger.devices if entry.device.parent}
        self._known = {entry.device.name for entry in ledger.devices}
        self._holdings: dict[tuple[str, str], list[Holding]] = {}
        for holding in ledger.holdings:
            place = holding.pod.uid, holding.container
            self._holdings.setdefault(place, []).append(holding)

    def of(self, pod: Pod, container: str) -> tuple[Holding, ...]:
        """A running container's holdings, if the device of each is proven.

        ``container`` is "" for the only container, or for the pod as a whole.
        """
        name = container or (pod.containers[0].name if len(pod.containers) == 1 else "")
        holdings = tuple(self._holdings.get((node_uid(pod), name), ()))
        proven = all(
            holding.source in TRUSTED and holding.share.device in self._known
            for holding in holdings
        )
        runs = is_running(pod, name) or any(holding.alive for holding in holdings)
        return holdings if proven and runs else ()

    def agrees(self, allocation: Allocation, holdings: Iterable[Holding]) -> bool:
        """Whether the allocation names exactly the devices that the container has."""
        return self._claimed(allocation) == _held_devices(holdings)

    def moved(self, allocation: Allocation, holdings: Iterable[Holding]) -> Allocation | None:
        """The allocation with its shares' actual devices; None if the device of a share is unknown.

        Shares of devices that the container really has keep their device.
        """
        claimed, actual = self._claimed(allocation), _held_devices(holdings)
        away = claimed - actual
        free = sorted((actual - claimed).elements())
        sizes = {(share.memory_bytes, share.cores_milli) for share in allocation.shares}
        alike = len(sizes) == 1 or (len(free) == 1 and max(claimed.values()) == 1)
        parts = not self._parts.isdisjoint(actual) or any(
            mig_slot(share.device) for share in allocation.shares
        )
        if claimed.total() != actual.total() or not alike or parts:
            return None
        shares = []
        for share in allocation.shares:
            name = self._name(share.device)
            if away[name]:
                away[name] -= 1
                name = free.pop(0)
            shares.append(structs.replace(share, device=name))
        return structs.replace(allocation, shares=tuple(shares))

    def _claimed(self, allocation: Allocation) -> Counter[str]:
        return Counter(self._name(share.device) for share in allocation.shares)


def _held_devices(holdings: Iterable[Holding]) -> Counter[str]:
    devices: Counter[str] = Counter()
    for holding in holdings:
        devices[holding.share.device] += holding.slots
    return devices


def is_running(pod: Pod, container: str) -> bool:
    """Whether the API server reports the container as running; "" is any container of the pod."""
    return any(
        status.state is ContainerState.RUNNING and container in ("", status.name)
        for status in pod.statuses
    )
