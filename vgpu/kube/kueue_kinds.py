"""Kueue's queues, cohorts, flavors and workloads; pure.

Fields: ``apis/kueue/v1beta2`` and ``v1beta1`` of kubernetes-sigs/kueue. The kinds are apart from
:mod:`vgpu.kube.kinds`, since every one is optional: a cluster without Kueue has none of them.

Amounts are integers in the unit of their resource, as Kueue counts them (its
``pkg/resources/requests.go``): thousandths of cpu, and units of anything else, rounded up.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from vgpu.kube import wire
from vgpu.kube.api_kind import ApiKind, Decoders
from vgpu.kube.errors import one_line
from vgpu.kube.projection import seconds
from vgpu.kube.quantities import QUOTED, rounded_up
from vgpu.model.allocation import effective
from vgpu.model.declared_quota import DeclaredQuota, QuotaResource
from vgpu.model.names import ContainerKind
from vgpu.model.reasons import Reason, SourceError

GROUP: Final = "kueue.x-k8s.io"
VERSION: Final = f"{GROUP}/v1beta2"
_OLDER: Final = (f"{GROUP}/v1beta1",)

CPU: Final = "cpu"
_MILLI: Final = 1000


class Reserved(msgspec.Struct, frozen=True):
    """What the status of a queue reports: all that is used, and what of it is borrowed."""

    total: int
    borrowed: int = 0


class ResourceFlavor(msgspec.Struct, frozen=True):
    """A ResourceFlavor; ``node_labels`` are those of its nodes."""

    name: str
    node_labels: Mapping[str, str] = {}


class ClusterQueue(msgspec.Struct, frozen=True):
    """A ClusterQueue.

    Attributes:
        cohort: the name of its cohort; "" is none.
        quotas: by resource and flavor.
        reserved: what workloads with reserved quota count, by its status.
        strategy: ``StrictFIFO`` or ``BestEffortFIFO``.
        stop_policy: ``None``, ``Hold`` or ``HoldAndDrain``.
        inactive: why it admits no workload, for people; "" if it does, or has no status.
        pending: the number of workloads that wait, by its status.
        fungibility: its ``flavorFungibility`` as far as it is not the default, for people.
    """

    name: str
    cohort: str = ""
    quotas: Mapping[QuotaResource, DeclaredQuota] = {}
    reserved: Mapping[QuotaResource, Reserved] = {}
    strategy: str = ""
    stop_policy: str = ""
    inactive: str = ""
    pending: int = 0
    fungibility: str = ""


class LocalQueue(msgspec.Struct, frozen=True):
    """A LocalQueue; ``inactive`` is as of :class:`ClusterQueue`."""

    namespace: str
    name: str
    cluster_queue: str = ""
    reserved: Mapping[QuotaResource, Reserved] = {}
    stop_policy: str = ""
    inactive: str = ""
    pending: int = 0


class Cohort(msgspec.Struct, frozen=True):
    """A Cohort. A cohort that is only named by queues has no such object."""

    name: str
    parent: str = ""
    quotas: Mapping[QuotaResource, DeclaredQuota] = {}


class WorkloadCondition(msgspec.Struct, frozen=True):
    """A condition of a workload; ``since`` is in unix seconds."""

    type: str
    is_true: bool
    reason: str = ""
    message: str = ""
    since: float | None = None


class AdmissionCheck(msgspec.Struct, frozen=True):
    """The state of an admission check of a workload: Pending, Ready, Retry or Rejected."""

    name: str
    state: str = ""
    message: str = ""

    @property
    def text(self) -> str:
        """Name, state and message, for people."""
        message = f": {one_line(self.message)}" if self.message else ""
        return f"admission check {self.name} is {self.state or 'Pending'}{message}"


class PodSet(msgspec.Struct, frozen=True):
    """Pods of a workload that are alike: their number and the requests of one of them.

    Requests are quantities as they are written: what is counted of them, Kueue's configuration
    decides. Pod sets of one ``group`` get the same flavors; "" is a group of its own.
    """

    name: str
    count: int
    containers: tuple[tuple[ContainerKind, Mapping[str, str]], ...] = ()
    group: str = ""

    def requests(self) -> dict[str, int]:
        """The effective requests of one pod, in the unit of each resource; unreadable ones are
        missing.
        """
        names = dict.fromkeys(name for _, of_one in self.containers for name in of_one)
        ordered = sorted(self.containers, key=lambda each: each[0] is ContainerKind.APP)
        return {
            name: effective(
                (kind, amount(name, of_one.get(name, "0")) or 0) for kind, of_one in ordered
            )
            for name in names
        }


class QueuedWorkload(msgspec.Struct, frozen=True):
    """A Workload.

    Attributes:
        owners: UIDs of the objects that it stands for: a job, or pods.
        owner: the first of these, such as ``Job train``.
        queue: the name of its LocalQueue.
        created_at: unix seconds; None if unknown.
        is_active: whether Kueue may admit it (``spec.active``).
        pod_sets: what it requests.
        considered: what each pod set requested when Kueue last looked at it, by its name; empty
            before that.
        admitted_by: the name of the ClusterQueue that has reserved quota for it; "" if none has.
        reserved: what counts there.
        conditions: by type.
        checks: its admission checks.
        cluster: the cluster in which MultiKueue runs it; "" is none, or this one.
        nominated: the clusters of which MultiKueue will choose one.
    """

    namespace: str
    name: str
    uid: str = ""
    owners: tuple[str, ...] = ()
    owner: str = ""
    queue: str = ""
    priority: int = 0
    created_at: float | None = None
    is_active: bool = True
    pod_sets: tuple[PodSet, ...] = ()
    considered: Mapping[str, Mapping[str, int]] = {}
    admitted_by: str = ""
    reserved: Mapping[QuotaResource, int] = {}
    conditions: Mapping[str, WorkloadCondition] = {}
    checks: tuple[AdmissionCheck, ...] = ()
    cluster: str = ""
    nominated: tuple[str, ...] = ()

    def is_true(self, kind: str) -> bool:
        """Whether it has a condition of this type, and that is true."""
        condition = self.conditions.get(kind)
        return condition is not None and condition.is_true

    @property
    def has_finished(self) -> bool:
        """Whether it has ended and counts nowhere."""
        return self.is_true(FINISHED)

    @property
    def waits(self) -> bool:
        """Whether it has no quota, and is to have some."""
        return self.is_active and not (self.admitted_by or self.has_finished)

    @property
    def is_set_aside(self) -> bool:
        """Whether it stands in no line until Kueue puts it back, such as after an eviction."""
        condition = self.conditions.get(REQUEUED)
        return condition is not None and not condition.is_true


QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
FINISHED: Final = "Finished"
EVICTED: Final = "Evicted"
PREEMPTED: Final = "Preempted"
PODS_READY: Final = "PodsReady"
REQUEUED: Final = "Requeued"
"""Types of conditions of a workload."""


def amount(resource: str, quantity: str) -> int | None:
    """A quantity in the unit of its resource; None if it is none that Kueue can count."""
    return rounded_up(quantity, _MILLI if resource == CPU else 1)


# ---------------------------------------------------------------- fields


class _ResourceQuota(wire.Wire, frozen=True):
    name: str = ""
    nominal_quota: wire.Quantity = 0
    borrowing_limit: wire.Quantity | None = None
    lending_limit: wire.Quantity | None = None


class _FlavorQuotas(wire.Wire, frozen=True):
    name: str = ""
    resources: list[_ResourceQuota] | None = None


class _ResourceGroup(wire.Wire, frozen=True):
    flavors: list[_FlavorQuotas] | None = None


class _ResourceUsage(wire.Wire, frozen=True):
    name: str = ""
    total: wire.Quantity = 0
    borrowed: wire.Quantity = 0


class _FlavorUsage(wire.Wire, frozen=True):
    name: str = ""
    resources: list[_ResourceUsage] | None = None


class _FlavorSpec(wire.Wire, frozen=True):
    node_labels: dict[str, str] | None = None


class _FlavorFields(wire.ObjectFields, frozen=True):
    metadata: wire.Meta
    spec: _FlavorSpec = _FlavorSpec()


class _Fungibility(wire.Wire, frozen=True):
    when_can_borrow: str | None = None
    when_can_preempt: str | None = None
    preference: str | None = None


class _ClusterQueueSpec(wire.Wire, frozen=True):
    """``cohort`` is the name in v1beta1."""

    cohort_name: str = ""
    cohort: str = ""
    resource_groups: list[_ResourceGroup] | None = None
    queueing_strategy: str = ""
    stop_policy: str | None = None
    flavor_fungibility: _Fungibility | None = None


class _QueueStatus(wire.Wire, frozen=True):
    flavors_reservation: list[_FlavorUsage] | None = None
    pending_workloads: int = 0
    conditions: list[wire.Condition] | None = None


class _ClusterQueueFields(wire.ObjectFields, frozen=True):
    metadata: wire.Meta
    spec: _ClusterQueueSpec = _ClusterQueueSpec()
    status: _QueueStatus = _QueueStatus()


class _LocalQueueSpec(wire.Wire, frozen=True):
    cluster_queue: str = ""
    stop_policy: str | None = None


class _LocalQueueFields(wire.ObjectFields, frozen=True):
    metadata: wire.Meta
    spec: _LocalQueueSpec = _LocalQueueSpec()
    status: _QueueStatus = _QueueStatus()


class _CohortSpec(wire.Wire, frozen=True):
    parent_name: str = ""
    resource_groups: list[_ResourceGroup] | None = None


class _CohortFields(wire.ObjectFields, frozen=True):
    metadata: wire.Meta
    spec: _CohortSpec = _CohortSpec()


class _Template(wire.Wire, frozen=True):
    spec: wire.PodSpec = wire.PodSpec()


class _TopologyRequest(wire.Wire, frozen=True):
    pod_set_group_name: str | None = None


class _PodSetFields(wire.Wire, frozen=True):
    name: str = ""
    count: wire.Count = 1
    topology_request: _TopologyRequest | None = None
    template: _Template = _Template()


class _WorkloadMeta(wire.Meta, frozen=True, kw_only=True):
    creation_timestamp: wire.Time = None
    owner_references: list[wire.OwnerFields] | None = None


class _WorkloadSpec(wire.Wire, frozen=True):
    queue_name: str = ""
    priority: wire.Count | None = None
    active: bool | None = None
    pod_sets: list[_PodSetFields] | None = None


class _Assignment(wire.Wire, frozen=True):
    name: str = ""
    flavors: dict[str, str] | None = None
    resource_usage: wire.Quantities = None
    count: wire.Count | None = None


class _Admission(wire.Wire, frozen=True):
    cluster_queue: str = ""
    pod_set_assignments: list[_Assignment] | None = None


class _Reclaimable(wire.Wire, frozen=True):
    name: str = ""
    count: wire.Count = 0


class _PodSetRequest(wire.Wire, frozen=True):
    name: str = ""
    resources: wire.Quantities = None


class _CheckState(wire.Wire, frozen=True):
    name: str = ""
    state: str = ""
    message: str = ""


class _WorkloadStatus(wire.Wire, frozen=True):
    admission_checks: list[_CheckState] | None = None
    cluster_name: str | None = None
    nominated_cluster_names: list[str] | None = None
    admission: _Admission | None = None
    conditions: list[wire.Condition] | None = None
    reclaimable_pods: list[_Reclaimable] | None = None
    resource_requests: list[_PodSetRequest] | None = None


class _WorkloadFields(wire.ObjectFields, frozen=True):
    metadata: _WorkloadMeta
    spec: _WorkloadSpec = _WorkloadSpec()
    status: _WorkloadStatus = _WorkloadStatus()


# ---------------------------------------------------------------- projections


def _amount(resource: str, quantity: wire.Quantity, field: str, object_name: str) -> int:
    """The quantity. Raises SourceError MALFORMED, which names the field."""
    number = amount(resource, str(quantity))
    if number is None:
        detail = f"{field} of {resource} is no quantity: {str(quantity)[:QUOTED]!r}"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    return number


def _quotas(
    groups: list[_ResourceGroup] | None, object_name: str
) -> dict[QuotaResource, DeclaredQuota]:
    def most(resource: str, quantity: wire.Quantity | None, field: str) -> int | None:
        return None if quantity is None else _amount(resource, quantity, field, object_name)

    return {
        QuotaResource(flavor.name, each.name): DeclaredQuota(
            _amount(each.name, each.nominal_quota, "nominalQuota", object_name),
            most(each.name, each.borrowing_limit, "borrowingLimit"),
            most(each.name, each.lending_limit, "lendingLimit"),
        )
        for group in groups or ()
        for flavor in group.flavors or ()
        for each in flavor.resources or ()
    }


def _reserved(
    flavors: list[_FlavorUsage] | None, object_name: str
) -> dict[QuotaResource, Reserved]:
    return {
        QuotaResource(flavor.name, each.name): Reserved(
            _amount(each.name, each.total, "total", object_name),
            _amount(each.name, each.borrowed, "borrowed", object_name),
        )
        for flavor in flavors or ()
        for each in flavor.resources or ()
    }


def _inactive(conditions: Iterable[wire.Condition] | None) -> str:
    for each in conditions or ():
        if each.type == "Active" and each.status == "False":
            return one_line(f"{each.reason}: {each.message}")
    return ""


def _flavor(fields: _FlavorFields, _: str) -> ResourceFlavor:
    return ResourceFlavor(fields.metadata.name, fields.spec.node_labels or {})


def _cluster_queue(fields: _ClusterQueueFields, object_name: str) -> ClusterQueue:
    spec, status = fields.spec, fields.status
    return ClusterQueue(
        fields.metadata.name,
        spec.cohort_name or spec.cohort,
        _quotas(spec.resource_groups, object_name),
        _reserved(status.flavors_reservation, object_name),
        spec.queueing_strategy,
        spec.stop_policy or "",
        _inactive(status.conditions),
        status.pending_workloads,
        _other_than_default(spec.flavor_fungibility or _Fungibility()),
    )


_BORROW: Final = ("", "MayStopSearch", "Borrow")
_PREEMPT: Final = ("", "TryNextFlavor")
"""The defaults of ``flavorFungibility``, with the older names of v1beta1."""


def _other_than_default(fields: _Fungibility) -> str:
    borrow, preempt = fields.when_can_borrow or "", fields.when_can_preempt or ""
    preference = fields.preference or ""
    parts = (
        "" if borrow in _BORROW else f"whenCanBorrow {borrow}",
        "" if preempt in _PREEMPT else f"whenCanPreempt {preempt}",
        "" if preference in ("", "BorrowingOverPreemption") else f"preference {preference}",
    )
    return one_line(", ".join(filter(None, parts)))


def _local_queue(fields: _LocalQueueFields, object_name: str) -> LocalQueue:
    status = fields.status
    return LocalQueue(
        fields.metadata.namespace,
        fields.metadata.name,
        fields.spec.cluster_queue,
        _reserved(status.flavors_reservation, object_name),
        fields.spec.stop_policy or "",
        _inactive(status.conditions),
        status.pending_workloads,
    )


def _cohort(fields: _CohortFields, object_name: str) -> Cohort:
    spec = fields.spec
    return Cohort(
        fields.metadata.name, spec.parent_name, _quotas(spec.resource_groups, object_name)
    )


def _pod_set(fields: _PodSetFields) -> PodSet:
    spec = fields.template.spec
    containers = [(ContainerKind.APP, each) for each in spec.containers or ()]
    for each in spec.init_containers or ():
        always = each.restart_policy == "Always"
        containers.append((ContainerKind.SIDECAR if always else ContainerKind.INIT, each))
    requests = (
        (kind, {**(each.resources.limits or {}), **(each.resources.requests or {})})
        for kind, each in containers
    )
    return PodSet(
        fields.name,
        fields.count,
        tuple((kind, {name: str(of[name]) for name in of}) for kind, of in requests),
        (fields.topology_request and fields.topology_request.pod_set_group_name) or "",
    )


def _counted(fields: _WorkloadFields, object_name: str) -> dict[QuotaResource, int]:
    """What an admitted workload counts: pods that have ended (``reclaimablePods``) do not."""
    sums: dict[QuotaResource, int] = {}
    admission = fields.status.admission
    counts = {each.name: each.count for each in fields.spec.pod_sets or ()}
    ended = {each.name: each.count for each in fields.status.reclaimable_pods or ()}
    for each in (admission.pod_set_assignments or ()) if admission else ():
        pods = counts.get(each.name, 1) if each.count is None else each.count
        left = max(0, pods - ended.get(each.name, 0))
        for resource, quantity in (each.resource_usage or {}).items():
            key = QuotaResource((each.flavors or {}).get(resource, ""), resource)
            whole = _amount(resource, quantity, "resourceUsage", object_name)
            part = whole if left == pods else whole // pods * left
            sums[key] = sums.get(key, 0) + part
    return sums


def _considered(fields: _WorkloadFields, object_name: str) -> dict[str, dict[str, int]]:
    return {
        each.name: {
            resource: _amount(resource, quantity, "resourceRequests", object_name)
            for resource, quantity in (each.resources or {}).items()
        }
        for each in fields.status.resource_requests or ()
    }


def _workload(fields: _WorkloadFields, object_name: str) -> QueuedWorkload:
    meta, spec, status = fields.metadata, fields.spec, fields.status
    owners = meta.owner_references or ()
    return QueuedWorkload(
        meta.namespace,
        meta.name,
        meta.uid,
        tuple(owner.uid for owner in owners),
        next((f"{owner.kind} {owner.name}" for owner in owners), ""),
        spec.queue_name,
        spec.priority or 0,
        seconds(meta.creation_timestamp),
        spec.active is not False,
        tuple(map(_pod_set, spec.pod_sets or ())),
        _considered(fields, object_name),
        status.admission.cluster_queue if status.admission else "",
        _counted(fields, object_name),
        {
            each.type: WorkloadCondition(
                each.type,
                each.status == "True",
                each.reason,
                each.message,
                seconds(each.last_transition_time),
            )
            for each in status.conditions or ()
        },
        tuple(
            AdmissionCheck(each.name, each.state, each.message)
            for each in status.admission_checks or ()
        ),
        status.cluster_name or "",
        tuple(status.nominated_cluster_names or ()),
    )


RESOURCE_FLAVORS: Final = ApiKind(
    "ResourceFlavor",
    VERSION,
    "resourceflavors",
    Decoders.of(_FlavorFields),
    _flavor,
    namespaced=False,
    optional=True,
    older=_OLDER,
)
CLUSTER_QUEUES: Final = ApiKind(
    "ClusterQueue",
    VERSION,
    "clusterqueues",
    Decoders.of(_ClusterQueueFields),
    _cluster_queue,
    namespaced=False,
    optional=True,
    older=_OLDER,
)
LOCAL_QUEUES: Final = ApiKind(
    "LocalQueue",
    VERSION,
    "localqueues",
    Decoders.of(_LocalQueueFields),
    _local_queue,
    optional=True,
    older=_OLDER,
)
COHORTS: Final = ApiKind(
    "Cohort",
    VERSION,
    "cohorts",
    Decoders.of(_CohortFields),
    _cohort,
    namespaced=False,
    optional=True,
    older=_OLDER,
)
WORKLOADS: Final = ApiKind(
    "Workload",
    VERSION,
    "workloads",
    Decoders.of(_WorkloadFields),
    _workload,
    optional=True,
    older=_OLDER,
)

KUEUE_KINDS: Final[tuple[ApiKind[Any], ...]] = (
    RESOURCE_FLAVORS,
    COHORTS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    WORKLOADS,
)


# ---------------------------------------------------------------- the visibility API


class _PlaceFields(wire.ObjectFields, frozen=True):
    metadata: wire.Meta
    position_in_cluster_queue: wire.Count = 0


class QueuePlace(msgspec.Struct, frozen=True):
    """The place of a waiting workload in its ClusterQueue, from 1, as Kueue itself has it."""

    name: str
    place: int


def places_in(local_queue: str) -> ApiKind[QueuePlace]:
    """How the workloads that wait in a LocalQueue are listed, with their places."""
    return ApiKind(
        "PendingWorkload",
        f"visibility.{GROUP}/v1beta2",
        f"localqueues/{local_queue}/pendingworkloads",
        Decoders.of(_PlaceFields),
        lambda fields, _: QueuePlace(
            fields.metadata.name,
            fields.position_in_cluster_queue + 1,
        ),
        optional=True,
        older=(f"visibility.{GROUP}/v1beta1",),
    )
