"""What the init containers of a pod hold and use, and in which order containers start. Pure."""

from collections.abc import Iterable

from msgspec.structs import replace

from deviceplugin.model import AdmittedPod
from deviceplugin.reasons import BindRefusal, BindRefused
from vgpu.kube.objects import Container, Pod
from vgpu.model import Allocation, ContainerKind, Request, Share


def seen(tenant: AdmittedPod, pod: Pod, booted_at: float) -> AdmittedPod:
    """The tenant with what its pod's spec and status tell of init containers.

    After a boot of the node, at ``booted_at`` (unix seconds), init containers run again. A pod of
    another name only pretends to be the tenant's: anybody may write a static pod's UID.
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
    kinds = {one.name: one.kind for one in pod.containers}
    place = {name: at for at, name in enumerate(kinds)}
    known = [replace(each, kind=kinds.get(each.container, each.kind)) for each in allocations]
    first = [each for each in known if each.kind is not ContainerKind.APP]
    first.sort(key=lambda each: place.get(each.container, -1))
    return (*first, *(each for each in known if each.kind is ContainerKind.APP))


def inherited(
    tenant: AdmittedPod, container: Container, request: Request, pod: Pod
) -> tuple[Share, ...]:
    """What an init container uses before the pod's own containers do. Raises BindRefused.

    The schedulers promise it nothing. It gets the devices of the first app container that was
    promised as many, with as much memory and as many cores of each as it asks for. A sidecar's are
    in use meanwhile.
    """
    if container.kind is not ContainerKind.INIT:
        detail = f"no devices are reserved for this {container.kind} container"
        raise BindRefused(BindRefusal.NO_CLAIM, detail, pod.ref, container.name)
    for each in tenant.allocations:
        if (
            each.container in pod.apps
            and len(each.shares) == request.count
            and all(_covers(share, request) for share in each.shares)
        ):
            return tuple(
                Share(
                    share.device,
                    request.memory_bytes or share.memory_bytes,
                    request.cores_milli or share.cores_milli,
                )
                for share in each.shares
            )
    detail = "an init container may ask for no more than one of the containers after it"
    raise BindRefused(BindRefusal.NO_CLAIM, detail, pod.ref, container.name)


def _covers(share: Share, request: Request) -> bool:
    """Whether the share has as much as is asked for; a percentage is of all that there is."""
    memory = share.memory_bytes is None or (request.memory_bytes or 0) <= share.memory_bytes
    return memory and request.cores_milli <= (share.cores_milli or 0)
