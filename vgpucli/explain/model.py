"""The values of an explanation: steps with outcomes, reasons and evidence."""

from enum import StrEnum

import msgspec

from vgpu.kube.closed_nodes import ClosedReason
from vgpu.model.reasons import Explained
from vgpu.placement.result import PlacementReason


class WayStep(Explained):
    """A step on the way of a pod, or a part of a node or GPU, in the order of the way."""

    # a pod
    REQUEST = "request", "the request is valid"
    QUOTA = "quota", "the quota of the namespace admits the pod"
    NODES = "nodes", "a node has room for the pod"
    RESERVED = "reserved", "a scheduler reserves GPUs and binds the pod"
    ADMITTED = "admitted", "the kubelet admits the pod"
    ALLOCATED = "allocated", "the device plugin allocates the GPUs"
    STARTED = "started", "the containers start"
    LIMITED = "limited", "the containers cannot use more than their shares"
    USE = "use", "the containers use their shares"
    # a node
    REGISTERED = "registered", "the node registers GPUs to share"
    READY = "ready", "the node is ready and takes new pods"
    PLUGIN = "plugin", "the device plugin is alive for the scheduler"
    LOCK = "lock", "no old lock stops the node"
    RECORDS = "records", "the allocation records of the node can be read"
    FOLDERS = "folders", "no folder of a sharing library is left over"
    # a GPU
    HEALTHY = "healthy", "the GPU takes new shares"
    SHARES = "shares", "the shares fit into the GPU"


class ExplainOutcome(StrEnum):
    """The outcome of a step: passed only with evidence that was read, else not checked."""

    PASSED = "passed"
    FAILED = "failed"
    WAITING = "waiting"
    NOT_CHECKED = "not_checked"


class ExplainReason(Explained):
    """The reasons of steps that neither the scheduler nor the reconciler has a code for."""

    STALE_SCHEDULER = (
        "stale_scheduler",
        (
            "nodes have room by their allocatable resources and by the allocation records, so the"
            " scheduler's own memory is stale"
        ),
    )
    OTHER_CHECKS = (
        "other_checks",
        "nodes have GPUs for the pod, and kube-scheduler refuses them for another reason",
    )
    UNITS_IN_USE = (
        "units_in_use",
        (
            "nodes have GPUs for the pod by the allocation records, but other pods request all of"
            " the resource that the nodes advertise"
        ),
    )
    MISSING_RESOURCE = (
        "missing_resource",
        "no node advertises a resource that the pod requests",
    )
    WRONG_SCHEDULER = (
        "wrong_scheduler",
        "the pod's schedulerName names a scheduler that does not place its sharing system's pods",
    )
    COUNTED_WITHOUT_EXTENDER = (
        "counted_without_extender",
        (
            "kube-scheduler counts a resource that no node advertises, as it does where the"
            " configuration of the scheduler does not leave the resource to its extender"
        ),
    )
    NODE_LOCKED = "node_locked", "the lock of a node for another pod refuses the pod"
    FOREIGN_RESERVATION = (
        "foreign_reservation",
        "a pod that is bound to another node still reserves GPUs of a node that has room",
    )
    EXTENDER_FAILS = "extender_fails", "kube-scheduler gets no answer of a scheduler extender"
    RESOURCE_CLAIMS_WAIT = "resource_claims_wait", "a ResourceClaim of the pod is not allocated"
    RESOURCE_CLAIM_MISSING = (
        "resource_claim_missing",
        "a ResourceClaim of the pod does not exist",
    )
    POD_GROUP_WAITS = "pod_group_waits", "the PodGroup of the pod has too few pods that can run"
    QUEUE_FULL = "queue_full", "the queue of the pod's PodGroup has no room"
    SCHEDULER_QUOTA = "scheduler_quota", "a quota of the GPU scheduler refuses the pod"
    UNKNOWN_REFUSAL = "unknown_refusal", "refused for a reason that vgpu does not know"
    NODES_CLOSED = (
        "nodes_closed",
        "each node with room is closed to the pod for another reason than its GPUs",
    )
    UNITS_MISSING = (
        "units_missing",
        "no node has as many free units of the resource as the pod requests",
    )
    NODE_GONE = "node_gone", "the node of the pod does not exist any more"
    DELETING = "deleting", "the pod is being deleted"
    ANNOTATED_ELSEWHERE = (
        "node_differs",
        "the annotations of the pod were made for another node",
    )
    GATED = "gated", "a scheduling gate keeps every scheduler from the pod"
    OTHER_PLACEMENT = "other_placement", "the sharing system places its pods by its own controller"
    NOT_REPORTED = "not_reported", "the kubelet has not reported anything about the pod"
    NOT_ADVERTISED = "not_advertised", "the node registers GPUs and advertises no resource for them"
    IMPLAUSIBLE_AMOUNT = (
        "implausible_amount",
        "a container requests more memory than any GPU has: the amount is meant in another unit",
    )
    SEVERAL_CONTAINERS = (
        "several_containers",
        (
            "gpushare's own device plugin serves no pod of which several containers request GPU"
            " memory: it compares the request of one container with the sum of the pod"
        ),
    )
    PARTLY_ALLOCATABLE = (
        "partly_allocatable",
        "the kubelet can allocate fewer units than the node has: a GPU may be unhealthy",
    )
    ONE_UNIT = "one_unit", "the device plugin of the node allocates one unit to a container"
    NO_SUCH_GPU = "no_such_gpu", "the node has no such GPU"
    ON_UNKNOWN_GPU = (
        "on_unknown_gpu",
        "pods of the node hold shares on an unknown GPU, so less may be free than is shown",
    )
    GPU_TOO_SMALL = "gpu_too_small", "no GPU has as much memory as the pod requests"
    PREEMPTION_DELAY = (
        "preemption_delay",
        "other pods would have to be evicted, and the workload may not do that yet",
    )
    RESERVATION_FAILED = (
        "reservation_failed",
        "the pod that keeps the GPU for its shares has not got one",
    )
    SCALING_UP = (
        "scaling_up",
        "KAI Scheduler reserves no GPU for shares while a pod that scales the cluster up waits",
    )
    BINDER_FAILED = (
        "binder_failed",
        "the scheduler has chosen a node, and its binder could not bind the pod there",
    )
    NO_POD_GROUP = "no_pod_group", "KAI Scheduler places pods of PodGroups, and the pod has none"
    STARTING = "starting", "the containers are starting"
    ENDED = "ended", "the pod has ended and holds nothing"


class StepReason(msgspec.Struct, frozen=True):
    """Why a step did not pass.

    Attributes:
        code: the code of the scheduler's refusal, the reconciler's finding, or of
            :class:`ExplainReason`.
        explanation: its sentence.
        rule: the reconciler's rule, "" if no rule found it.
        about: another object that a remark is about, and how many more; "" of the object itself.
    """

    code: str
    explanation: str
    rule: str = ""
    about: str = ""

    @property
    def text(self) -> str:
        """The sentence, with the other object in front of it."""
        return f"{self.about}: {self.explanation}" if self.about else self.explanation

    @classmethod
    def of(cls, reason: Explained, rule: str = "") -> "StepReason":
        """The reason with its own sentence."""
        return cls(reason.value, reason.explanation, rule)


class ExplainedStep(msgspec.Struct, frozen=True):
    """A step.

    Attributes:
        step: the step.
        outcome: the outcome.
        reasons: why it did not pass, the most important first; () if it passed, or if it was not
            reached.
        evidence: what shows the outcome, as sentences.
        remarks: findings that are no reason for the outcome.
        since: when the outcome began, unix seconds; None if unknown.
        needs: what would show the outcome of a step that is not checked; "" of others.
        advice: what to do in place of the advice for the first reason; None if that holds.
        detail: what exactly the first reason is about, for the closing sentence.
        is_proven: whether the scheduler's message names the cause, whatever room nodes have.
    """

    step: WayStep
    outcome: ExplainOutcome
    reasons: tuple[StepReason, ...] = ()
    evidence: tuple[str, ...] = ()
    remarks: tuple[StepReason, ...] = ()
    since: float | None = None
    needs: str = ""
    advice: str | None = None
    detail: str = ""
    is_proven: bool = False


class GpuGroup(msgspec.Struct, frozen=True):
    """GPUs of some nodes that are skipped for one reason; None is no reason: the GPU fits."""

    reason: PlacementReason | None
    gpus: int


class NodeGroup(msgspec.Struct, frozen=True):
    """Nodes that give one answer.

    Attributes:
        reason: why they do not take the pod; None if they have room for it and take new pods.
        names: the names of the nodes.
        gpus: their GPUs by reason, the most frequent first.
        free_bytes: memory of the healthy GPU with the most free memory; None if unknown.
        detail: what exactly is wrong with the first of them; "" if that is all.
    """

    reason: PlacementReason | ClosedReason | None
    names: tuple[str, ...]
    gpus: tuple[GpuGroup, ...] = ()
    free_bytes: int | None = None
    detail: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """An explanation of one object.

    Attributes:
        kind: ``Pod``, ``Node`` or ``GPU``.
        name: the object, for people.
        steps: in the order of the way.
        as_of: unix seconds of the data.
        nodes: the answers of nodes to a pod that is not bound.
        lines: what else a person wants to see, such as the GPUs of a node.
        conclusion: one sentence.
        advice: what to do; "" if nothing.
        notes: what a reader must know to trust the explanation.
        system: the sharing system of the pod, or those of the node, for people; "" if none is
            known.
    """

    kind: str
    name: str
    steps: tuple[ExplainedStep, ...]
    as_of: float
    nodes: tuple[NodeGroup, ...] = ()
    lines: tuple[str, ...] = ()
    conclusion: str = ""
    advice: str = ""
    notes: tuple[str, ...] = ()
    system: str = ""

    @property
    def decisive(self) -> ExplainedStep | None:
        """The step that decides: the first that failed, else the first that waits.

        Missing room decides over no later step whose cause the scheduler's message names.
        """
        failed = [step for step in self.steps if step.outcome is ExplainOutcome.FAILED]
        waiting = (step for step in self.steps if step.outcome is ExplainOutcome.WAITING)
        if not failed:
            return next(waiting, None)
        first = failed[0]
        codes = [reason.code for reason in first.reasons]
        if first.step is WayStep.NODES and ExplainReason.MISSING_RESOURCE not in codes:
            return next((step for step in failed if step.is_proven), first)
        return first
