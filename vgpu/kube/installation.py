"""What is installed in a cluster, for `vgpu doctor`: workloads, admission, software of nodes.

Pure. Annotations, environment variables and certificates are not declared here, so they are never
decoded. Only the doctor reads these kinds; the other programs keep nothing of them.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from vgpu.kube import wire
from vgpu.kube.disruption import Requirement, requirements_of
from vgpu.kube.node_selector import has_labels, matches_a_term
from vgpu.kube.projection import project_node, seconds
from vgpu.model.objects import Node

_NO_TEXTS: Final[Mapping[str, str]] = {}

_KUBELET: Final = "kubelet"
"""The manager of the fields of a node's Lease in ``metadata.managedFields``."""


# ---------------------------------------------------------------- fields


class ContainerProgram(wire.Wire, frozen=True):
    """The program of a container."""

    name: str = ""
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None


class ConfigMapName(wire.Wire, frozen=True):
    """The ConfigMap of a volume."""

    name: str = ""


class VolumeFields(wire.Wire, frozen=True):
    """A volume, as far as a ConfigMap is in it."""

    config_map: ConfigMapName | None = None


class NodeAffinity(wire.Wire, frozen=True):
    """``nodeAffinity``, as far as it is required."""

    required: wire.NodeTerms | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(wire.Wire, frozen=True):
    """``affinity`` of a pod."""

    node_affinity: NodeAffinity | None = None


class TemplateSpec(wire.Wire, frozen=True):
    """The spec of a pod template."""

    service_account_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    containers: list[ContainerProgram] | None = None
    volumes: list[VolumeFields] | None = None


class PodTemplate(wire.Wire, frozen=True):
    """``spec.template``."""

    spec: TemplateSpec = TemplateSpec()


class WorkloadSpec(wire.Wire, frozen=True):
    """``spec`` of a Deployment or DaemonSet."""

    replicas: wire.Count | None = None
    template: PodTemplate = PodTemplate()


class WorkloadStatus(wire.Wire, frozen=True):
    """``status`` of a DaemonSet (the first two), or of a Deployment."""

    desired_number_scheduled: wire.Count | None = None
    number_ready: wire.Count | None = None
    ready_replicas: wire.Count | None = None


class PlainMeta(wire.Wire, frozen=True):
    """``metadata`` without annotations and labels."""

    name: str
    namespace: str = ""
    resource_version: str = ""


class WorkloadFields(wire.ObjectFields, frozen=True):
    """A Deployment or DaemonSet."""

    metadata: PlainMeta
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class ServiceName(wire.Wire, frozen=True):
    """The Service that a webhook calls."""

    namespace: str = ""
    name: str = ""


class WebhookClient(wire.Wire, frozen=True):
    """``clientConfig`` of a webhook."""

    service: ServiceName | None = None


class MatchConditionFields(wire.Wire, frozen=True):
    """A condition of a webhook in CEL, which is not judged."""

    name: str = ""


class WebhookRuleFields(wire.Wire, frozen=True):
    """A rule of a webhook: the requests that it gets."""

    operations: list[str] | None = None
    resources: list[str] | None = None


class WebhookFields(wire.Wire, frozen=True):
    """One webhook of a configuration; without a selector every object is selected."""

    name: str = ""
    failure_policy: str = ""
    client_config: WebhookClient = WebhookClient()
    namespace_selector: wire.SelectorFields = wire.SelectorFields()
    object_selector: wire.SelectorFields = wire.SelectorFields()
    match_conditions: list[MatchConditionFields] | None = None
    rules: list[WebhookRuleFields] | None = None


class WebhooksFields(wire.ObjectFields, frozen=True):
    """A MutatingWebhookConfiguration or ValidatingWebhookConfiguration."""

    metadata: PlainMeta
    webhooks: list[WebhookFields] | None = None


class PolicyRuleFields(wire.Wire, frozen=True):
    """A resource rule of a policy, as far as its operations are in it."""

    operations: list[str] | None = None


class PolicyMatchFields(wire.Wire, frozen=True):
    """``matchConstraints`` of a policy."""

    resource_rules: list[PolicyRuleFields] | None = None


class PolicyExpression(wire.Wire, frozen=True):
    """A condition, variable or validation of a policy."""

    expression: str = ""


class PolicySpec(wire.Wire, frozen=True):
    """``spec`` of a ValidatingAdmissionPolicy."""

    match_constraints: PolicyMatchFields = PolicyMatchFields()
    match_conditions: list[PolicyExpression] | None = None
    variables: list[PolicyExpression] | None = None
    validations: list[PolicyExpression] | None = None


class PolicyFields(wire.ObjectFields, frozen=True):
    """A ValidatingAdmissionPolicy."""

    metadata: PlainMeta
    spec: PolicySpec = PolicySpec()


class PolicyBindingSpec(wire.Wire, frozen=True):
    """``spec`` of a ValidatingAdmissionPolicyBinding."""

    policy_name: str = ""
    validation_actions: list[str] | None = None


class PolicyBindingFields(wire.ObjectFields, frozen=True):
    """A ValidatingAdmissionPolicyBinding."""

    metadata: PlainMeta
    spec: PolicyBindingSpec = PolicyBindingSpec()


class NodeInfo(wire.Wire, frozen=True):
    """``status.nodeInfo`` of a node."""

    kubelet_version: str = ""
    container_runtime_version: str = ""


class ReportedStatus(wire.NodeStatus, frozen=True):
    """``status`` of a node with its software."""

    node_info: NodeInfo = NodeInfo()


class ReportedNodeFields(wire.ObjectFields, frozen=True):
    """A node with its software."""

    metadata: wire.Meta
    spec: wire.NodeSpec = wire.NodeSpec()
    status: ReportedStatus = ReportedStatus()


class ManagedMeta(PlainMeta, frozen=True):
    """``metadata`` with the managers of the fields."""

    managed_fields: list[wire.ManagedFields] | None = None


class HeartbeatFields(wire.ObjectFields, frozen=True):
    """The Lease of a node, in the namespace kube-node-lease."""

    metadata: ManagedMeta
    spec: wire.LeaseSpec = wire.LeaseSpec()


# ---------------------------------------------------------------- values


class WorkloadContainer(msgspec.Struct, frozen=True):
    """A container of a workload: its image, and its command line."""

    name: str
    image: str
    words: tuple[str, ...] = ()


class Workload(msgspec.Struct, frozen=True):
    """A Deployment or DaemonSet, or a pod that neither these nor another controller have created.

    Attributes:
        kind, namespace, name: its identity.
        containers: its containers; ``words`` may have secrets and is never printed.
        desired, ready: number of pods.
        service_account: the ServiceAccount of its pods.
        node_selector: labels that a node for its pods has.
        node_terms: the terms of the required node affinity; None if there is none.
        config_maps: the ConfigMaps that its pods mount.
    """

    kind: str
    namespace: str
    name: str
    containers: tuple[WorkloadContainer, ...] = ()
    desired: int = 0
    ready: int = 0
    service_account: str = ""
    node_selector: Mapping[str, str] = {}
    node_terms: tuple[wire.NodeTerm, ...] | None = None
    config_maps: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Its name for people."""
        return f"{self.kind} {self.namespace}/{self.name}"

    def selects(self, node: "ReportedNode") -> bool:
        """Whether its pods may run on the node; taints are not known here."""
        return has_labels(self.node_selector, node.labels) and (
            self.node_terms is None or matches_a_term(self.node_terms, node.labels, node.node.name)
        )


class AdmissionWebhook(msgspec.Struct, frozen=True):
    """A webhook for admission: its configuration, and the Service that it calls.

    ``of_namespace`` and ``of_object`` are what the labels of an object and of its Namespace have to
    meet; ``conditions`` are the names of further ones. ``created`` are the resources whose creation
    it gets, such as ``pods``.
    """

    configuration: str
    name: str
    failure_policy: str = ""
    namespace: str = ""
    service: str = ""
    of_namespace: tuple[Requirement, ...] = ()
    of_object: tuple[Requirement, ...] = ()
    conditions: tuple[str, ...] = ()
    created: tuple[str, ...] = ()


class AdmissionPolicy(msgspec.Struct, frozen=True):
    """A ValidatingAdmissionPolicy, with its expressions in CEL.

    Attributes:
        name: its name.
        operations: what it looks at, such as ``UPDATE``.
        conditions: the requests at which it looks.
        rules: its variables and validations.
    """

    name: str
    operations: frozenset[str] = frozenset()
    conditions: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


class PolicyBinding(msgspec.Struct, frozen=True):
    """What puts a policy in force, and whether it then refuses requests."""

    policy: str
    denies: bool = False


class ReportedNode(msgspec.Struct, frozen=True):
    """A node, all its labels, and its software as its kubelet reports it.

    ``runtime`` is such as ``containerd://1.7.18``.
    """

    node: Node
    labels: Mapping[str, str] = {}
    kubelet: str = ""
    runtime: str = ""


class NodeHeartbeat(msgspec.Struct, frozen=True):
    """A renewal of a node's Lease, in unix seconds.

    Attributes:
        node: the node.
        renewed_at: the time by the node's clock.
        written_at: the time by the API server's clock, in whole seconds; None if unknown.
    """

    node: str
    renewed_at: float | None = None
    written_at: float | None = None


# ---------------------------------------------------------------- projections


def project_deployment(workload: WorkloadFields, _: str) -> Workload:
    """A Deployment; without ``replicas`` it has one pod."""
    desired = workload.spec.replicas
    ready = workload.status.ready_replicas or 0
    return _of_template("Deployment", workload, 1 if desired is None else desired, ready)


def project_daemon_set(workload: WorkloadFields, _: str) -> Workload:
    """A DaemonSet."""
    status = workload.status
    desired, ready = status.desired_number_scheduled or 0, status.number_ready or 0
    return _of_template("DaemonSet", workload, desired, ready)


def _of_template(kind: str, workload: WorkloadFields, desired: int, ready: int) -> Workload:
    return workload_of(kind, workload.metadata, workload.spec.template.spec, desired, ready)


def workload_of(
    kind: str, metadata: PlainMeta, spec: TemplateSpec, desired: int, ready: int
) -> Workload:
    """The workload whose pods have this spec."""
    return Workload(
        kind,
        metadata.namespace,
        metadata.name,
        tuple(
            WorkloadContainer(
                container.name,
                container.image,
                (*(container.command or ()), *(container.args or ())),
            )
            for container in spec.containers or ()
        ),
        desired,
        ready,
        spec.service_account_name or "default",
        spec.node_selector or _NO_TEXTS,
        _terms(spec.affinity),
        tuple(
            volume.config_map.name for volume in spec.volumes or () if volume.config_map is not None
        ),
    )


def _terms(affinity: Affinity | None) -> tuple[wire.NodeTerm, ...] | None:
    required = affinity and affinity.node_affinity and affinity.node_affinity.required
    return tuple(required.node_selector_terms or ()) if required else None


def project_webhooks(configuration: WebhooksFields, _: str) -> tuple[AdmissionWebhook, ...]:
    """The webhooks of a configuration."""
    return tuple(
        AdmissionWebhook(
            configuration.metadata.name,
            webhook.name,
            webhook.failure_policy,
            "" if service is None else service.namespace,
            "" if service is None else service.name,
            of_namespace=requirements_of(webhook.namespace_selector),
            of_object=requirements_of(webhook.object_selector),
            conditions=tuple(each.name for each in webhook.match_conditions or ()),
            created=tuple(
                resource
                for rule in webhook.rules or ()
                if {"*", "CREATE"}.intersection(rule.operations or ())
                for resource in rule.resources or ()
            ),
        )
        for webhook in configuration.webhooks or ()
        for service in (webhook.client_config.service,)
    )


def project_policy(policy: PolicyFields, _: str) -> AdmissionPolicy:
    """A policy."""
    spec = policy.spec
    rules = spec.match_constraints.resource_rules or ()
    return AdmissionPolicy(
        policy.metadata.name,
        frozenset(operation for rule in rules for operation in rule.operations or ()),
        tuple(each.expression for each in spec.match_conditions or ()),
        tuple(each.expression for each in (*(spec.variables or ()), *(spec.validations or ()))),
    )


def project_policy_binding(binding: PolicyBindingFields, _: str) -> PolicyBinding:
    """A binding of a policy."""
    spec = binding.spec
    return PolicyBinding(spec.policy_name, "Deny" in (spec.validation_actions or ()))


def project_reported_node(node: ReportedNodeFields, object_name: str) -> ReportedNode:
    """A node. Errors are those of :func:`vgpu.kube.projection.project_node`."""
    info = node.status.node_info
    return ReportedNode(
        project_node(
            wire.NodeFields(
                kind=node.kind, metadata=node.metadata, spec=node.spec, status=node.status
            ),
            object_name,
        ),
        node.metadata.labels or _NO_TEXTS,
        info.kubelet_version,
        info.container_runtime_version,
    )


def project_heartbeat(lease: HeartbeatFields, _: str) -> NodeHeartbeat:
    """The renewal of a node's Lease."""
    written = [
        field.time
        for field in lease.metadata.managed_fields or ()
        if field.manager == _KUBELET and field.time
    ]
    return NodeHeartbeat(
        lease.metadata.name,
        seconds(lease.spec.renew_time),
        max(filter(None, map(_time, written)), default=None),
    )


def _time(text: str) -> float | None:
    """RFC 3339 as unix seconds; None for another text."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.timestamp() if time.tzinfo else None
