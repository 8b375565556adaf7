"""What our own plugin has bound, as statements. Pure."""

from collections.abc import Iterator

from vgpu.ledger.statements import Statement
from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.allocation import Share
from vgpu.model.names import ContainerKind, Phase, Source
from vgpu.model.own_checkpoint import Checkpoint


def own_statements(kept: Checkpoint, where: str) -> list[Statement]:
    """A statement for each container in a checkpoint of this boot; ``where`` is its path.

    Devices that a pod was seen to use beyond that are not repeated: other sources report them.
    """
    return [
        Statement(
            source=Source.OWN_CHECKPOINT,
            pod=pod.pod,
            container=container,
            shares=shares,
            scheme=kept.scheme,
            phase=_phase(pod, kind),
            since=since or None,
            where=where,
            kind=kind,
        )
        for pod in kept.tenants
        for container, kind, shares, since in _held(pod)
    ]


def _phase(pod: AdmittedPod, kind: ContainerKind) -> Phase:
    succeeded = pod.initialized and kind is ContainerKind.INIT
    return Phase.RELEASED if succeeded else Phase.ASSIGNED


def _held(pod: AdmittedPod) -> Iterator[tuple[str, ContainerKind, tuple[Share, ...], float]]:
    """Container, kind, shares and unix seconds: as bound, else as the pod was admitted with.

    The containers are in the order in which they start. Only an init container may be bound without
    an allocation of its own: it uses what an app container will use.
    """
    allocated = {own.container for own in pod.allocations}
    for binding in pod.bindings:
        if binding.container not in allocated:
            yield binding.container, ContainerKind.INIT, binding.shares, binding.at
    for allocation in pod.allocations:
        bound = pod.binding(allocation.container)
        shares, since = (bound.shares, bound.at) if bound else (allocation.shares, pod.since)
        yield allocation.container, allocation.kind, shares, since
