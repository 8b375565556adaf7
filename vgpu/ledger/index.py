"""A ledger with its evidence, to be looked up by container. Pure."""

from collections.abc import Iterable

from vgpu.ledger.credibility import Placements
from vgpu.ledger.entries import Holding, Ledger
from vgpu.ledger.liveness import node_uid
from vgpu.ledger.owners import Place
from vgpu.ledger.registry import Registry
from vgpu.ledger.statements import Evidence, Statement
from vgpu.model.names import Source

StatementDevices = tuple[Statement, tuple[str, ...]]
"""A statement with the device of each of its shares, "" where it is not known."""


class LedgerIndex:
    """Built once for a ledger, then only read: most samples do not change it.

    Attributes:
        ledger: the ledger of the index.
        names: the node's pods, by UID.
        registry: the node's devices.
        placements: where the ledger has each container.
        holdings: UID -> container -> its first holding, whose scheme and phase are the container's.
        ended: (pod UID, container) of init containers that have ended, as others of the pod show.
        grants, own: what the checkpoints of the kubelet and of our own plugin report of the others.
        resource_claims: what the kubelet reports of ResourceClaims.
        allocated: the devices that they name, by container; the kubelet's come before ours.
    """

    def __init__(self, evidence: Evidence, ledger: Ledger) -> None:
        self.ledger = ledger
        self.names = evidence.names
        self.registry = Registry(evidence)
        self.placements = Placements(ledger)
        self.holdings: dict[str, dict[str, Holding]] = {}
        for holding in ledger.holdings:
            self.holdings.setdefault(holding.pod.uid, {}).setdefault(holding.container, holding)
        specified = set(map(node_uid, evidence.pods))
        self.ended = frozenset(
            (statement.pod.uid, statement.container)
            for statement in ledger.leftovers
            if statement.pod.uid in self.holdings and statement.pod.uid not in specified
        )
        self.grants = self._with_devices(Source.CHECKPOINT, evidence)
        self.resource_claims = [
            pair
            for source in (Source.DRA_STATE, Source.POD_RESOURCES)
            for pair in self._with_devices(source, evidence)
            if pair[0].resource_claim_devices
        ]
        self.own = self._with_devices(Source.OWN_CHECKPOINT, evidence)
        self.allocated = _by_place(self.own) | _by_place(self.grants)

    def _with_devices(self, source: Source, evidence: Evidence) -> list[StatementDevices]:
        uuid = self.registry.uuid
        return [
            (statement, tuple(uuid(share.device) for share in statement.shares))
            for statement in evidence.statements
            if statement.source is source
            and (statement.pod.uid, statement.container) not in self.ended
        ]


def _by_place(statements: Iterable[StatementDevices]) -> dict[Place, set[str]]:
    """The devices by container, without statements that name no device."""
    devices: dict[Place, set[str]] = {}
    for statement, named in statements:
        if any(named):
            devices.setdefault((statement.pod.uid, statement.container), set()).update(
                filter(None, named)
            )
    return devices
