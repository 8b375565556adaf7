"""What is wrong between the quotas of queues and what pods hold: report only; pure.

Every finding compares two things that were both read. Where one of them was not, nothing is found.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec

from vgpu.kube.kept_keys import is_gpu_resource
from vgpu.kube.kueue_kinds import (
    EVICTED,
    LOCAL_QUEUES,
    QUOTA_RESERVED,
    RESOURCE_FLAVORS,
    WORKLOADS,
    ClusterQueue,
    QueuedWorkload,
)
from vgpu.kube.quantities import is_extended
from vgpu.kube.scheduling_objects import SchedulingNode
from vgpu.kube.volcano_kinds import POD_GROUPS
from vgpu.model.allocation import Device
from vgpu.model.declared_quota import DeclaredQuota, QuotaResource
from vgpu.model.durations import age
from vgpu.model.objects import Pod
from vgpu.model.reasons import Explained
from vgpu.model.units import WHOLE_DEVICE_MILLI, count
from vgpu.quota.kueue_config import KueueConfig
from vgpu.quota.kueue_tree import (
    CLUSTER_QUEUE_LABEL,
    KueueObjects,
    PodsInQueues,
    QueuedPod,
    cluster_queue_name,
    local_queue_name,
)
from vgpu.quota.quota_units import QuotaUnit, quota_unit
from vgpu.quota.resources import CORES, GPUS, MEMORY, Amounts, plus
from vgpu.quota.volcano_tree import (
    PodsOfQueues,
    VolcanoObjects,
    amounts,
    device_resources,
    requested_once,
)
from vgpu.schemes.registry import UnitBytes, names_of, registry
from vgpu.schemes.volcano.key_set import HAMI

_HOUR: Final = 3600

GRACE: Final = 120.0
"""Time after a reservation in which its pods need not hold anything, in seconds."""

MOST_ALIKE: Final = 5
"""Maximum number of findings of one reason that are listed; the others are one line."""


class QueueFinding(Explained):
    """What a finding about queues is; ``explanation`` is the sentence for people."""

    RESERVED_IDLE = (
        "quota_reserved_idle",
        "a workload has reserved quota, and its pods hold nothing",
    )
    RUNS_UNADMITTED = (
        "runs_unadmitted",
        "a pod of a queue runs, and its queue has not admitted it",
    )
    USE_STAYS = (
        "quota_use_stays",
        "a queue counts more than its workloads have reserved",
    )
    COUNTS_TOO_LITTLE = (
        "counts_too_little",
        "a workload counts fewer GPUs than its pods hold",
    )
    ABOVE_NODES = (
        "quota_above_nodes",
        "the quotas of a flavor are more than its nodes have",
    )
    OF_NOTHING = (
        "quota_of_nothing",
        "a quota names a resource that no node has, and no transformation makes it",
    )
    TWO_COUNTS = (
        "two_counts",
        "Volcano shows another amount for a queue than it compares with the limit",
    )
    LIMIT_IGNORED = (
        "limit_ignored",
        "this version of Volcano ignores a limit of a queue",
    )
    COUNTS_ZERO = (
        "counts_zero",
        "a request for a part of a GPU counts no memory in a queue that limits memory",
    )
    NOT_TRANSFORMED = (
        "not_transformed",
        "Kueue counts the memory or cores of HAMi once, whatever the number of GPUs",
    )


class FoundInQueues(msgspec.Struct, frozen=True):
    """A finding: its reason, the object that it is about, and a sentence that names it."""

    reason: QueueFinding
    about: str
    text: str


class FlavorNode(msgspec.Struct, frozen=True):
    """What a node has: its labels, its allocatable resources, and the GPUs of its ledger.

    ``gpus`` and ``memory_bytes`` are None if they are unknown.
    """

    labels: Mapping[str, str] = {}
    allocatable: Mapping[str, int] = {}
    gpus: int | None = 0
    memory_bytes: int | None = 0
    is_hami: bool = False

    def has(self, resource: str, unit: QuotaUnit) -> int | None:
        """How much of a resource it has at most; None if that is unknown."""
        if resource in self.allocatable:
            return self.allocatable[resource]
        cores = None if self.gpus is None else self.gpus * WHOLE_DEVICE_MILLI
        sizes = {MEMORY: self.memory_bytes, CORES: cores}
        if unit.amount not in sizes:
            return 0 if is_extended(resource) else None
        size = sizes[unit.amount]
        return None if size is None else unit.of_ledger({unit.amount: size})


def flavor_node(node: SchedulingNode, devices: Sequence[Device]) -> FlavorNode:
    """What a node has, by its object and the GPUs that are known of it.

    A node that offers GPUs and of which none is known, as with NVIDIA's own plugin, has some.
    """
    offers = any(each for name, each in node.allocatable.items() if is_gpu_resource(name))
    sizes = [device.memory_bytes for device in devices if device.memory_bytes]
    return FlavorNode(
        node.labels,
        node.allocatable,
        None if offers and not devices else len(devices),
        None if len(sizes) < len(devices) or (offers and not devices) else sum(sizes),
        is_hami=any(
            row.name == HAMI.name and row.has_devices(node.node) for row in registry().rows
        ),
    )


class QueueEvidence(msgspec.Struct, frozen=True, dict=True):
    """What was read.

    Attributes:
        held: what living pods hold by the ledger.
        pods: all pods that share GPUs; None if the pods were not read.
        nodes: the nodes; empty if they were not read.
    """

    kueue: KueueObjects = KueueObjects()
    volcano: VolcanoObjects = VolcanoObjects()
    held: tuple[tuple[Pod, Amounts], ...] = ()
    pods: tuple[Pod, ...] | None = ()
    nodes: tuple[FlavorNode, ...] = ()
    unit_bytes: UnitBytes = {}
    as_of: float = 0.0

    def unit(self, resource: str) -> QuotaUnit:
        """The unit of a resource."""
        if resource not in self._units:
            self._units[resource] = quota_unit(resource, self.kueue.config, self.unit_bytes)
        return self._units[resource]

    @cached_property
    def _units(self) -> dict[str, QuotaUnit]:
        return {}

    @cached_property
    def queued(self) -> "tuple[_Queued, ...]":
        """The pods of queues that hold something or run."""
        pods = PodsInQueues(self.kueue)
        held = {pod.ref.uid: (pod, amount) for pod, amount in self.held}
        running: dict[str, tuple[Pod, Amounts]] = {
            pod.ref.uid: (pod, {})
            for pod in self.pods or ()
            if pod.phase == "Running" and pod.requested_units()
        }
        return tuple(
            _Queued(pod, of, amount)
            for pod, amount in (running | held).values()
            if (of := pods.of(pod)) is not None
        )


class _Queued(msgspec.Struct, frozen=True):
    """A pod that holds something, or runs: of NVIDIA's own plugin no record has a pod's GPUs."""

    pod: Pod
    of: QueuedPod
    held: Amounts = {}


def queue_findings(
    evidence: QueueEvidence, keep: Callable[[FoundInQueues], bool] | None = None
) -> tuple[FoundInQueues, ...]:
    """All findings that ``keep`` keeps, in the order of the reasons."""
    return tuple(each for find in _CHECKS for each in _few(filter(keep or bool, find(evidence))))


def _few(found: Iterable[FoundInQueues]) -> Iterator[FoundInQueues]:
    """The first findings of one reason, and how many more there are."""
    every = list(found)
    yield from every[:MOST_ALIKE]
    more = len(every) - MOST_ALIKE
    if more > 0:
        reason = every[0].reason
        yield FoundInQueues(reason, "", f"{more} more: {reason.explanation}")


# ---------------------------------------------------------------- Kueue


def idle_workloads(evidence: QueueEvidence) -> tuple[QueuedWorkload, ...]:
    """The workloads with quota of resources that the ledger knows, whose pods hold nothing.

    Those that have it longest come first. A pod that holds something and whose workload is unknown
    may be of any in its queue. The pods of a workload that MultiKueue runs are in another cluster,
    and those of one that has just got its quota are not there yet.
    """
    if evidence.pods is None:
        return ()
    queued = [each.of for each in evidence.queued]
    running = {each.workload.uid for each in queued if each.workload is not None}
    unclear = {each.local_queue for each in queued if each.workload is None}
    idle = [
        each
        for each in evidence.kueue.workloads
        if each.admitted_by
        and not each.has_finished
        and not (each.cluster or each.nominated)
        and not (_reserved_at(each) and evidence.as_of - _reserved_at(each) < GRACE)
        and each.uid not in running
        and local_queue_name(each.namespace, each.queue) not in unclear
        and any(
            evidence.unit(key.resource).amount for key, amount in each.reserved.items() if amount
        )
    ]
    return tuple(sorted(idle, key=lambda each: (_reserved_at(each), each.namespace, each.name)))


def _reserved_at(workload: QueuedWorkload) -> float:
    condition = workload.conditions.get(QUOTA_RESERVED)
    return (condition.since if condition is not None else None) or 0.0


def _reserved_idle(evidence: QueueEvidence) -> Iterator[FoundInQueues]:
    for each in idle_workloads(evidence):
        name = f"Workload {each.namespace}/{each.name}"
        reserved = {key: amount for key, amount in sorted(each.reserved.items()) if amount}
        text = ", ".join(f"{amount} {key.text}" for key, amount in reserved.items())
        evicted = " although Kueue has evicted it," if each.is_true(EVICTED) else ""
        begun = _reserved_at(each)
        if not begun:
            yield FoundInQueues(
                QueueFinding.RESERVED_IDLE,
                name,
                f"{name} has reserved {text},{evicted} and its pods hold nothing",
            )
            continue
        hours = max(0.0, evidence.as_of - begun) / _HOUR
        spent = ", ".join(
            f"{amount * hours:.1f} hours of {key.resource}"
            for key, amount in reserved.items()
            if evidence.unit(key.resource).amount == GPUS
        )
        since = f" for {age(evidence.as_of - begun)},"
        cost = f": {spent}" if spent else ""
        yield FoundInQueues(
            QueueFinding.RESERVED_IDLE,
            name,
            f"{name} has reserved {text}{since}{evicted} and its pods hold nothing{cost}",
        )


_MANAGED: Final = "kueue.x-k8s.io/managed"
"""A label of pods that Kueue manages one by one, or as a group."""


def _runs_unadmitted(evidence: QueueEvidence) -> Iterator[FoundInQueues]:
    """A pod whose Workload is not there counts only in a namespace of which queues were read."""
    kueue = evidence.kueue
    if WORKLOADS.name in kueue.unread:
        return
    known = {local_queue_name(each.namespace, each.name) for each in kueue.local_queues}
    for each in evidence.queued:
        pod, queued = each.pod, each.of
        workload, queue = queued.workload, queued.local_queue
        if pod.deleted_at is not None or pod.terminal or CLUSTER_QUEUE_LABEL in pod.labels:
            continue
        if workload is not None and (workload.admitted_by or workload.has_finished):
            continue
        is_own = pod.owner is None or pod.labels.get(_MANAGED) == "true"
        if workload is None and not (is_own and queue in known):
            continue  # an object between the pod and its job may have the Workload
        name = f"pod {pod.ref.namespace}/{pod.ref.name}"
        why = "Kueue has no Workload for it"
        if workload is not None:
            why = f"Workload {workload.namespace}/{workload.name} is not admitted"
        of = "a queue" if queue is None else queue.text
        text = f"{name} is of {of} and runs, and {why}"
        yield FoundInQueues(QueueFinding.RUNS_UNADMITTED, name, text)


def _use_stays(evidence: QueueEvidence) -> Iterator[FoundInQueues]:
    kueue = evidence.kueue
    if kueue.unread & {WORKLOADS.name, LOCAL_QUEUES.name}:
        return
    sums: dict[tuple[str, str], dict[QuotaResource, int]] = {}
    for each in kueue.workloads:
        if each.admitted_by and not each.has_finished:
            own = sums.setdefault((each.namespace, each.queue), {})
            for key, amount in each.reserved.items():
                own[key] = own.get(key, 0) + amount
    for local in kueue.local_queues:
        own = sums.get((local.namespace, local.name), {})
        name = f"LocalQueue {local.namespace}/{local.name}"
        for key, used in sorted(local.reserved.items()):
            if is_extended(key.resource) and used.total > own.get(key, 0):
                text = (
                    f"{name} counts {used.total} {key.text}, and its workloads have reserved"
                    f" {own.get(key, 0)}"
                )
                yield FoundInQueues(QueueFinding.USE_STAYS, name, text)


def _counts_too_little(evidence: QueueEvidence) -> Iterator[FoundInQueues]:
    held: dict[str, list[Amounts]] = {}
    workloads: dict[str, QueuedWorkload] = {}
    for each in evidence.queued:
        own = each.of.workload
        if own is not None and own.admitted_by and each.pod.deleted_at is None:
            workloads[own.uid] = own
            held.setdefault(own.uid, []).append(each.held)
    for uid, workload in workloads.items():
        gpus = plus(*held[uid]).get(GPUS, 0)
        counted = [
            amount
            for key, amount in workload.reserved.items()
            if evidence.unit(key.resource).amount == GPUS
        ]
        if counted and sum(counted) < gpus and not workload.has_finished:
            name = f"Workload {workload.namespace}/{workload.name}"
            text = f"{name} counts {count(sum(counted), 'GPU')}, and its pods hold {gpus}"
            yield FoundInQueues(QueueFinding.COUNTS_TOO_LITTLE, name, text)


def _declared(kueue: KueueObjects) -> Iterator[Mapping[QuotaResource, DeclaredQuota]]:
    """The quotas of all ClusterQueues and Cohorts."""
    yield from (each.quotas for each in kueue.cluster_queues)
    yield from (each.quotas for each in kueue.cohorts)


def _above_nodes(evidence: QueueEvidence) -> Iterator[FoundInQueues]:
    kueue = evidence.kueue
    if not evidence.nodes or RESOURCE_FLAVORS.name in kueue.unread:
        return
    labels = {each.name: each.node_labels for each in kueue.flavors}
    nominal: dict[QuotaResource, int] = {}
    for declared in _declared(kueue):
        for key, quota in declared.items():
            nominal[key] = nominal.get(key, 0) + quota.nominal
    for key, amount in sorted(nominal.items()):
        if key.flavor not in labels or not is_extended(key.resource) or not amount:
            continue
        unit = evidence.unit(key.resource)
        if key.resource in kueue.config.made and unit.amount not in (MEMORY, CORES):
            continue  # no node advertises what Kueue makes of requests
        wanted = labels[key.flavor].items()
        of_flavor = [each for each in evidence.nodes if wanted <= each.labels.items()]
        parts = [each.has(key.resource, unit) for each in of_flavor]
        has = sum(part or 0 for part in parts)
        if None in parts or amount <= has or _is_of_nothing(evidence, key.resource):
            continue
        name = f"ResourceFlavor {key.flavor}"
        text = (
            f"{name}: the quotas of {key.resource} are {amount} {unit.text}, and"
            f" {count(len(of_flavor), 'node')} with its labels"
            f" {'has' if len(of_flavor) == 1 else 'have'} {has}"
        )
        yield FoundInQueues(QueueFinding.ABOVE_NODES, name, text)


def _of_nothing(evidence: QueueEvidence) -> Iterator[FoundInQueues]:
    if not evidence.nodes or evidence.kueue.config.problem:
        return
    names = {key.resource for each in _declared(evidence.kueue) for key in each}
    for name in sorted(names):
        if _is_of_nothing(evidence, name):
            text = (
                f"{name}: a quota names it, no node has it, and no transformation of Kueue makes it"
            )
            yield FoundInQueues(QueueFinding.OF_NOTHING, name, text)


def _is_of_nothing(evidence: QueueEvidence, name: str) -> bool:
    """Whether no pod can ever count anything of it that runs.

    What a scheduler alone counts, such as HAMi's memory, no node advertises either.
    """
    return (
        is_extended(name)
        and not evidence.unit(name).amount
        and name not in evidence.kueue.config.made
        and not any(name in each.allocatable for each in evidence.nodes)
    )


def missing_transformations(config: KueueConfig) -> Iterator[str]:
    """The lines of ``resources.transformations`` that Kueue's page about HAMi has and this has not.

    Kueue's documentation, *Using HAMi* (``tasks/run/using_hami.md``).
    """
    names = names_of("hami")
    for name in (names.memory, names.cores):
        if name.startswith(config.excluded):
            continue
        present = config.transformations.get(name)
        if present is not None and present.multiply_by == names.count:
            continue
        domain, _, short = name.rpartition("/")
        yield (
            f"- {{input: {name}, strategy: Replace, multiplyBy: {names.count},"
            f' outputs: {{{domain}/total-{short}: "1"}}}}'
        )


def _not_transformed(evidence: QueueEvidence) -> Iterator[FoundInQueues]:
    kueue = evidence.kueue
    if kueue.config.problem or not kueue.cluster_queues:
        return
    if not any(each.is_hami for each in evidence.nodes):
        return
    missing = list(missing_transformations(kueue.config))
    if missing:
        name = "ConfigMap kueue-system/kueue-manager-config"
        text = (
            f"{name}: nodes share GPUs with HAMi, and resources.transformations lacks {missing[0]}"
        )
        more = f" and {missing[1]}" if len(missing) > 1 else ""
        yield FoundInQueues(QueueFinding.NOT_TRANSFORMED, name, text + more)


def _counts_zero(evidence: QueueEvidence) -> Iterator[FoundInQueues]:
    yield from _zero_in_kueue(evidence)
    yield from _zero_in_volcano(evidence)


def _zero_in_kueue(evidence: QueueEvidence) -> Iterator[FoundInQueues]:
    """Workloads that count GPUs, and no memory in any flavor that they have, or may get."""
    kueue = evidence.kueue
    targets = {(each.namespace, each.name): each.cluster_queue for each in kueue.local_queues}
    limited = {
        each.name: (_keys_of(evidence, each, GPUS), memory)
        for each in kueue.cluster_queues
        if (memory := _keys_of(evidence, each, MEMORY))
    }
    for each in kueue.workloads:
        name = each.admitted_by or targets.get((each.namespace, each.queue), "")
        if each.has_finished or name not in limited:
            continue
        gpus, memory = limited[name]
        if each.admitted_by:
            counted = plus(*({key.resource: n} for key, n in each.reserved.items()))
            flavors = {key.flavor for key, n in each.reserved.items() if n}
            gpus = [key for key in gpus if key.flavor in flavors]
        else:
            counted = kueue.requested(each)
        gpus = [key for key in gpus if counted.get(key.resource)]
        of_memory = {key.resource for key in memory}
        with_memory = {key.flavor for key in memory}
        if not gpus or any(counted.get(resource) for resource in of_memory):
            continue
        if all(key.flavor in with_memory for key in gpus):
            who, resource = f"Workload {each.namespace}/{each.name}", min(of_memory)
            text = (
                f"{who} counts {counted[gpus[0].resource]} {gpus[0].resource} and 0 {resource} in"
                f" {cluster_queue_name(name).text}, which limits {resource}"
            )
            yield FoundInQueues(QueueFinding.COUNTS_ZERO, who, text)


def _keys_of(evidence: QueueEvidence, queue: ClusterQueue, amount: str) -> list[QuotaResource]:
    """The keys of a queue's quotas that stand for one of the ledger's amounts."""
    return sorted(key for key in queue.quotas if evidence.unit(key.resource).amount == amount)


# ---------------------------------------------------------------- Volcano


def _zero_in_volcano(evidence: QueueEvidence) -> Iterator[FoundInQueues]:
    volcano, names = evidence.volcano, names_of("volcano")
    if not volcano.has_queues or volcano.counts_devices is False or not volcano.scheduler.limits:
        return
    of_queues = PodsOfQueues(volcano)
    for pod in evidence.pods or ():
        if pod.terminal or pod.deleted_at is not None:
            continue
        units = pod.requested_units()
        path = volcano.path(of_queues.of(pod))
        limiting = [each for each in path if names.memory in each.capability]
        if limiting and units.get(names.count) and not units.get(names.memory):
            name = f"pod {pod.ref.namespace}/{pod.ref.name}"
            what = "a percentage of memory" if units.get(names.percentage) else "no memory"
            text = (
                f"{name} requests {units[names.count]} {names.count} and {what}, which counts 0"
                f" {names.memory} in Queue {limiting[0].name}, which limits it"
            )
            yield FoundInQueues(QueueFinding.COUNTS_ZERO, name, text)


def _two_counts(evidence: QueueEvidence) -> Iterator[FoundInQueues]:
    volcano, number = evidence.volcano, names_of("volcano").count
    if evidence.pods is None or POD_GROUPS.name in volcano.unread or not volcano.counts_devices:
        return
    once = requested_once(volcano, evidence.pods)
    for queue in volcano.queues:
        allocated, again = amounts(queue.allocated), once.get(queue.name, {})
        if not again or again.get(number, 0) != allocated.get(number, 0):
            continue  # the status is of other pods than those that were read
        for resource in sorted(device_resources() & allocated.keys()):
            shown, checked = allocated[resource], again.get(resource, 0)
            if shown != checked:
                limit = queue.capability.get(resource)
                against = "" if limit is None else f" against the limit of {limit}"
                name = f"Queue {queue.name}"
                text = (
                    f"{name} shows {shown} {resource}, which counts each GPU of a pod, and Volcano"
                    f" compares {checked}{against}, which counts each container once"
                )
                yield FoundInQueues(QueueFinding.TWO_COUNTS, name, text)


def _limit_ignored(evidence: QueueEvidence) -> Iterator[FoundInQueues]:
    volcano = evidence.volcano
    if not volcano.scheduler.ignores_devices:
        return
    for queue in volcano.queues:
        named = {*queue.capability, *queue.deserved, *queue.guarantee} & device_resources()
        if named:
            name = f"Queue {queue.name}"
            version = "{}.{}".format(*volcano.scheduler.version or (0, 0))
            text = f"{name} limits {', '.join(sorted(named))}, which Volcano {version} ignores"
            yield FoundInQueues(QueueFinding.LIMIT_IGNORED, name, text)


_CHECKS: Final[tuple[Callable[[QueueEvidence], Iterator[FoundInQueues]], ...]] = (
    _reserved_idle,
    _runs_unadmitted,
    _use_stays,
    _counts_too_little,
    _above_nodes,
    _of_nothing,
    _two_counts,
    _limit_ignored,
    _counts_zero,
    _not_transformed,
)
