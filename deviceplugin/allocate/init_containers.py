"""The shares that a pod's init containers hold and use, and the containers' start order. Pure."""

from collections.abc import Iterable

from msgspec.structs import replace

from deviceplugin.model import AdmittedPod
from deviceplugin.reasons import BindRefusal, BindRefused
from vgpu.model.allocation import Allocation, Request, Share
from vgpu.model.names import ContainerKind
from vgpu.model.objects import Container, Pod


def seen(tenant: AdmittedPod, pod: Pod, booted_at: float) -> AdmittedPod:
    """The tenant with the state of init containers from its pod's spec and status.

    After a boot of the node, at ``booted_at`` (unix seconds), init containers run again. A pod of
    another name is not the tenant's: anybody may write a static pod's UID.
    """
    if (pod.ref.namespace, pod.ref.name) != (tenant.pod.namespace, tenant.pod.name):
        return tenant
    return replace(
        tenant,
        allocations=in_start_order(tenant.allocations, pod),
        initialized=tenant.initialized or pod.initialized(booted_at),
    )


def in_start_order(allocations: Iterable[Allocation], pod: Pod) -> tuple[Allocation, ...]:
    """The allocations with container kinds; app containers come last, others as in the spec."""
    kinds = {container.name: container.kind for container in pod.containers}
    place = {name: at for at, name in enumerate(kinds)}
    known = [
        replace(allocation, kind=kinds.get(allocation.container, allocation.kind))
        for allocation in allocations
    ]
    first = [allocation for allocation in known if allocation.kind is not ContainerKind.APP]
    first.sort(key=lambda allocation: place.get(allocation.container, -1))
    return (*first, *(allocation for allocation in known if allocation.kind is ContainerKind.APP))


def inherited(
    tenant: AdmittedPod, container: Container, request: Request, pod: Pod
) -> tuple[Share, ...]:
    """The shares that an init container uses before the app containers. Raises BindRefused.

    The schedulers promise it nothing. It gets the devices of the first app container that was
    promised as many devices, with as much memory and as many cores of each as it asks for. It gets
    no sidecar's devices, which are in use at that time.
    """
    if container.kind is not ContainerKind.INIT:
        detail = f"no devices are reserved for this {container.kind} container"
        raise BindRefused(BindRefusal.NO_CLAIM, detail, pod.ref, container.name)
    for allocation in tenant.allocations:
        if (
            allocation.container in pod.apps
            and len(allocation.shares) == request.count
            and all(_covers(share, request) for share in allocation.shares)
        ):
            return tuple(
                Share(
                    share.device,
                    request.memory_bytes or share.memory_bytes,
                    request.cores_milli or share.cores_milli,
                )
                for share in allocation.shares
            )
    detail = "an init container may ask for no more than one of the containers after it"
    raise BindRefused(BindRefusal.NO_CLAIM, detail, pod.ref, container.name)


def _covers(share: Share, request: Request) -> bool:
    """Whether the share has the requested amounts; a percentage is of the whole device."""
    memory = share.memory_bytes is None or (request.memory_bytes or 0) <= share.memory_bytes
    return memory and request.cores_milli <= (share.cores_milli or 0)
