"""The result of a placement, the same for all dialects: a placement, or a refusal with its reasons.

A reason is one code for answers, events, metrics and reports; none of its sentences names a node or
a GPU, so that equal causes have equal texts.
"""

from collections import Counter
from functools import cached_property
from typing import Final, Self

import msgspec

from vgpu.model.allocation import Allocation
from vgpu.model.reasons import Explained
from vgpu.placement.candidate import UsedGpu


class PlacementReason(Explained):
    """Why a pod cannot be placed, why a node does not take it, or why a GPU is skipped."""

    # the pod
    MALFORMED_REQUEST = "malformed_request", "its sharing system does not allow this request"
    NOTHING_REQUESTED = "nothing_requested", "the pod requests no GPU"
    SEVERAL_SYSTEMS = "several_systems", "the pod requests GPUs of several sharing systems"
    INIT_CONTAINER = (
        "init_container",
        "an init container requests more than its sharing system can reserve",
    )
    UNSERVED_RESOURCE = (
        "unserved_resource",
        "the pod requests a device of another vendor, which only HAMi's scheduler can choose",
    )
    FOREIGN_ANNOTATIONS = (
        "foreign_annotations",
        "the pod has annotations of its sharing system that contradict a reservation",
    )
    # its namespace
    QUOTA = "quota", "the pod would exceed a GPU quota of its namespace"
    QUOTA_UNREADABLE = "quota_unreadable", "a GPU quota of the pod's namespace cannot be read"
    QUOTA_MODEL = "quota_model", "the quota of the pod's namespace has no GPUs of this model"
    QUOTA_POOL = "quota_pool", "the quota of the pod's namespace excludes the node's GPU pool"
    # the node
    UNKNOWN_NODE = "unknown_node", "the node is unknown to the scheduler"
    NO_GPUS = "no_gpus", "the node has no GPU of the pod's sharing system"
    NEEDS_LOCK = (
        "needs_lock",
        "HAMi's own device plugin serves the node: start vgpu scheduler with --original-plugin",
    )
    MIXED_NODE = "mixed_node", "the node has GPUs of several sharing systems"
    UNREADABLE = "unreadable", "the GPUs of the node, or what its pods hold, cannot be read"
    OTHER_SCHEDULER = "other_scheduler", "another scheduler has reserved GPUs of the node"
    POD_WITHOUT_GPU = "pod_without_gpu", "a pod that is bound to the node has no GPU yet"
    UNDER_WAY = "under_way", "the node is kept for a pod that is being bound"
    SHARING_MODE = "sharing_mode", "the GPUs are shared in another mode than the pod requests"
    TOO_FEW_GPUS = "too_few_gpus", "the node has fewer GPUs than a container requests"
    NO_FITTING_GPU = "no_fitting_gpu", "too few GPUs of the node fit"
    SHARING_OFF = "sharing_off", "the node allocates whole GPUs only"
    AFFINITY = "affinity", "the virtual GPU of the pod's affinity label has no room or forbids it"
    RESERVATION_ILLEGAL = (
        "reservation_illegal",
        "the reserved GPUs are not free, or not as many as requested",
    )
    RESERVATION_DIFFERS = "reservation_differs", "the scheduler has reserved another GPU"
    # its GPUs, in the order of the checks of one
    UUID = "uuid", "the pod's annotations exclude the GPUs"
    TYPE = "type", "the pod's annotations exclude the type of the GPUs"
    UNHEALTHY = "unhealthy", "the GPUs are unhealthy"
    CORDONED = "cordoned", "the GPUs are cordoned"
    UNKNOWN_SIZE = "unknown_size", "the memory of the GPUs is unknown"
    SLOTS = "slots", "no share of a GPU is free"
    POD_GROUP = "pod_group", "another pod of the pod group, or of an exclusive rule, uses the GPUs"
    MEMORY = "memory", "no GPU has enough free memory"
    CORES = "cores", "no GPU has enough free cores"
    EXCLUSIVE = "exclusive", "no GPU is idle"
    EXCLUSIVELY_USED = "exclusively_used", "all cores of the GPUs are reserved"
    MIG_SLOT = "mig_slot", "no MIG slot that is large enough is free"
    MIG_GEOMETRY = (
        "mig_geometry",
        "the GPUs are in MIG mode, and the scheduler reserves no MIG instances",
    )
    NUMA = "numa", "no NUMA node has enough fitting GPUs"


UNRESOLVABLE: Final = frozenset(
    {
        PlacementReason.MALFORMED_REQUEST,
        PlacementReason.SEVERAL_SYSTEMS,
        PlacementReason.INIT_CONTAINER,
        PlacementReason.UNSERVED_RESOURCE,
        PlacementReason.QUOTA,
        PlacementReason.QUOTA_UNREADABLE,
        PlacementReason.QUOTA_MODEL,
        PlacementReason.QUOTA_POOL,
        PlacementReason.UNKNOWN_NODE,
        PlacementReason.NO_GPUS,
        PlacementReason.NEEDS_LOCK,
        PlacementReason.MIXED_NODE,
        PlacementReason.UNREADABLE,
        PlacementReason.SHARING_MODE,
        PlacementReason.TOO_FEW_GPUS,
        PlacementReason.UUID,
        PlacementReason.UNHEALTHY,
        PlacementReason.CORDONED,
        PlacementReason.UNKNOWN_SIZE,
        PlacementReason.TYPE,
        PlacementReason.MIG_GEOMETRY,
    }
)
"""Reasons that stay whatever other pods leave the node."""


EXCLUDING: Final = frozenset(
    {PlacementReason.UUID, PlacementReason.TYPE, PlacementReason.SHARING_MODE}
)
"""Reasons of nodes and GPUs that the pod's own annotations exclude."""


OF_STANDING: Final = frozenset({PlacementReason.OTHER_SCHEDULER, PlacementReason.POD_WITHOUT_GPU})
"""Reasons of nodes that would take the pod without other pods; their message names these."""


OF_QUOTA: Final = frozenset(
    {
        PlacementReason.QUOTA,
        PlacementReason.QUOTA_UNREADABLE,
        PlacementReason.QUOTA_MODEL,
        PlacementReason.QUOTA_POOL,
    }
)
"""Reasons of a quota; their message has the limit and its amounts."""


_ORDER: Final = {reason: number for number, reason in enumerate(PlacementReason)}


class PlacementRefusal(msgspec.Struct, frozen=True, dict=True):
    """Why a pod is not placed.

    Attributes:
        reason: the code.
        message: the message of the original scheduler or plugin, which may name pod and node.
        container: which container does not fit; "" if that is no question.
        skipped: each GPU that was skipped for this container, by name, and why.
        free_bytes: memory of the healthy GPU with the most free memory of those that the pod's
            annotations do not exclude; None if there is none.
        is_lasting: whether so many GPUs are skipped for :data:`UNRESOLVABLE` reasons that the
            others are too few for the container, whatever other pods leave them.
    """

    reason: PlacementReason
    message: str = ""
    container: str = ""
    skipped: tuple[tuple[str, PlacementReason], ...] = ()
    free_bytes: int | None = None
    is_lasting: bool = False

    @classmethod
    def of(cls, reason: PlacementReason) -> Self:
        """A refusal in our own words."""
        return cls(reason, reason.explanation)

    @property
    def text(self) -> str:
        """The reason with the original's message, for people."""
        explanation, message = self.reason.explanation, self.message
        return explanation if message in ("", explanation) else f"{explanation}: {message}"

    @cached_property
    def cause(self) -> PlacementReason:
        """The reason of most of the GPUs that decide, of equal numbers the later check's.

        GPUs that the container could have without other pods decide, unless they are too few: then
        those that it can never have.
        """
        if not self.skipped:
            return self.reason
        reasons = [reason for _, reason in self.skipped]
        deciding = [each for each in reasons if (each in UNRESOLVABLE) is self.is_lasting]
        counts = Counter(deciding or reasons)
        return max(counts, key=lambda reason: (counts[reason], _ORDER[reason]))


class Placement(msgspec.Struct, frozen=True):
    """Where a pod goes.

    Attributes:
        node: the node.
        allocations: the containers' shares, as the annotations will have them.
        gpus: the node's GPUs with the pod.
        preference: the original scheduler's own score of the node; 0 where it has none.
    """

    node: str
    allocations: tuple[Allocation, ...]
    gpus: tuple[UsedGpu, ...] = ()
    preference: float = 0.0


PlacementResult = Placement | PlacementRefusal
