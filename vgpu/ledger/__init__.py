"""The ledger: who holds what on which device of a node, how we know, where sources disagree."""

from vgpu.ledger.conflicts import Conflict, ConflictKind
from vgpu.ledger.entries import DeviceEntry, Holding, HoldingSum, Ledger
from vgpu.ledger.merge import merge
from vgpu.ledger.statements import PRECEDENCE, Evidence, Malformed, Statement, Wanted

__all__ = [
    "PRECEDENCE",
    "Conflict",
    "ConflictKind",
    "DeviceEntry",
    "Evidence",
    "Holding",
    "HoldingSum",
    "Ledger",
    "Malformed",
    "Statement",
    "Wanted",
    "merge",
]
