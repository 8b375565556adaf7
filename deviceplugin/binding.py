"""From assignments and their pods to bindings, and to what each container is given.

Pure: the rules of :mod:`deviceplugin.desk`, asked in order, over what the role reads of the pod.
"""

from collections.abc import Callable, Collection, Mapping

import msgspec

from deviceplugin.desk import Desk
from deviceplugin.gate import Key, State
from deviceplugin.model import Assignment, Binding
from deviceplugin.reasons import Refused, Why
from deviceplugin.role import Role
from vgpu.kube import Pod, holds_devices
from vgpu.model import Allocation, Phase
from vgpu.schemes.language import ClaimError, Edits


class Gift(msgspec.Struct, frozen=True):
    """What a container is given: all of it, and of its environment what may come late."""

    edits: Edits
    late_env: Mapping[str, str]


class Round(msgspec.Struct, frozen=True):
    """What one look at the assignments comes to.

    Attributes:
        desk: with all bound that can be.
        bound: those whose containers are now to be given their things, with their pods.
        refusals: why others are not bound.
    """

    desk: Desk
    bound: tuple[tuple[Assignment, Pod], ...]
    refusals: Mapping[Key, Refused]


def bind_all(
    role: Role,
    node: str,
    state: State,
    find: Callable[[Assignment], Pod | None],
    *,
    recent: Collection[str],
    now: float,
) -> Round:
    """Bind what is assigned and not ready yet. What is refused is refused alone.

    ``recent`` are the names of answers that were given just now: their pods come last, so that none
    takes the room of one that was there before a restart.
    """
    desk, bound = state.desk, []
    refusals: dict[Key, Refused] = {}
    for assignment in sorted(state.all_assignments(), key=lambda one: one.name in recent):
        if state.is_ready(assignment):
            continue
        pod = find(assignment)
        key = (assignment.pod_uid, assignment.container)
        if pod is not None and not holds_devices(pod):
            continue  # it has ended, and the kubelet has not forgotten it yet
        if pod is None:
            detail = f"the API server shows no pod {assignment.pod_uid}"
            refusals[key] = Refused(Why.NOT_SEEN, detail)
            continue
        try:
            desk = bind(role, node, desk, assignment, pod, now=now)
            bound.append((assignment, pod))
        except Refused as error:
            before = state.refusals.get(key)
            # That a claim has failed is our own mark of what was wrong with it before.
            marked = before and before.final and error.why is Why.CLAIM_FAILED
            refusals[key] = before if before and marked else error
    return Round(desk, tuple(bound), refusals)


def bind(
    role: Role, node: str, desk: Desk, assignment: Assignment, pod: Pod, *, now: float
) -> Desk:
    """The desk with the assignment's container bound, its pod admitted first if need be.

    The same desk if it is so already. Raises Refused.
    """
    if assignment.pod_uid in desk.unbooked:
        detail = "it holds what is not there, so that none of its containers can be started"
        raise Refused(Why.NO_ROOM, detail, pod.ref, assignment.container)
    if desk.binding_of(assignment):
        return desk
    try:
        requests = role.language.requests(pod)
        if assignment.pod_uid not in desk.tenants:
            claimed = role.claim(pod, node, desk.choosable, desk.books)
            desk = desk.admitted(pod, claimed, now)
    except ClaimError as error:
        raise Refused(Why.MALFORMED, str(error), pod.ref, assignment.container) from error
    return desk.bound(assignment, pod, requests, now)


def gift(role: Role, desk: Desk, pod: Pod, binding: Binding) -> Gift:
    """All that the container is given. Raises Refused MALFORMED."""
    for share in binding.shares:
        if share.device not in desk.named:  # it may come back
            detail = f"its device {share.device} is lost"
            raise Refused(Why.UNKNOWN_DEVICE, detail, pod.ref, binding.container)
    allocation = Allocation(binding.container, binding.shares, Phase.ASSIGNED)
    try:
        edits = role.edits(pod, allocation, binding.name, desk.named)
    except ClaimError as error:
        raise Refused(Why.MALFORMED, str(error), pod.ref, binding.container) from error
    return Gift(edits, role.late_env(edits.env))
