"""The step of a pod or a workload at which its queue has quota for it. Pure."""

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from vgpu.quota.queue_answer import QueueAnswer, QueueReason
from vgpucli.explain.model import ExplainedStep, Explanation, WayStep
from vgpucli.explain.sentences import concluded
from vgpucli.explain.step_values import failed, not_checked, passed

_ADVICE: Final[Mapping[QueueReason, str]] = {
    QueueReason.NO_QUEUE: "correct the label kueue.x-k8s.io/queue-name, or create the queue",
    QueueReason.STOPPED: "kubectl describe clusterqueue and localqueue show who has stopped the"
    " queue, or what it refers to and is not there",
    QueueReason.INACTIVE: "set spec.active of the Workload to true when it may run",
    QueueReason.NOT_COVERED: "request what the ClusterQueue has quota of, or add the resource to"
    " its resourceGroups; Kueue's transformations decide what a request counts as",
    QueueReason.NEVER_FITS: "request less, or raise the quota that is named",
    QueueReason.NO_QUOTA: "wait for the workloads that hold the quota, or request less; vgpu"
    " inspect --by queue shows the tree of the quotas",
    QueueReason.BEHIND: "wait for the first workload of the queue; vgpu explain workload of it"
    " shows what it waits for",
    QueueReason.NOT_ADMITTED: "kubectl describe workload shows the admission checks and their"
    " messages",
    QueueReason.OTHER_NAMESPACE: "use a queue of this namespace, or correct the namespaceSelector",
    QueueReason.NO_FLAVOR: "correct the tolerations or the node selector of the pods, or the"
    " ResourceFlavor that is named",
    QueueReason.PODS_NOT_READY: "look at the workloads that are admitted and not ready; vgpu"
    " inspect --by queue names those that hold nothing",
    QueueReason.NO_TOPOLOGY: "request fewer pods or a wider level of the topology, or wait until"
    " its nodes have room; the message has how many pods fit",
    QueueReason.PREEMPTING: "wait; if it lasts, look for pods of the preempted workloads that do"
    " not end",
    QueueReason.OTHER: "kubectl describe workload shows Kueue's own message; look at Kueue's log"
    " if it has none",
}


def queue_step(answer: QueueAnswer) -> ExplainedStep:
    """The step of what waits for this reason, or waits no more, or for an unknown reason."""
    if answer.needs:
        return not_checked(WayStep.QUOTA, answer.needs, *answer.texts)
    if answer.reason is None:
        return passed(WayStep.QUOTA, *answer.texts)
    step = failed(WayStep.QUOTA, answer.reason, *answer.texts)
    return structs.replace(step, detail=answer.detail, advice=_ADVICE[answer.reason])


def explain_workload(name: str, answer: QueueAnswer, now: float) -> Explanation:
    """The explanation of a workload, which has no other step that is known."""
    explanation = Explanation("Workload", name, (queue_step(answer),), now)
    if answer.needs:
        text = f"why the workload waits is not checked: it needs {answer.needs}"
        return structs.replace(explanation, conclusion=text)
    return concluded(explanation)
