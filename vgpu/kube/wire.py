"""The fields of Kubernetes' and KubeShare's objects that are read, by their names in the JSON.

Fields that are not declared here are skipped while decoding and cost next to nothing. Null stands
for nothing in every field (:mod:`vgpu.model.go_json`). A field that Go itself writes as null has
null in its type, so that it is decoded in one step. Formats: the Kubernetes API, v1;
``kubeshare.nthu/v1``.
"""

from datetime import datetime
from typing import Annotated, Generic, TypeVar

import msgspec

from vgpu.model.taints import Taint

_Fields = TypeVar("_Fields")

Time = Annotated[datetime, msgspec.Meta(tz=True)] | None
"""RFC 3339."""

Count = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""Go's int32."""

Quantity = str | int | float
Quantities = dict[str, Quantity] | None


class Wire(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The base of all these structs."""


class ObjectFields(Wire, frozen=True, kw_only=True):
    """The fields of all objects, without metadata, which differs."""

    kind: str = ""


class OwnerFields(Wire, frozen=True):
    """One of ``metadata.ownerReferences``."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    api_version: str = ""


class Meta(Wire, frozen=True):
    """``metadata`` of anything."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class ManagedFields(Wire, frozen=True):
    """One of ``metadata.managedFields``: who wrote a part of the object last, and when.

    Its time is read separately: an object's creator may send a text that is no :data:`Time`.
    """

    manager: str = ""
    subresource: str = ""
    time: str | None = None


class PodMeta(Meta, frozen=True, kw_only=True):
    """``metadata`` of a pod, which has an identity.

    Its :class:`ManagedFields`, a third of most pods, are decoded later, and only where they count.
    """

    namespace: str
    uid: str
    creation_timestamp: Time = None
    deletion_timestamp: Time = None
    deletion_grace_period_seconds: int | None = None
    owner_references: list[OwnerFields] | None = None
    finalizers: list[str] | None = None
    managed_fields: msgspec.Raw = msgspec.Raw(b"null")


class Resources(Wire, frozen=True):
    """``resources`` of a container."""

    limits: Quantities = None
    requests: Quantities = None


class EnvFields(Wire, frozen=True):
    """One of a container's ``env``; a value from elsewhere is not in the spec."""

    name: str = ""
    value: str = ""


class ContainerFields(Wire, frozen=True):
    """A container of a pod's spec.

    Its :class:`EnvFields`, most of many pods, are decoded later, and only where one is read.
    """

    name: str = ""
    resources: Resources = Resources()
    restart_policy: str | None = None
    env: msgspec.Raw = msgspec.Raw(b"null")


class SchedulingGate(Wire, frozen=True):
    """One of ``spec.schedulingGates``."""

    name: str = ""


class PodResourceClaim(Wire, frozen=True):
    """One of ``spec.resourceClaims`` of a pod, or of ``status.resourceClaimStatuses``."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Wire, frozen=True):
    """``spec`` of a pod. Its tolerations are decoded later, and only where they count."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: Count | None = None
    preemption_policy: str | None = None
    restart_policy: str | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    resource_claims: list[PodResourceClaim] | None = None
    containers: list[ContainerFields] | None = None
    init_containers: list[ContainerFields] | None = None
    tolerations: msgspec.Raw = msgspec.Raw(b"null")


class Condition(Wire, frozen=True):
    """A condition of a pod or node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: Time = None


class StateDetail(Wire, frozen=True):
    """One of a container's states; the empty ones are absent."""

    reason: str = ""
    message: str = ""
    started_at: Time = None
    finished_at: Time = None


class ContainerStateFields(Wire, frozen=True):
    """A container's state: at most one of these; none means waiting to Kubernetes."""

    waiting: StateDetail | None = None
    running: StateDetail | None = None
    terminated: StateDetail | None = None


class StatusFields(Wire, frozen=True):
    """A container's status."""

    name: str = ""
    container_id: str = msgspec.field(name="containerID", default="")
    state: ContainerStateFields = ContainerStateFields()
    last_state: ContainerStateFields = ContainerStateFields()
    restart_count: Count = 0


class SuppliedResource(Wire, frozen=True):
    """An extended resource of a container that a ResourceClaim supplies."""

    container_name: str = ""
    resource_name: str = ""


class SuppliedResources(Wire, frozen=True):
    """``status.extendedResourceClaimStatus`` of a pod: what a ResourceClaim supplies."""

    request_mappings: list[SuppliedResource] | None = None
    resource_claim_name: str = ""


class PodStatusFields(Wire, frozen=True):
    """``status`` of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: Time = None
    nominated_node_name: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[StatusFields] | None = None
    init_container_statuses: list[StatusFields] | None = None
    ephemeral_container_statuses: list[StatusFields] | None = None
    resource_claim_statuses: list[PodResourceClaim] | None = None
    extended_resource_claim_status: SuppliedResources | None = None


class PodFields(ObjectFields, frozen=True):
    """A pod. Its :class:`PodStatusFields` is decoded later, and only if the pod is kept."""

    metadata: PodMeta
    spec: PodSpec = PodSpec()
    status: msgspec.Raw = msgspec.Raw(b"{}")


class RealPod(Wire, frozen=True):
    """The metadata of the pod that KubeShare made for a SharePod."""

    uid: str = ""


class ConditionReason(Wire, frozen=True):
    """A condition's type and reason."""

    type: str = ""
    reason: str = ""


class SharePodStatus(Wire, frozen=True, rename="pascal"):
    """``status`` of a SharePod; its Go fields have no JSON names of their own.

    ``conditions`` are our controllers', and not KubeShare's.
    """

    pod_status: PodStatusFields | None = None
    pod_object_meta: RealPod | None = None
    bound_device_id: str = msgspec.field(name="BoundDeviceID", default="")
    pod_manager_port: Count = 0
    conditions: list[ConditionReason] | None = msgspec.field(name="conditions", default=None)


class SharePodFields(ObjectFields, frozen=True):
    """A SharePod: a pod spec, and its pod's status a level deeper."""

    metadata: PodMeta
    spec: PodSpec = PodSpec()
    status: SharePodStatus = SharePodStatus()


class Address(Wire, frozen=True):
    """One of a node's addresses."""

    type: str = ""
    address: str = ""


class NodeSpec(Wire, frozen=True):
    """``spec`` of a node."""

    unschedulable: bool | None = None
    taints: tuple[Taint, ...] | None = None


class NodeStatus(Wire, frozen=True):
    """``status`` of a node."""

    capacity: Quantities = None
    allocatable: Quantities = None
    addresses: list[Address] | None = None
    conditions: list[Condition] | None = None


class NodeFields(ObjectFields, frozen=True):
    """A node."""

    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NamespaceFields(ObjectFields, frozen=True):
    """A Namespace."""

    metadata: Meta


class QuotaSpec(Wire, frozen=True):
    """``spec`` of a ResourceQuota; its scopes are only known to be there or not."""

    hard: Quantities = None
    scopes: list[str] | None = None
    scope_selector: msgspec.Raw = msgspec.Raw(b"null")


class QuotaStatus(Wire, frozen=True):
    """``status`` of a ResourceQuota."""

    hard: Quantities = None
    used: Quantities = None


class QuotaFields(ObjectFields, frozen=True):
    """A ResourceQuota."""

    metadata: Meta
    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()


class DeviceRequestAllocationResult(Wire, frozen=True):
    """One of ``status.allocation.devices.results`` of a ResourceClaim."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: Quantities = None


class DeviceAllocationResult(Wire, frozen=True):
    """``status.allocation.devices`` of a ResourceClaim."""

    results: list[DeviceRequestAllocationResult] | None = None


class RequirementFields(Wire, frozen=True):
    """One of a selector's ``matchExpressions``."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeTerm(Wire, frozen=True):
    """One of ``nodeSelectorTerms``."""

    match_expressions: list[RequirementFields] | None = None
    match_fields: list[RequirementFields] | None = None


class NodeTerms(Wire, frozen=True):
    """Terms of which a node has to meet one: a NodeSelector."""

    node_selector_terms: list[NodeTerm] | None = None


class AllocationResult(Wire, frozen=True):
    """``status.allocation`` of a ResourceClaim."""

    devices: DeviceAllocationResult | None = None
    node_selector: NodeTerms | None = None


class ResourceClaimConsumerReference(Wire, frozen=True):
    """One of ``status.reservedFor`` of a ResourceClaim."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Wire, frozen=True):
    """``status`` of a ResourceClaim (``resource.k8s.io/v1``, alike in v1beta2 and v1beta1)."""

    allocation: AllocationResult | None = None
    reserved_for: list[ResourceClaimConsumerReference] | None = None


class DeviceRequestFields(Wire, frozen=True):
    """One of ``spec.devices.requests`` of a ResourceClaim.

    Up to v1beta1 the request has the fields of ``exactly`` itself.
    """

    device_class_name: str = ""
    selectors: list[msgspec.Raw] | None = None
    exactly: "DeviceRequestFields | None" = None
    first_available: "list[DeviceRequestFields] | None" = None


class DeviceClaimFields(Wire, frozen=True):
    """``spec.devices`` of a ResourceClaim."""

    requests: list[DeviceRequestFields] | None = None


class ResourceClaimSpec(Wire, frozen=True):
    """``spec`` of a ResourceClaim."""

    devices: DeviceClaimFields = DeviceClaimFields()


class ResourceClaimFields(ObjectFields, frozen=True):
    """A ResourceClaim."""

    metadata: Meta
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class AttributeFields(Wire, frozen=True):
    """An attribute of a device; attributes of other types are not read."""

    string: str | None = None


class CapacityFields(Wire, frozen=True):
    """A capacity of a device."""

    value: Quantity = "0"


class DeviceFields(Wire, frozen=True):
    """One of ``spec.devices`` of a ResourceSlice; ``basic`` has its details in v1beta1."""

    name: str = ""
    attributes: dict[str, AttributeFields] | None = None
    capacity: dict[str, CapacityFields] | None = None
    basic: "DeviceFields | None" = None


class PoolFields(Wire, frozen=True):
    """``spec.pool`` of a ResourceSlice."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(Wire, frozen=True):
    """``spec`` of a ResourceSlice."""

    driver: str = ""
    pool: PoolFields = PoolFields()
    node_name: str = ""
    devices: list[DeviceFields] | None = None


class SliceFields(ObjectFields, frozen=True):
    """A ResourceSlice (``resource.k8s.io/v1``, alike in v1beta2)."""

    metadata: Meta
    spec: SliceSpec = SliceSpec()


class LeaseSpec(Wire, frozen=True):
    """``spec`` of a Lease."""

    holder_identity: str | None = None
    lease_duration_seconds: Count | None = None
    acquire_time: Time = None
    renew_time: Time = None
    lease_transitions: Count | None = None


class LeaseFields(ObjectFields, frozen=True):
    """A Lease."""

    metadata: Meta
    spec: LeaseSpec = LeaseSpec()


class SelectorFields(Wire, frozen=True):
    """A selector of labels."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[RequirementFields] | None = None


class BudgetSpec(Wire, frozen=True):
    """``spec`` of a PodDisruptionBudget."""

    selector: SelectorFields | None = None


class BudgetStatus(Wire, frozen=True):
    """``status`` of a PodDisruptionBudget."""

    disruptions_allowed: Count = 0
    disrupted_pods: dict[str, msgspec.Raw] | None = None


class BudgetFields(ObjectFields, frozen=True):
    """A PodDisruptionBudget."""

    metadata: Meta
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


class EventFields(ObjectFields, frozen=True):
    """A core Event; null for a count is none."""

    metadata: Meta
    count: Count | None = None


class ConfigMapFields(ObjectFields, frozen=True):
    """A ConfigMap."""

    metadata: Meta
    data: dict[str, str] | None = None


class ListMeta(Wire, frozen=True):
    """``metadata`` of a list."""

    continue_token: str = msgspec.field(name="continue", default="")
    resource_version: str = ""


class ObjectList(Wire, Generic[_Fields], frozen=True):
    """A page of a list."""

    items: list[_Fields] | None
    metadata: ListMeta = ListMeta()


class AnyList(Wire, frozen=True):
    """A list of anything; Go writes an empty one as null."""

    kind: str = ""
    items: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET
    metadata: ListMeta = ListMeta()

    @property
    def listed(self) -> list[msgspec.Raw] | None:
        """The items; None for what is no list."""
        return None if self.items is msgspec.UNSET else self.items or []


class AnyMeta(Wire, frozen=True):
    """``metadata`` of an object of any kind."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class AnyObject(Wire, frozen=True):
    """The fields that identify any object."""

    kind: str = ""
    api_version: str = ""
    metadata: AnyMeta = AnyMeta()


class RawFields(Wire, frozen=True):
    """The fields that identify an object of a known kind."""

    metadata: Meta


class ServerVersion(Wire, frozen=True):
    """The answer to /version."""

    git_version: str = ""


class GroupVersion(Wire, frozen=True):
    """One version of a group of the API."""

    group_version: str = ""


class ApiGroup(Wire, frozen=True):
    """A group of the API."""

    versions: list[GroupVersion] | None = None


class ApiGroups(Wire, frozen=True):
    """The answer to /apis."""

    groups: list[ApiGroup] | None = None


class ApiResource(Wire, frozen=True):
    """A kind in a version of a group; ``name`` is its plural, or that with a subresource."""

    name: str = ""


class ApiResources(Wire, frozen=True):
    """The answer to ``/apis/<group>/<version>``."""

    resources: list[ApiResource] | None = None
