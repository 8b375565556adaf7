"""What is to be written to the API server, from what the binder has last found. Pure."""

from collections.abc import Collection, Mapping

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_state import BinderState, Key
from deviceplugin.apiserver.desired_state import DesiredState
from vgpu.kube.objects import ContainerState, Node, Pod


def desired_state_of(
    resource: str, state: BinderState, pods: Mapping[str, Pod], node: Node | None
) -> DesiredState:
    """The desired state; ``resource`` is the binding one, ``pods`` and ``node`` as they are now."""
    refused = frozenset(uid for (uid, _), error in state.refusals.items() if error.final)
    allocation_state = state.allocation_state
    answered = _answered(state)
    requesting = {uid for uid, _ in answered} | allocation_state.tenants.keys()
    served = frozenset(
        uid
        for uid in requesting & pods.keys()
        if _serves(resource, pods[uid], allocation_state, answered)
    )
    return DesiredState(
        devices=allocation_state.devices,
        named=allocation_state.named,
        tenants=allocation_state.tenants,
        pods=pods,
        node=node,
        served=served | refused,
        refused=refused,
    )


def _answered(state: BinderState) -> frozenset[Key]:
    """Containers that the kubelet has an answer for and that are not bound by us.

    They are refused, be it for now, or somebody else has answered. Who is refused while the API
    server does not show it is not looked at yet.
    """
    refused = (key for key, error in state.refusals.items() if error.pod is not None)
    theirs = ((one.pod_uid, one.container) for one in state.all_assignments() if not one.name)
    return frozenset((*refused, *theirs))


def _serves(
    resource: str, pod: Pod, allocation_state: AllocationState, answered: Collection[Key]
) -> bool:
    """Whether the kubelet will not ask for it again: it has an answer for every container."""
    uid = pod.kubelet_uid
    tenant = allocation_state.tenants.get(uid)
    return all(
        (uid, one.name) in answered
        or (tenant is not None and tenant.binding(one.name) is not None)
        or _has_run(pod, one.name)
        for one in pod.containers
        if one.limits.get(resource, 0)
    )


def _has_run(pod: Pod, container: str) -> bool:
    return any(
        one.name == container and one.state is not ContainerState.WAITING for one in pod.statuses
    )
