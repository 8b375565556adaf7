"""The GPUs and pods of KAI Scheduler by the ledgers, and what is not known of its groups. Pure."""

from collections.abc import Iterable, Iterator

from vgpu.ledger import Ledger
from vgpu.model.folding import examples_text
from vgpu.model.objects import Pod, holds_devices
from vgpu.schemes.kai.groups import groups_of, is_reservation
from vgpu.schemes.kai.keys import KAI


def held_by_kai(ledgers: Iterable[Ledger]) -> frozenset[str]:
    """UIDs on the node of the pods whose shares of KAI's the ledgers have."""
    return frozenset(
        holding.pod.uid
        for ledger in ledgers
        for holding in ledger.holdings
        if holding.scheme is KAI
    )


def unchecked_note(pods: Iterable[Pod], *, lists_all: bool) -> Iterator[str]:
    """The note about tenants whose reservation pods may only be missing in what was read.

    ``lists_all`` is whether the pods of all namespaces were read. One reservation pod shows that
    its namespace was.
    """
    known = tuple(pods)
    if lists_all or any(map(is_reservation, known)):
        return
    tenants = sorted(
        pod.ref.key for pod in known if pod.node and holds_devices(pod) and groups_of(pod)
    )
    if tenants:
        yield (
            "whether the GPU groups of KAI Scheduler have reservation pods is not checked: the dump"
            " has neither the namespace of these pods nor one of them:"
            f" {examples_text(tenants)}"
        )
