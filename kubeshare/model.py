"""SharePods, pods and nodes as the controllers decide about them: frozen values, no I/O.

A SharePod is *placed* when it has a node and a GPUID (the name of a virtual GPU), *bound* when its
status has the UUID of that virtual GPU's GPU, and *finished* when its pod has ended for good.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from kubeshare.reasons import SharePodReason
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.model.taints import Taint, Toleration
from vgpu.schemes.kubeshare.sharepod import Locality, is_finished, is_made_up


class ConditionType(StrEnum):
    """The conditions of a SharePod."""

    SCHEDULED = "Scheduled"
    BOUND = "Bound"
    READY = "Ready"


class SharePodCondition(msgspec.Struct, frozen=True):
    """A condition of a SharePod; ``since`` is the RFC 3339 text of its last transition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: str = ""


class NodeAmounts(msgspec.Struct, frozen=True):
    """Amounts of a node: thousandths of a CPU, bytes of memory, whole GPUs, and pods."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    pods: int = 0

    def plus(self, other: "NodeAmounts") -> "NodeAmounts":
        """The sums."""
        return NodeAmounts(
            self.cpu_milli + other.cpu_milli,
            self.memory_bytes + other.memory_bytes,
            self.gpus + other.gpus,
            self.pods + other.pods,
        )

    def minus(self, other: "NodeAmounts") -> "NodeAmounts":
        """The differences, which may be negative."""
        return NodeAmounts(
            self.cpu_milli - other.cpu_milli,
            self.memory_bytes - other.memory_bytes,
            self.gpus - other.gpus,
            self.pods - other.pods,
        )


class NodeRequirement(msgspec.Struct, frozen=True):
    """One requirement of a node affinity; ``field`` is for ``metadata.name``."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    field: bool = False


class NodeNeeds(msgspec.Struct, frozen=True):
    """What a pod needs of its node.

    Attributes:
        amounts: what it requests.
        selector: labels that the node must have.
        terms: required node affinity: one of these lists must hold as a whole; None is no affinity.
        tolerations: taints that it tolerates.
    """

    amounts: NodeAmounts = NodeAmounts(pods=1)
    selector: Mapping[str, str] = {}
    terms: tuple[tuple[NodeRequirement, ...], ...] | None = None
    tolerations: tuple[Toleration, ...] = ()


class GpuRequest(msgspec.Struct, frozen=True):
    """The share that is requested: thousandths of a GPU, and bytes."""

    request_milli: int
    limit_milli: int
    memory_bytes: int


class VirtualGpuName(NamedTuple):
    """A virtual GPU: its node and its GPUID."""

    node: str
    gpuid: str


LABELLED: Final = "/pod"
"""The end of the key of a pod with labels, which may have the name of a SharePod."""


class SharePod(msgspec.Struct, frozen=True):
    """A SharePod.

    Attributes:
        pod: the SharePod in the shape of a pod, with the phase of the pod that was created for it.
        node, gpuid: where it is placed; "" if it is not.
        bound: the UUID of its GPU; "" before it is bound.
        port: the port of its pod manager; 0 before it is bound.
        pod_uid: the UID of the pod that was last created for it; "" if none was.
        request: its share; None if it requests no GPU.
        problem: why its annotations cannot be used; "" if they can.
        locality: with which pods it may share a GPU.
        needs: what its pod needs of a node.
        conditions: its conditions.
        copied: the status of its pod that it repeats, as a JSON value; None if there is none.
        content: the whole object as the API server has it, as JSON.
        is_pod: whether it is a pod with KubeShare 2's labels (:mod:`kubeshare.labelled_pods`); it
            then has its own status as ``copied``, and neither ``content`` nor a pod of its own.
    """

    pod: Pod
    bound: str = ""
    port: int = 0
    pod_uid: str = ""
    request: GpuRequest | None = None
    problem: str = ""
    locality: Locality = Locality()
    needs: NodeNeeds = NodeNeeds()
    conditions: tuple[SharePodCondition, ...] = ()
    gpuid: str = ""
    copied: Any = None
    content: msgspec.Raw = msgspec.Raw(b"{}")
    is_pod: bool = False

    @property
    def key(self) -> str:
        """Its key: ``<namespace>/<name>``, of a pod with labels ``<namespace>/<name>/pod``."""
        return f"{self.ref.namespace}/{self.ref.name}{LABELLED if self.is_pod else ''}"

    @property
    def ref(self) -> PodRef:
        """Its identity."""
        return self.pod.ref

    @property
    def node(self) -> str:
        """The node that it is placed on; "" if none."""
        return self.pod.node

    @property
    def is_finished(self) -> bool:
        """Whether its pod has ended and is not created again."""
        return is_finished(self.pod)

    @property
    def place(self) -> VirtualGpuName | None:
        """The virtual GPU that it is placed on; None if it is on none."""
        placed = self.node and self.gpuid and self.request is not None
        return VirtualGpuName(self.node, self.gpuid) if placed else None

    @property
    def is_tenant(self) -> bool:
        """Whether it uses a share of its virtual GPU, now or as soon as its pod runs."""
        return self.place is not None and not self.is_finished

    @property
    def needs_place(self) -> bool:
        """Whether it has no node, or requests a GPU and has no virtual GPU."""
        is_open = not self.node or (self.request is not None and not self.gpuid)
        is_over = self.is_finished or self.pod.deleted_at is not None
        return is_open and not (self.problem or self.pod.gated or is_over)

    @property
    def may_move(self) -> bool:
        """Whether its place was chosen by a scheduler, which may choose another one."""
        scheduled = self.condition(ConditionType.SCHEDULED)
        if scheduled is not None and scheduled.status == TRUE:
            return scheduled.reason == SharePodReason.PLACED
        return is_made_up(self.gpuid)

    def condition(self, type_: ConditionType) -> SharePodCondition | None:
        """Its condition of this type; None if there is none."""
        return next((each for each in self.conditions if each.type == type_), None)


TRUE, FALSE = "True", "False"
"""The statuses of conditions."""

POD_RUNNING: Final = "Running"
"""The phase of a pod whose containers have started."""


class ClusterPod(msgspec.Struct, frozen=True):
    """A pod of the cluster.

    Attributes:
        pod: the pod.
        amounts: what it requests of its node.
        request: its share of a virtual GPU; None if it has none or it cannot be read.
        port, uuid: of its pod manager and of its GPU, as its containers see them; 0 and "" if they
            do not. Of a holder pod, ``uuid`` is the GPU that the node component has reported.
        unschedulable_since: when kube-scheduler first found no node for it, in unix seconds; None
            if it did not.
        is_ready: whether its condition Ready is true.
        status: its status as a JSON value, if it belongs to a SharePod.
        labelled: the pod as a SharePod, if it names KubeShare 2's scheduler.
    """

    pod: Pod
    amounts: NodeAmounts = NodeAmounts(pods=1)
    request: GpuRequest | None = None
    locality: Locality = Locality()
    port: int = 0
    uuid: str = ""
    unschedulable_since: float | None = None
    is_ready: bool = False
    status: Any = None
    labelled: SharePod | None = None

    @property
    def ref(self) -> PodRef:
        """Its identity."""
        return self.pod.ref

    @property
    def share_pod_uid(self) -> str:
        """The UID of the SharePod that owns it; "" if none does."""
        owner = self.pod.owner
        return owner.uid if owner is not None and owner.kind == "SharePod" else ""

    @property
    def is_deleting(self) -> bool:
        """Whether somebody has deleted it."""
        return self.pod.deleted_at is not None


class ClusterNode(msgspec.Struct, frozen=True):
    """A node.

    Attributes:
        allocatable: what its pods may request together.
        gpu_bytes: the memory of its GPUs in bytes, by UUID (``kubeshare/gpu_info``).
    """

    name: str
    is_ready: bool = True
    is_cordoned: bool = False
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    allocatable: NodeAmounts = NodeAmounts()
    gpu_bytes: Mapping[str, int] = {}
