"""From assignments and their pods to bindings and injections.

Pure: applies the rules of :mod:`deviceplugin.allocate.allocation_state` in order to the claim that
the adapter reads from the pod.
"""

from collections.abc import Callable, Collection, Mapping

import msgspec

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_state import BinderState, Key
from deviceplugin.model import Binding, ContainerDevices
from deviceplugin.reasons import BindRefusal, BindRefused
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.model.allocation import Allocation
from vgpu.model.names import Phase
from vgpu.model.objects import Pod, holds_devices
from vgpu.schemes.codec import ClaimError, ContainerEdits


class Injection(msgspec.Struct, frozen=True):
    """All edits of a container, and the part of its environment that may come late."""

    edits: ContainerEdits
    late_env: Mapping[str, str]


class BindingDecisions(msgspec.Struct, frozen=True):
    """The result of one look at the assignments.

    Attributes:
        allocation_state: with all bindings that are possible.
        bound: assignments whose injections are to be written now, with their pods.
        refusals: why other containers are not bound.
    """

    allocation_state: AllocationState
    bound: tuple[tuple[ContainerDevices, Pod], ...]
    refusals: Mapping[Key, BindRefused]


def bind_all(
    adapter: SchemeAdapter,
    node: str,
    state: BinderState,
    find: Callable[[ContainerDevices], Pod | None],
    *,
    recent: Collection[str],
    now: float,
) -> BindingDecisions:
    """Bind the assignments that are not ready yet. A refusal stops no other binding.

    ``recent`` are the names of answers of this moment: their pods come last, so that they do not
    take the room of pods that were there before a restart.
    """
    allocation_state, bound = state.allocation_state, []
    refusals: dict[Key, BindRefused] = {}
    for assignment in sorted(state.all_assignments(), key=lambda entry: entry.name in recent):
        if state.is_ready(assignment):
            continue
        pod = find(assignment)
        key = (assignment.pod_uid, assignment.container)
        if pod is not None and not holds_devices(pod):
            continue  # the pod has ended, and the kubelet has not forgotten it yet
        if pod is None:
            detail = f"the API server shows no pod {assignment.pod_uid}"
            refusals[key] = BindRefused(BindRefusal.NOT_SEEN, detail)
            continue
        try:
            allocation_state = bind(adapter, node, allocation_state, assignment, pod, now=now)
            bound.append((assignment, pod))
        except BindRefused as error:
            before = state.refusals.get(key)
            # A failed claim is our own mark for the refusal before it.
            marked = before and before.final and error.why is BindRefusal.CLAIM_FAILED
            refusals[key] = before if before and marked else error
    return BindingDecisions(allocation_state, tuple(bound), refusals)


def bind(
    adapter: SchemeAdapter,
    node: str,
    allocation_state: AllocationState,
    assignment: ContainerDevices,
    pod: Pod,
    *,
    now: float,
) -> AllocationState:
    """The allocation state with the assignment's container bound; admits its pod if necessary.

    Unchanged if the container is bound so already. Raises BindRefused.
    """
    if assignment.pod_uid in allocation_state.unbooked:
        detail = "the pod holds devices that the node does not have"
        raise BindRefused(BindRefusal.NO_ROOM, detail, pod.ref, assignment.container)
    if allocation_state.binding_of(assignment):
        return allocation_state
    try:
        requests = adapter.codec.requests(pod)
        if assignment.pod_uid not in allocation_state.admitted_pods:
            claimed = adapter.claim(
                pod, node, allocation_state.choosable, allocation_state.capacity
            )
            allocation_state = allocation_state.admitted(pod, claimed, now)
    except ClaimError as error:
        raise BindRefused(
            BindRefusal.MALFORMED, str(error), pod.ref, assignment.container
        ) from error
    return allocation_state.bound(assignment, pod, requests, now)


def injection(
    adapter: SchemeAdapter, allocation_state: AllocationState, pod: Pod, binding: Binding
) -> Injection:
    """The container's injection. Raises BindRefused MALFORMED, UNKNOWN_DEVICE."""
    for share in binding.shares:
        if share.device not in allocation_state.named:  # the device may come back
            detail = f"its device {share.device} is lost"
            raise BindRefused(BindRefusal.UNKNOWN_DEVICE, detail, pod.ref, binding.container)
    allocation = Allocation(binding.container, binding.shares, Phase.ASSIGNED)
    try:
        edits = adapter.edits(pod, allocation, binding.name, allocation_state.named)
    except ClaimError as error:
        raise BindRefused(BindRefusal.MALFORMED, str(error), pod.ref, binding.container) from error
    return Injection(edits, adapter.late_env(edits.env))
