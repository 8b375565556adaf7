"""A running pod's claim, said anew: which annotations must change, and is there room. Pure.

What is proposed is made of the scheme's own words, read back, and as little as it can be. The room
is counted by what the annotations of all pods claim, as schedulers do; what a repair would take
from a GPU counts at once, what it would give back only when it is done.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

from msgspec import structs

from reconciler.cluster_index import ClusterIndex
from vgpu.kube.objects import Pod
from vgpu.ledger import Evidence, HoldingSum, Ledger, merge
from vgpu.ledger.from_api import read_pod
from vgpu.ledger.registry import Registry
from vgpu.ledger.totals import excesses
from vgpu.ledger.virtual_gpus import of_share_pods, on_cards
from vgpu.model import Claim, Device, Phase, Share, Source
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.gpushare.annotations import (
    ALLOCATION,
    INDEX,
    GpushareAnnotations,
    write_by_container,
)
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.text import positions, subject_of

_Amount = tuple[str, int | None, int | None]
_Meaning = tuple[Mapping[str, tuple[Phase, Counter[_Amount]]], tuple[str, ...]]


class Rewriter:
    """Of one node. Remembers what it has proposed, so that proposals do not overbook together."""

    def __init__(self, cluster_index: ClusterIndex, ledger: Ledger) -> None:
        """The ledger tells the node's GPUs under all their names."""
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
        """By every name that means one of them only."""
        names = {name for entry in self._ledger.devices for name in entry.device.names}
        found = ((name, self.registry.find(name)) for name in sorted(names))
        return {name: self.registry.devices[card] for name, card in found if card}

    def name(self, device: str) -> str:
        """The device's name in the ledger, or the same name if nothing is known of it."""
        return self.registry.find(device) or device

    # ------------------------------------------------------------ words

    def edits(self, pod: Pod, codec: SchemeCodec, claim: Claim) -> dict[str, str]:
        """The annotations that change when the pod is to say this claim; times stay as they are.

        Empty if it cannot be said, would not be read as it is meant, or if the pod says it in a
        form that is read only.
        """
        try:
            told = _told(pod, codec, structs.replace(claim, assumed_at=None), self.devices)
        except ClaimError:
            return {}
        there = codec.claim_keys(pod)
        if there and told.keys().isdisjoint(there):
            return {}
        after = {key: text for key, text in told.items() if pod.annotations.get(key) != text}
        return after if self._says(pod, codec, after, claim) else {}

    def fewest_edits(self, pod: Pod, codec: SchemeCodec, claim: Claim) -> dict[str, str]:
        """The same, but only of annotations that are there, and only those that it takes."""
        there = codec.claim_keys(pod)
        after = {k: text for k, text in self.edits(pod, codec, claim).items() if k in there}
        for key in sorted(after):
            fewer = {other: text for other, text in after.items() if other != key}
            if self._says(pod, codec, fewer, claim):
                after = fewer
        return after if self._says(pod, codec, after, claim) else {}

    def _says(self, pod: Pod, codec: SchemeCodec, after: Mapping[str, str], meant: Claim) -> bool:
        """Whether the pod then says what is meant, and nothing more doubtful than before."""
        try:
            told = codec.claim(_with(pod, after))
        except ClaimError:
            return False
        if told is None or self._meaning(told) != self._meaning(meant):
            return False
        return set(told.remarks) <= set(_doubts(pod, codec))

    def _meaning(self, claim: Claim) -> _Meaning:
        return {
            each.container: (
                each.phase,
                Counter(
                    (self.name(share.device), share.memory_bytes, share.cores_milli)
                    for share in each.shares
                ),
            )
            for each in claim.allocations
        }, claim.unserved

    # ------------------------------------------------------------ room

    def excess(self, pod: Pod, after: Mapping[str, str]) -> str:
        """What would be booked too much with these edits, in words; "" if they fit.

        Then they count, whatever becomes of them in this cycle.
        """
        others = [each for each in self._pods if each.ref.uid != pod.ref.uid]
        mine = next((each for each in self._pods if each.ref.uid == pod.ref.uid), pod)
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
        """By device, what annotations alone claim; those who have ended hold nothing."""
        pods = tuple(pods)
        handles = {
            handle: device.uuid
            for device in self.registry.devices.values()
            for handle in device.handles
        }
        uuids = handles | of_share_pods(pods)
        said = [
            statement
            for pod in pods
            for statement in on_cards(
                pod, read_pod(pod, self._cluster_index.codecs).statements, uuids
            )
        ]
        books = merge(
            Evidence(
                node=self._ledger.node,
                devices=tuple(self.registry.devices.values()),
                statements=tuple(said),
                pods=pods,
                pods_complete=True,
                read=frozenset({Source.ANNOTATIONS}),
            )
        )
        return {entry.device.name: entry.held for entry in books.devices}


def _with(pod: Pod, after: Mapping[str, str]) -> Pod:
    return structs.replace(pod, annotations={**pod.annotations, **after})


def _doubts(pod: Pod, codec: SchemeCodec) -> tuple[str, ...]:
    try:
        claim = codec.claim(pod)
    except ClaimError:
        return ()
    return claim.remarks if claim else ()


def _more(after: HoldingSum, before: HoldingSum) -> HoldingSum:
    """By how much it rises; what falls counts as nothing."""
    pairs = zip(structs.astuple(after), structs.astuple(before), strict=True)
    return HoldingSum(*(max(0, new - old) for new, old in pairs))


def _sum(one: HoldingSum, other: HoldingSum) -> HoldingSum:
    return HoldingSum(*map(sum, zip(structs.astuple(one), structs.astuple(other), strict=True)))


def _told(
    pod: Pod, codec: SchemeCodec, claim: Claim, devices: Mapping[str, Device]
) -> dict[str, str]:
    """The claim in the form in which the pod says it; gpushare has two. Raises ClaimError."""
    apps = pod.apps
    if isinstance(codec, Gpushare):
        ascending = _ascending(claim, devices)
        told = codec.annotations(ascending, devices, apps)
        if ALLOCATION not in pod.annotations or ALLOCATION in told:
            return told
        by_container = _by_container(codec, ascending, devices, apps)
        return told | by_container if INDEX in pod.annotations else by_container
    others = [each.name for each in pod.containers if each.name not in apps]
    only_apps = all(each.container in apps for each in claim.allocations)
    return codec.annotations(claim, devices, apps if only_apps else (*others, *apps))


def _index(share: Share, devices: Mapping[str, Device]) -> int:
    device = devices.get(share.device)
    return -1 if device is None or device.index is None else device.index


def _ascending(claim: Claim, devices: Mapping[str, Device]) -> Claim:
    """With each container's GPUs in the order that gpushare keeps them in."""
    allocations = tuple(
        structs.replace(
            each, shares=tuple(sorted(each.shares, key=lambda share: _index(share, devices)))
        )
        for each in claim.allocations
    )
    return structs.replace(claim, allocations=allocations)


def _by_container(
    codec: Gpushare, claim: Claim, devices: Mapping[str, Device], apps: tuple[str, ...]
) -> dict[str, str]:
    """ACK's form, for one GPU too; what gpushare cannot share was refused. Raises ClaimError."""
    units = {
        each.container: {
            _index(share, devices): (share.memory_bytes or 0) // codec.memory_unit
            for share in each.shares
        }
        for each in claim.allocations
    }
    numbers = positions(apps)
    subject = subject_of(claim.pod)
    if not units.keys() <= numbers.keys():
        raise ClaimError(subject, ALLOCATION, ", ".join(units), "not the app containers")
    phase = claim.allocations[0].phase
    at = claim.assigned_at if phase is Phase.ASSIGNED else claim.assumed_at
    return write_by_container(GpushareAnnotations(units, phase, at), numbers, subject)
