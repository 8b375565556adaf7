"""Why a workload of Kueue has no quota: which limit refuses it, at which level of the tree; pure.

Where quota is the only obstacle, the level that is named has less free than the workload requests,
or its limit is less than that:

    NEVER_FITS   in every flavor some resource has: limit < requested
    NO_QUOTA     in every flavor some resource has: free < requested

Both for one pod set after the other, as Kueue assigns flavors (v0.17.0, ``assignFlavors`` in
``pkg/scheduler/flavorassigner``): each takes the first flavor that has enough beside what the pod
sets before it have taken, and *requested* is the sum of these. A flavor is compared as a whole,
since Kueue takes the resources of one group from one flavor. Of the flavors of the first pod set
that none has enough for, the one that lacks least is named. With another ``flavorFungibility`` than
the default, Kueue may divide several pod sets otherwise.

Kueue's own message is quoted beside it. It decides where it names another obstacle than quota, and
where the tree shows no shortage.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Final

import msgspec

from vgpu.kube.errors import one_line
from vgpu.kube.kueue_kinds import (
    ADMITTED,
    CLUSTER_QUEUES,
    COHORTS,
    EVICTED,
    LOCAL_QUEUES,
    PODS_READY,
    PREEMPTED,
    QUOTA_RESERVED,
    REQUEUED,
    ClusterQueue,
    LocalQueue,
    PodSet,
    QueuedWorkload,
)
from vgpu.model.declared_quota import QuotaResource
from vgpu.model.reasons import Explained
from vgpu.quota.borrowing import borrowing_text, lending_text
from vgpu.quota.kueue_tree import (
    PODS,
    KueueObjects,
    cluster_queue_name,
    counts_pods,
    stop_text,
)
from vgpu.quota.resources import plus
from vgpu.quota.tree import QuotaLevel, QuotaName, QuotaTree

MOST_HOLDERS: Final = 5

_STRICT: Final = "StrictFIFO"
_READY: Final = "Ready"


class QueueReason(Explained):
    """Why Kueue has not admitted a workload; ``explanation`` is the sentence for people."""

    NO_QUEUE = "queue_missing", "the queue of the workload does not exist"
    STOPPED = "queue_stopped", "the queue of the workload admits nothing"
    INACTIVE = "workload_inactive", "the workload is switched off (spec.active)"
    NOT_COVERED = (
        "queue_without_resource",
        "the queue of the workload has no quota of a resource that the workload requests",
    )
    NEVER_FITS = (
        "queue_never_fits",
        "the workload requests more than its queue can ever have",
    )
    NO_QUOTA = "queue_full", "the queue of the workload has too little quota left"
    BEHIND = (
        "queue_behind",
        "the queue is strict, and a workload that is before this one does not fit",
    )
    NOT_ADMITTED = (
        "workload_not_admitted",
        "the workload has quota, and Kueue has not admitted it: an admission check may wait",
    )
    OTHER_NAMESPACE = (
        "queue_other_namespace",
        "the namespaceSelector of the ClusterQueue does not match the namespace of the workload",
    )
    NO_FLAVOR = (
        "queue_no_flavor",
        "no flavor of the queue fits the workload: taints or node labels keep it away",
    )
    PODS_NOT_READY = (
        "queue_waits_for_pods",
        "Kueue admits nothing before the pods of admitted workloads are ready (waitForPodsReady)",
    )
    NO_TOPOLOGY = (
        "queue_no_topology",
        "the topology of the nodes has no place for all pods of the workload together",
    )
    PREEMPTING = (
        "queue_preempting",
        "Kueue has preempted workloads for this one, which waits until they have ended",
    )
    OTHER = "workload_pending", "the quota suffices, and Kueue has not reserved it"


_INSUFFICIENT: Final = "insufficient "

_TEXTS: Final[Mapping[str, QueueReason]] = {
    "doesn't match ClusterQueue selector": QueueReason.OTHER_NAMESPACE,
    "to be in PodsReady condition": QueueReason.PODS_NOT_READY,
    "untolerated taint": QueueReason.NO_FLAVOR,
    "doesn't match node affinity": QueueReason.NO_FLAVOR,
    "allows to fit only": QueueReason.NO_TOPOLOGY,
}
"""Obstacles other than quota, by a part of the message of QuotaReserved (Kueue v0.17.0,
``pkg/scheduler/scheduler.go`` and ``flavorassigner``)."""

_QUOTA_TEXTS: Final[Mapping[str, QueueReason]] = {
    "> maximum capacity": QueueReason.NEVER_FITS,
    "insufficient unused quota": QueueReason.NO_QUOTA,
}
"""The same of quota, where the tree shows no shortage: a part of it may not have been read."""

_QUEUE_TEXTS: Final[Mapping[str, QueueReason]] = {
    "doesn't exist": QueueReason.NO_QUEUE,
    "is inactive": QueueReason.STOPPED,
}
"""The same of queues, which count where these were not read
(``pkg/controller/core/workload_controller.go``)."""

_REASONS: Final[Mapping[str, QueueReason]] = {
    "ExceedsMaxQuota": QueueReason.NEVER_FITS,
    "WaitingForQuota": QueueReason.NO_QUOTA,
    "NoMatchingFlavor": QueueReason.NO_FLAVOR,
    "WaitingForPodsReady": QueueReason.PODS_NOT_READY,
    "TopologyPlacementFailed": QueueReason.NO_TOPOLOGY,
    "WaitingForPreemptedWorkloads": QueueReason.PREEMPTING,
    "Suspended": QueueReason.STOPPED,
}
"""Reasons of QuotaReserved with the gate UnadmittedWorkloadsObservability, which is off by default
(Kueue 0.19, ``apis/kueue/v1beta2/workload_types.go``). ``Misconfigured`` is any of several causes:
its message decides. ``PendingEvaluation`` is none."""


class QueueAnswer(msgspec.Struct, frozen=True):
    """Why a workload waits.

    Attributes:
        reason: the code; None of a workload that is admitted or has ended.
        detail: the limit that refuses, with its amounts; "" if none does.
        level: the node of the tree at which the limit is; None if none refuses.
        resource: the resource that is refused.
        texts: what shows it, as sentences.
        needs: what would show it, where the reason is unknown; "" if it is known.
    """

    reason: QueueReason | None
    detail: str = ""
    level: QuotaName | None = None
    resource: QuotaResource | None = None
    texts: tuple[str, ...] = ()
    needs: str = ""


class _Shortage(msgspec.Struct, frozen=True):
    """A resource that a level refuses: ``most`` is its limit or what is free."""

    key: QuotaResource
    level: QuotaName
    most: int
    requested: int
    pod_sets: tuple[str, ...]


def queue_answer(kueue: KueueObjects, tree: QuotaTree, workload: QueuedWorkload) -> QueueAnswer:
    """Why the workload waits."""
    answer = _answer(kueue, tree, workload)
    texts = (*_about(kueue, workload), *answer.texts, *_history(kueue, workload))
    return msgspec.structs.replace(answer, texts=texts)


def _answer(kueue: KueueObjects, tree: QuotaTree, workload: QueuedWorkload) -> QueueAnswer:
    if workload.has_finished or workload.is_true(ADMITTED):
        return QueueAnswer(None)
    if not workload.is_active:
        return QueueAnswer(QueueReason.INACTIVE)
    if workload.admitted_by:
        waiting = "; ".join(check.text for check in workload.checks if check.state != _READY)
        detail = waiting or _message(workload, ADMITTED)
        return QueueAnswer(QueueReason.NOT_ADMITTED, detail)
    return _by_queues(kueue, tree, workload)


def _by_queues(kueue: KueueObjects, tree: QuotaTree, workload: QueuedWorkload) -> QueueAnswer:
    local = local_queue_of(kueue, workload)
    if local is None:
        name = f"LocalQueue {workload.namespace}/{workload.queue}"
        return _absent(kueue, workload, LOCAL_QUEUES.name, name)
    queue = cluster_queue_of(kueue, local)
    if queue is not None:
        return _stopped(queue) or _stopped(local) or _by_quota(kueue, tree, workload, queue)
    name = f"ClusterQueue {local.cluster_queue}"
    if local.inactive.partition(":")[0] == _NO_CLUSTER_QUEUE:
        return QueueAnswer(QueueReason.NO_QUEUE, f"{name} does not exist")
    if CLUSTER_QUEUES.name in kueue.unread and (stopped := _stopped(local)):
        return stopped
    return _absent(kueue, workload, CLUSTER_QUEUES.name, name)


_NO_CLUSTER_QUEUE: Final = "ClusterQueueDoesNotExist"
"""Kueue's reason for an inactive LocalQueue (``pkg/controller/core/localqueue_controller.go``)."""


def _absent(kueue: KueueObjects, workload: QueuedWorkload, kind: str, name: str) -> QueueAnswer:
    """The answer without a queue: it does not exist, or its kind was not read."""
    if kind not in kueue.unread:
        return QueueAnswer(QueueReason.NO_QUEUE, f"{name} does not exist")
    return _by_words(workload, kind, name)


def _by_words(workload: QueuedWorkload, kind: str, name: str) -> QueueAnswer:
    """What Kueue itself reports of the workload, where an object that decides was not read."""
    message = _message(workload, QUOTA_RESERVED)
    of_queue = (reason for text, reason in _QUEUE_TEXTS.items() if text in message)
    reason = _reported(workload) or next(of_queue, None)
    if reason is not None:
        return QueueAnswer(reason, message)
    if workload.is_set_aside:
        return _set_aside(workload)
    return QueueAnswer(None, needs=f"{name}: kubectl get {kind.lower()}s")


def _stopped(queue: ClusterQueue | LocalQueue) -> QueueAnswer | None:
    """The answer of a queue that admits nothing."""
    why = stop_text(queue.stop_policy) or queue.inactive
    kind = CLUSTER_QUEUES.name if isinstance(queue, ClusterQueue) else LOCAL_QUEUES.name
    return QueueAnswer(QueueReason.STOPPED, f"{kind} {queue.name}: {why}") if why else None


def _by_quota(
    kueue: KueueObjects, tree: QuotaTree, workload: QueuedWorkload, queue: ClusterQueue
) -> QueueAnswer:
    reported = _reported(workload)
    if reported not in (None, QueueReason.NEVER_FITS, QueueReason.NO_QUOTA):
        texts = tuple(_not_ready(kueue)) if reported is QueueReason.PODS_NOT_READY else ()
        return QueueAnswer(reported, _message(workload, QUOTA_RESERVED), texts=texts)
    covered = {key.resource for key in queue.quotas}
    requested = kueue.requested(workload)
    lacking = sorted(name for name, each in requested.items() if each and name not in covered)
    if lacking and not kueue.config.ignores_undeclared:
        detail = f"ClusterQueue {queue.name} has no quota of {', '.join(lacking)}"
        return QueueAnswer(QueueReason.NOT_COVERED, detail)
    pod_sets = _assigned_together(kueue, workload, queue)
    never = _least(queue, pod_sets, lambda key: _limits(tree, queue.name, key))
    short = never or _least(queue, pod_sets, lambda key: _rooms(tree, queue.name, key))
    if short is not None:
        if short.level.level is QuotaLevel.COHORT and (unread := _unread_beside(kueue)):
            return _by_words(workload, unread, short.level.text)
        reason = QueueReason.NO_QUOTA if never is None else QueueReason.NEVER_FITS
        refused = _refused(kueue, tree, workload, reason, short)
        own = cluster_queue_name(queue.name)
        texts = () if never else tuple(_borrowers(tree, own, short.level, short.key))
        return msgspec.structs.replace(refused, texts=(*texts, *refused.texts))
    ordered = _by_order(kueue, workload, queue)
    if ordered is None and queue.cohort and CLUSTER_QUEUES.name in kueue.unread:
        return _by_words(workload, CLUSTER_QUEUES.name, f"Cohort {queue.cohort}")
    return ordered or QueueAnswer(reported or QueueReason.OTHER, _message(workload, QUOTA_RESERVED))


def _unread_beside(kueue: KueueObjects) -> str:
    """The kind that decides what a cohort has and of which not all was read; "" if all was."""
    kinds = (COHORTS.name, CLUSTER_QUEUES.name)
    return next((each for each in kinds if each in kueue.unread), "")


def _set_aside(workload: QueuedWorkload) -> QueueAnswer:
    requeued = workload.conditions[REQUEUED]
    detail = f"Kueue has set the workload aside: {requeued.reason}: {requeued.message}"
    return QueueAnswer(QueueReason.OTHER, one_line(detail))


def _by_order(
    kueue: KueueObjects, workload: QueuedWorkload, queue: ClusterQueue
) -> QueueAnswer | None:
    """The answer for a workload that the quota suffices for and that is not first in line."""
    if workload.is_set_aside:
        return _set_aside(workload)
    if queue.strategy == _STRICT and kueue.namespace:
        # The first one may be of another namespace.
        is_first = kueue.places.get((workload.namespace, workload.name)) == 1
        needs = "workloads of all namespaces: kubectl get workloads -A"
        return None if is_first else QueueAnswer(None, needs=needs)
    head = next(iter(kueue.order(queue.name)), None)
    if queue.strategy == _STRICT and head is not None and head.uid != workload.uid:
        name = f"Workload {head.namespace}/{head.name}"
        return QueueAnswer(QueueReason.BEHIND, f"{name} is first in ClusterQueue {queue.name}")
    return None


def _reported(workload: QueuedWorkload) -> QueueReason | None:
    """What Kueue's own reason or message names; None without one that is known."""
    condition = workload.conditions.get(QUOTA_RESERVED)
    if condition is None or condition.is_true:
        return None
    if condition.reason in _REASONS:
        return _REASONS[condition.reason]
    message = condition.message
    texts = _QUOTA_TEXTS if _INSUFFICIENT in message else _TEXTS
    return next((reason for text, reason in texts.items() if text in message), None)


def _limits(tree: QuotaTree, queue: str, key: QuotaResource) -> tuple[int, QuotaName]:
    return min((each.limit, each.name) for each in tree.levels(cluster_queue_name(queue), key))


def _rooms(tree: QuotaTree, queue: str, key: QuotaResource) -> tuple[int, QuotaName]:
    return min((each.free, each.name) for each in tree.levels(cluster_queue_name(queue), key))


_Most = Callable[[QuotaResource], tuple[int, QuotaName]]
"""What a queue may have at most of a resource, and at which level."""


_PodSets = tuple[tuple[str, ...], Mapping[str, int]]
"""The names of pod sets that get the same flavors, and what they request together."""


def _assigned_together(
    kueue: KueueObjects, workload: QueuedWorkload, queue: ClusterQueue
) -> tuple[_PodSets, ...]:
    """The pod sets in the order in which Kueue assigns flavors to them."""
    groups: dict[tuple[str, str], list[PodSet]] = {}
    for each in workload.pod_sets:
        groups.setdefault((each.group, "" if each.group else each.name), []).append(each)
    covered = {key.resource for key in queue.quotas}

    def requests(pod_set: PodSet) -> dict[str, int]:
        own = kueue.requests(pod_set, workload)
        own |= {PODS: pod_set.count} if counts_pods(queue) else {}
        return {name: amount for name, amount in own.items() if name in covered}

    return tuple(
        (tuple(each.name for each in group), plus(*map(requests, group)))
        for group in groups.values()
    )


def _least(queue: ClusterQueue, pod_sets: Iterable[_PodSets], most_of: _Most) -> _Shortage | None:
    """What refuses the workload in every flavor, of the flavor that lacks least; else None."""
    taken: dict[QuotaResource, _Taken] = {}
    for names, requested in pod_sets:
        for resources in _groups(queue, requested):
            refusing = []
            for flavor in _flavors(queue, resources):
                sums = {
                    QuotaResource(flavor, each): _Taken.plus(
                        taken.get(QuotaResource(flavor, each)), names, requested[each]
                    )
                    for each in sorted(resources)
                }
                short = max(_short(sums, most_of), key=_lack, default=None)
                if short is None:
                    taken |= sums
                    break
                refusing.append(short)
            else:
                return min(refusing, key=_lack)
    return None


class _Taken(msgspec.Struct, frozen=True):
    """What pod sets take of a flavor together."""

    amount: int
    pod_sets: tuple[str, ...]

    @staticmethod
    def plus(before: "_Taken | None", names: tuple[str, ...], amount: int) -> "_Taken":
        """With what further pod sets take."""
        if before is None:
            return _Taken(amount, names)
        return _Taken(before.amount + amount, (*before.pod_sets, *names))


def _flavors(queue: ClusterQueue, resources: Collection[str]) -> Iterable[str]:
    """The flavors of a group, in the order in which Kueue tries them."""
    return dict.fromkeys(key.flavor for key in queue.quotas if key.resource in resources)


def _lack(shortage: _Shortage) -> Fraction:
    """Which part of the request is lacking: units of resources differ."""
    return Fraction(shortage.requested - shortage.most, max(1, shortage.requested))


def _short(sums: Mapping[QuotaResource, _Taken], most_of: _Most) -> Iterator[_Shortage]:
    """The resources of which a flavor has too little."""
    for key, taken in sums.items():
        most, level = most_of(key)
        if most < taken.amount:
            yield _Shortage(key, level, most, taken.amount, taken.pod_sets)


def _groups(queue: ClusterQueue, requested: Mapping[str, int]) -> Iterator[frozenset[str]]:
    """The requested resources that are taken from one flavor together: those of its flavors."""
    by_flavors: dict[frozenset[str], set[str]] = {}
    for resource in requested:
        flavors = frozenset(key.flavor for key in queue.quotas if key.resource == resource)
        by_flavors.setdefault(flavors, set()).add(resource)
    return (frozenset(resources) for resources in by_flavors.values())


def _refused(
    kueue: KueueObjects,
    tree: QuotaTree,
    workload: QueuedWorkload,
    reason: QueueReason,
    short: _Shortage,
) -> QueueAnswer:
    what = f"{short.requested} {short.key.text} requested"
    if len(workload.pod_sets) > 1:
        several = "s" if len(short.pod_sets) > 1 else ""
        what += f" for pod set{several} {' and '.join(short.pod_sets)}"
    if reason is QueueReason.NEVER_FITS:
        detail = f"{what}, at most {short.most} at {short.level.text}"
        return QueueAnswer(reason, detail, short.level, short.key)
    detail = (
        f"{what}, {max(0, short.most)} free at {short.level.text}:"
        f" {short.requested - short.most} more needed"
    )
    texts = tuple(_holders(kueue, tree, short.level, short.key))
    return QueueAnswer(reason, detail, short.level, short.key, texts)


def _borrowers(
    tree: QuotaTree, queue: QuotaName, level: QuotaName, key: QuotaResource
) -> Iterator[str]:
    """What others have of the queue's own quota, and who has borrowed, if a cohort refuses."""
    if level.level is not QuotaLevel.COHORT:
        return
    if lent := lending_text(tree, tree.nodes[queue], key):
        yield lent
    borrowing = [node for node in tree.below(level) if node.borrowed.get(key, 0)]
    borrowing.sort(key=lambda node: (-node.borrowed[key], node.name))
    yield from (borrowing_text(node, key) for node in borrowing[:MOST_HOLDERS])


def _holders(
    kueue: KueueObjects, tree: QuotaTree, level: QuotaName, key: QuotaResource
) -> Iterator[str]:
    """The largest holders at a level; with the others they are what its queues use, as counted."""
    queues = {node.name for node in tree.below(level)}
    counted = sum(
        tree.nodes[name].used.get(key, 0)
        for name in queues
        if name.level is QuotaLevel.CLUSTER_QUEUE
    )
    holders = sorted(
        (-amount, f"{each.namespace}/{each.name}")
        for each in kueue.workloads
        if not each.has_finished
        and cluster_queue_name(each.admitted_by) in queues
        and (amount := each.reserved.get(key, 0))
    )
    if not counted and not holders:
        return
    kept = counted - tree.drawn(level, key)
    of_own = f"; {kept} of it are of quota that its queues keep for themselves" if kept else ""
    yield f"{level.text}: {counted} {key.text} in use, as Kueue counts{of_own}"
    shown = holders[:MOST_HOLDERS]
    for amount, name in shown:
        yield f"{-amount} of it by Workload {name}"
    others = counted + sum(amount for amount, _ in shown)
    if others:
        yield f"{others} of it by others"


def _about(kueue: KueueObjects, workload: QueuedWorkload) -> Iterator[str]:
    """The workload, its queues and its place there."""
    name = f"Workload {workload.namespace}/{workload.name}"
    local = local_queue_of(kueue, workload)
    queue = workload.admitted_by or (local.cluster_queue if local is not None else "")
    where = f"LocalQueue {workload.namespace}/{workload.queue}"
    if queue:
        where += f" of ClusterQueue {queue}"
    yield f"{name} is in {where}"
    declared = next((each for each in kueue.cluster_queues if each.name == queue), None)
    amounts = kueue.requested(workload, counts_pods=bool(declared and counts_pods(declared)))
    requested = (f"{each} {name}" for name, each in sorted(amounts.items()))
    yield f"{name} requests {', '.join(requested) or 'nothing'}, as Kueue counts"
    order = kueue.order(queue) if workload.waits and not kueue.namespace else ()
    place = next((n for n, each in enumerate(order, 1) if each.uid == workload.uid), None)
    own = kueue.places.get((workload.namespace, workload.name)) if workload.waits else None
    if own is not None:
        yield f"{name} is number {own} that waits for ClusterQueue {queue}, as Kueue reports"
    elif place is not None:
        yield f"{name} is number {place} of {len(order)} that wait for ClusterQueue {queue}"
    if workload.cluster:
        yield f"{name} is in cluster {workload.cluster}, where MultiKueue runs it"
    elif workload.nominated:
        yield f"MultiKueue will choose a cluster for {name}: {', '.join(workload.nominated)}"
    if workload.admitted_by and not workload.has_finished:
        yield from (f"{name}: {check.text}" for check in workload.checks)
    if declared is not None and declared.fungibility and len(_flavor_names(declared)) > 1:
        yield (
            f"ClusterQueue {queue} has flavorFungibility with {declared.fungibility}: Kueue may try"
            " its flavors otherwise than by default"
        )
    message = _message(workload, QUOTA_RESERVED)
    if message and not workload.is_true(QUOTA_RESERVED):
        yield f"Kueue about {name}: {message}"


def _flavor_names(queue: ClusterQueue) -> frozenset[str]:
    return frozenset(key.flavor for key in queue.quotas)


def _not_ready(kueue: KueueObjects) -> Iterator[str]:
    """The admitted workloads whose pods are not ready: Kueue admits nothing before they are."""
    names = sorted(
        f"{each.namespace}/{each.name}"
        for each in kueue.workloads
        if each.is_true(ADMITTED) and not each.has_finished and not each.is_true(PODS_READY)
    )
    yield from (f"the pods of Workload {name} are not ready" for name in names[:MOST_HOLDERS])
    if len(names) > MOST_HOLDERS:
        yield f"the pods of {len(names) - MOST_HOLDERS} further workloads are not ready"


def _history(kueue: KueueObjects, workload: QueuedWorkload) -> Iterator[str]:
    """Evictions, which the conditions keep after they are over."""
    for kind in (EVICTED, PREEMPTED):
        condition = workload.conditions.get(kind)
        if condition is None or not condition.is_true:
            continue
        message = one_line(condition.message)
        if kind == PREEMPTED:
            yield _preempted(kueue, workload, condition.reason, message)
        elif condition.reason != PREEMPTED:
            yield f"the workload was evicted: {condition.reason}: {message}"


_PREEMPTIONS: Final[Mapping[str, str]] = {
    "InClusterQueue": "in the same ClusterQueue",
    "InCohortReclamation": "to reclaim the quota of a queue of its cohort",
    "InCohortFairSharing": "for fair sharing in its cohort",
    "InCohortReclaimWhileBorrowing": "to reclaim quota of its cohort while borrowing",
}


def _preempted(kueue: KueueObjects, workload: QueuedWorkload, reason: str, message: str) -> str:
    """Who preempted it: Kueue names the UID, which is a name for whoever may read that workload."""
    by = next((each for each in kueue.workloads if each.uid and each.uid in message), None)
    who = "another workload" if by is None else f"Workload {by.namespace}/{by.name}"
    why = _PREEMPTIONS.get(reason, reason)
    return f"Workload {workload.namespace}/{workload.name} was preempted by {who} {why}"


def _message(workload: QueuedWorkload, kind: str) -> str:
    condition = workload.conditions.get(kind)
    return one_line(condition.message) if condition is not None else ""


def local_queue_of(kueue: KueueObjects, workload: QueuedWorkload) -> LocalQueue | None:
    """The LocalQueue of the workload, if it exists."""
    wanted = workload.namespace, workload.queue
    named = (each for each in kueue.local_queues if (each.namespace, each.name) == wanted)
    return next(named, None)


def cluster_queue_of(kueue: KueueObjects, local: LocalQueue) -> ClusterQueue | None:
    """The ClusterQueue of the LocalQueue, if it exists."""
    named = (each for each in kueue.cluster_queues if each.name == local.cluster_queue)
    return next(named, None)
