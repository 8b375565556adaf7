"""What queues of a cohort have borrowed and lent, as sentences; pure."""

from vgpu.model.declared_quota import QuotaResource
from vgpu.quota.tree import QuotaNode, QuotaTree


def borrowing_text(node: QuotaNode, key: QuotaResource) -> str:
    """How much of its use a queue has borrowed, and from which cohort."""
    borrowed = node.borrowed.get(key, 0)
    cohort = "its cohort" if node.parent is None else f"cohort {node.parent.name}"
    return f"{_own_text(node, key)}; {borrowed} {_verb(borrowed)} borrowed from {cohort}"


def lending_text(tree: QuotaTree, node: QuotaNode, key: QuotaResource) -> str:
    """How much of its quota others certainly have; "" if they may have nothing."""
    lent = tree.lent(node.name, key) or 0
    return f"{_own_text(node, key)}; at least {lent} {_verb(lent)} lent to others" if lent else ""


def _own_text(node: QuotaNode, key: QuotaResource) -> str:
    declared = node.declared.get(key)
    own = declared.nominal if declared is not None else 0
    return f"{node.name.text} uses {node.used.get(key, 0)} of its own {own} {key.text}"


def _verb(amount: int) -> str:
    return "is" if amount == 1 else "are"
