"""Why a pod was not bound, besides the reasons of placements; codes of metrics."""

from typing import Final

from vgpu.model.reasons import Explained
from vgpu.placement.result import PlacementReason

NOT_READY: Final = "vgpu scheduler is not ready: "
"""The beginning of the answers of a scheduler that does not know the cluster yet."""


class BindFailure(Explained):
    """Why the API server has not bound a pod, or we do not know whether it has."""

    GONE = "gone", "the pod does not exist any more, is being deleted, or is another of that name"
    BOUND_ELSEWHERE = "bound_elsewhere", "the pod is bound to another node"
    CONFLICT = "conflict", "the pod changed between each read and write"
    REFUSED = "refused", "the API server refused the binding"
    UNREACHABLE = "unreachable", "the API server did not answer"
    POD_UNREADABLE = "pod_unreadable", "the pod cannot be read"
    NODE_LOCKED = "node_locked", "the node is locked for another pod until it has its GPUs"
    LEASE_UNREADABLE = "lease_unreadable", "the claims in the Lease of the node cannot be read"


class BindError(Exception):
    """A pod was not bound; the message is the event's."""

    def __init__(self, reason: BindFailure | PlacementReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
