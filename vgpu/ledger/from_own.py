"""What our own plugin has bound, as statements. Pure."""

from collections.abc import Iterator

from vgpu.admitted import AdmittedPod
from vgpu.ledger.statements import Statement
from vgpu.model import ContainerKind, Phase, Share, Source
from vgpu.own_checkpoint import Checkpoint


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
            phase=_phase(tenant, kind),
            since=since or None,
            where=where,
            kind=kind,
        )
        for tenant in kept.tenants
        for container, kind, shares, since in _held(tenant)
    ]


def _phase(tenant: AdmittedPod, kind: ContainerKind) -> Phase:
    succeeded = tenant.initialized and kind is ContainerKind.INIT
    return Phase.RELEASED if succeeded else Phase.ASSIGNED


def _held(tenant: AdmittedPod) -> Iterator[tuple[str, ContainerKind, tuple[Share, ...], float]]:
    """Container, kind, shares, and since when: as bound, else as the pod was admitted with.

    In the order in which they start. Only an init container may be bound without an allocation of
    its own: it uses what an app container will use.
    """
    allocated = {allocation.container for allocation in tenant.allocations}
    for binding in tenant.bindings:
        if binding.container not in allocated:
            yield binding.container, ContainerKind.INIT, binding.shares, binding.at
    for each in tenant.allocations:
        bound = tenant.binding(each.container)
        shares, since = (bound.shares, bound.at) if bound else (each.shares, tenant.since)
        yield each.container, each.kind, shares, since
