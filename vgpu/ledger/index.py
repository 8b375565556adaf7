"""A ledger with its evidence, to be looked up by container. Pure.

A tenant can write its region and gpu-manager's limit file. What the kubelet or our own plugin
allocated is known where their checkpoints can be read; else the ledger has what the driver,
pod-resources and the annotations report.
"""

from collections.abc import Iterable

from vgpu.ledger.entries import Holding, Ledger
from vgpu.ledger.liveness import node_uid
from vgpu.ledger.registry import Registry
from vgpu.ledger.statements import LIMITS, PARTIAL, Evidence, Statement
from vgpu.ledger.usage import Place
from vgpu.model.names import Source

StatementDevices = tuple[Statement, tuple[str, ...]]
"""A statement with the device of each of its shares, "" where it is not known."""


class LedgerIndex:
    """Built once for a ledger, then only read: most samples do not change it.

    Attributes:
        ledger: the ledger of the index.
        registry: the node's devices.
        holdings: UID -> container -> device -> holding.
        ended: (pod UID, container) of init containers that have ended, as others of the pod show.
        grants, own: what the checkpoints of the kubelet and of our own plugin report of the others.
        resource_claims: what the kubelet reports of ResourceClaims.
        allocated: the devices in these checkpoints, by container; the kubelet's come before ours.
    """

    def __init__(self, evidence: Evidence, ledger: Ledger) -> None:
        self.ledger = ledger
        self.registry = Registry(evidence)
        self.holdings: dict[str, dict[str, dict[str, Holding]]] = {}
        for holding in ledger.holdings:
            of_pod = self.holdings.setdefault(holding.pod.uid, {})
            of_pod.setdefault(holding.container, {}).setdefault(holding.share.device, holding)
        self._elsewhere: dict[Place, list[Statement]] = {}
        for entry in ledger.devices:
            for statement in entry.disputed:
                self._elsewhere.setdefault(_place(statement), []).append(statement)
        specified = set(map(node_uid, evidence.pods))
        self.ended = frozenset(
            _place(statement)
            for statement in ledger.leftovers
            if statement.pod.uid in self.holdings and statement.pod.uid not in specified
        )
        self.grants = self._with_devices(Source.CHECKPOINT, evidence)
        self.own = self._with_devices(Source.OWN_CHECKPOINT, evidence)
        self.resource_claims = [
            pair
            for source in (Source.DRA_STATE, Source.POD_RESOURCES)
            for pair in self._with_devices(source, evidence)
            if pair[0].resource_claim_devices
        ]
        self.allocated = _by_place(self.own) | _by_place(self.grants)

    def _with_devices(self, source: Source, evidence: Evidence) -> list[StatementDevices]:
        uuid = self.registry.uuid
        return [
            (statement, tuple(uuid(share.device) for share in statement.shares))
            for statement in evidence.statements
            if statement.source is source and _place(statement) not in self.ended
        ]

    def contradiction(self, place: Place, device: str) -> str:
        """Which sources report the container on other devices only, and on which; "" if none."""
        of_pod = self.holdings.get(place[0], {})
        holdings = of_pod.get(place[1], {})
        here = holdings.get(device)
        if here is None:  # more trusted sources have decided against this device
            return _placed(at for at in holdings.values() if at.source not in LIMITS)
        if not LIMITS.issuperset(here.sources):
            return ""
        for statement in self._elsewhere.get(place, ()):
            if statement.source not in PARTIAL:
                devices = ", ".join(share.device for share in statement.shares)
                return f"{statement.source} reports {devices}"
        if of_pod.keys() != {"", place[1]}:
            return ""
        # Processes of an unnamed container, which is this one: the pod has no other.
        return _placed(at for at in of_pod[""].values() if at.sources == (Source.PROCESS,))


def _place(statement: Statement) -> Place:
    return statement.pod.uid, statement.container


def _by_place(statements: Iterable[StatementDevices]) -> dict[Place, set[str]]:
    """The devices by container, without statements that name no device."""
    by_place: dict[Place, set[str]] = {}
    for statement, devices in statements:
        if any(devices):
            by_place.setdefault(_place(statement), set()).update(filter(None, devices))
    return by_place


def _placed(holdings: Iterable[Holding]) -> str:
    reports = (f"{at.source} reports {at.share.device}" for at in holdings if at.share.device)
    return "; ".join(reports)
