"""The desired state of the API server's objects, from the binder's last look. Pure."""

from collections.abc import Collection, Mapping

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_state import BinderState, Key
from deviceplugin.apiserver.desired_state import DesiredState
from vgpu.model.objects import ContainerState, Node, Pod


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

    They are refused, perhaps only for now, or another plugin has answered. A refused container
    whose pod the API server does not show yet is not included.
    """
    refused = (key for key, error in state.refusals.items() if error.pod is not None)
    others = (
        (assignment.pod_uid, assignment.container)
        for assignment in state.all_assignments()
        if not assignment.name
    )
    return frozenset((*refused, *others))


def _serves(
    resource: str, pod: Pod, allocation_state: AllocationState, answered: Collection[Key]
) -> bool:
    """Whether the kubelet has an answer for every container, and so will not ask again."""
    uid = pod.kubelet_uid
    tenant = allocation_state.tenants.get(uid)
    return all(
        (uid, container.name) in answered
        or (tenant is not None and tenant.binding(container.name) is not None)
        or _has_run(pod, container.name)
        for container in pod.containers
        if container.limits.get(resource, 0)
    )


def _has_run(pod: Pod, container: str) -> bool:
    return any(
        status.name == container and status.state is not ContainerState.WAITING
        for status in pod.statuses
    )
