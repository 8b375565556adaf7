"""What our own plugin has bound, as statements. Pure."""

from collections.abc import Iterator

from vgpu.ledger.statements import Statement
from vgpu.model import Share, Source
from vgpu.own_checkpoint import Checkpoint
from vgpu.tenants import Tenant


def own_statements(kept: Checkpoint, where: str) -> list[Statement]:
    """One a container, of a checkpoint of this boot; ``where`` is its path.

    What a tenant was seen to use beside is other sources' word, and not repeated.
    """
    return [
        Statement(
            source=Source.OWN_CHECKPOINT,
            pod=tenant.pod,
            container=container,
            shares=shares,
            scheme=kept.scheme,
            since=since or None,
            where=where,
        )
        for tenant in kept.tenants
        for container, shares, since in _held(tenant)
    ]


def _held(tenant: Tenant) -> Iterator[tuple[str, tuple[Share, ...], float]]:
    """Container, shares, and since when: as bound, else as the pod was admitted with."""
    bound = {binding.container for binding in tenant.bindings}
    for binding in tenant.bindings:
        yield binding.container, binding.shares, binding.at
    for allocation in tenant.allocations:
        if allocation.container not in bound:
            yield allocation.container, allocation.shares, tenant.since
