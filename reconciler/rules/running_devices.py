"""The devices of running containers, by sources that no tenant can write, and their claims. Pure.

:class:`RunningDevices` has the devices that a node's containers really use. :class:`Rewriter` makes
the annotations that name them, and checks whether there is room for them. The scheme's codec writes
the proposed annotations; they are read back, and as few as possible. The room is the capacity
without the claims in all pods' annotations, as schedulers count; a share that a repair adds to a
GPU counts at once, a share that it removes only when the repair is done.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Final

from msgspec import structs

from reconciler.cluster_index import ClusterIndex
from vgpu.ledger import Evidence, Holding, HoldingSum, Ledger, merge
from vgpu.ledger.from_api import read_pod
from vgpu.ledger.liveness import node_uid
from vgpu.ledger.registry import Registry
from vgpu.ledger.totals import excesses
from vgpu.ledger.virtual_gpus import of_share_pods, on_gpus
from vgpu.model.allocation import Allocation, Claim, Device, mig_slot
from vgpu.model.names import Phase, Source
from vgpu.model.objects import ContainerState, Pod
from vgpu.schemes.codec import ClaimError, SchemeCodec

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


_Amount = tuple[str, int | None, int | None]
_Meaning = tuple[Mapping[str, tuple[Phase, Counter[_Amount]]], tuple[str, ...]]


# ---------------------------------------------------------------- new annotations


class Rewriter:
    """Rewrites claims of one node. Keeps its proposals, so that together they do not overbook."""

    def __init__(self, cluster_index: ClusterIndex, ledger: Ledger) -> None:
        """``ledger`` has the node's GPUs with all their names."""
        self._cluster_index = cluster_index
        self._ledger = ledger
        self.registry = Registry(
            Evidence(
                node=ledger.node,
                devices=tuple(entry.device for entry in ledger.devices),
                devices_complete=False,
            )
        )
        self._taken: dict[str, HoldingSum] = {}

    @cached_property
    def devices(self) -> Mapping[str, Device]:
        """The devices, by every name that only one of them has."""
        names = {name for entry in self._ledger.devices for name in entry.device.names}
        named = ((name, self.registry.find(name)) for name in sorted(names))
        return {
            name: self.registry.devices[device_name] for name, device_name in named if device_name
        }

    def name(self, device: str) -> str:
        """The device's name in the ledger, or the same name if the device is unknown."""
        return self.registry.find(device) or device

    # ------------------------------------------------------------ annotations

    def edits(self, pod: Pod, codec: SchemeCodec, claim: Claim) -> dict[str, str]:
        """The annotations that change for the pod to have this claim; times stay as they are.

        Empty if the scheme cannot write the claim, if it would be read as another claim, or if the
        pod has it in a form that is read only.
        """
        try:
            rewritten = codec.rewritten(pod, structs.replace(claim, assumed_at=None), self.devices)
        except ClaimError:
            return {}
        claim_keys = codec.claim_keys(pod)
        if claim_keys and rewritten.keys().isdisjoint(claim_keys):
            return {}
        after = {key: text for key, text in rewritten.items() if pod.annotations.get(key) != text}
        return after if self._says(pod, codec, after, claim) else {}

    def fewest_edits(self, pod: Pod, codec: SchemeCodec, claim: Claim) -> dict[str, str]:
        """The same, but only for existing annotations, and as few as possible."""
        claim_keys = codec.claim_keys(pod)
        after = {k: text for k, text in self.edits(pod, codec, claim).items() if k in claim_keys}
        for key in sorted(after):
            fewer = {other: text for other, text in after.items() if other != key}
            if self._says(pod, codec, fewer, claim):
                after = fewer
        return after if self._says(pod, codec, after, claim) else {}

    def _says(self, pod: Pod, codec: SchemeCodec, after: Mapping[str, str], meant: Claim) -> bool:
        """Whether the pod then has the meant claim, and no more remarks than before."""
        try:
            claim = codec.claim(_with(pod, after))
        except ClaimError:
            return False
        if claim is None or self._meaning(claim) != self._meaning(meant):
            return False
        return set(claim.remarks) <= set(_doubts(pod, codec))

    def _meaning(self, claim: Claim) -> _Meaning:
        return {
            allocation.container: (
                allocation.phase,
                Counter(
                    (self.name(share.device), share.memory_bytes, share.cores_milli)
                    for share in allocation.shares
                ),
            )
            for allocation in claim.allocations
        }, claim.unserved

    # ------------------------------------------------------------ room

    def excess(self, pod: Pod, after: Mapping[str, str]) -> str:
        """The amounts that these edits would exceed, in words; "" if the edits fit.

        Edits that fit count from then on, even if they are not applied in this cycle.
        """
        others = [other for other in self._pods if other.ref.uid != pod.ref.uid]
        mine = next((other for other in self._pods if other.ref.uid == pod.ref.uid), pod)
        booked = self._booked((*others, _with(mine, after)))
        taken = dict(self._taken)
        for name, total in booked.items():
            more = _more(total, self._before[name])
            if any(structs.astuple(more)):
                taken[name] = _sum(taken.get(name, HoldingSum()), more)
                whole = _sum(self._before[name], taken[name])
                too_much = "; ".join(excesses(whole, self.registry.devices[name]))
                if too_much:
                    return f"annotations would claim {too_much} on {name}"
        self._taken = taken
        return ""

    @cached_property
    def _pods(self) -> tuple[Pod, ...]:
        return self._cluster_index.at_home.get(self._ledger.node, ())

    @cached_property
    def _before(self) -> Mapping[str, HoldingSum]:
        return self._booked(self._pods)

    def _booked(self, pods: Iterable[Pod]) -> Mapping[str, HoldingSum]:
        """The sum of the annotations' claims, by device; pods that have ended hold nothing."""
        pods = tuple(pods)
        handles = {
            handle: device.uuid
            for device in self.registry.devices.values()
            for handle in device.handles
        }
        uuids = handles | of_share_pods(pods)
        statements = [
            statement
            for pod in pods
            for statement in on_gpus(
                pod, read_pod(pod, self._cluster_index.codecs).statements, uuids
            )
        ]
        ledger = merge(
            Evidence(
                node=self._ledger.node,
                devices=tuple(self.registry.devices.values()),
                statements=tuple(statements),
                pods=pods,
                pods_complete=True,
                read=frozenset({Source.ANNOTATIONS}),
            )
        )
        return {entry.device.name: entry.held for entry in ledger.devices}


def _with(pod: Pod, after: Mapping[str, str]) -> Pod:
    return structs.replace(pod, annotations={**pod.annotations, **after})


def _doubts(pod: Pod, codec: SchemeCodec) -> tuple[str, ...]:
    try:
        claim = codec.claim(pod)
    except ClaimError:
        return ()
    return claim.remarks if claim else ()


def _more(after: HoldingSum, before: HoldingSum) -> HoldingSum:
    """The increase of each amount; a decrease counts as 0."""
    pairs = zip(structs.astuple(after), structs.astuple(before), strict=True)
    return HoldingSum(*(max(0, new - old) for new, old in pairs))


def _sum(first: HoldingSum, second: HoldingSum) -> HoldingSum:
    return HoldingSum(*map(sum, zip(structs.astuple(first), structs.astuple(second), strict=True)))
