"""The kinds of object that `vgpu doctor` alone reads, a row for each; pure.

They are apart from :mod:`vgpu.kube.kinds`, since the decoders would cost each program memory.
"""

from typing import Any, Final

from vgpu.kube import installation
from vgpu.kube.api_kind import ApiKind, Decoders
from vgpu.kube.kinds import LEASES, NODES

DEPLOYMENTS: Final = ApiKind(
    "Deployment",
    "apps/v1",
    "deployments",
    Decoders.of(installation.WorkloadFields),
    installation.project_deployment,
)
DAEMON_SETS: Final = ApiKind(
    "DaemonSet",
    "apps/v1",
    "daemonsets",
    Decoders.of(installation.WorkloadFields),
    installation.project_daemon_set,
)
MUTATING_WEBHOOKS: Final = ApiKind(
    "MutatingWebhookConfiguration",
    "admissionregistration.k8s.io/v1",
    "mutatingwebhookconfigurations",
    Decoders.of(installation.WebhooksFields),
    installation.project_webhooks,
    namespaced=False,
)

POLICIES: Final = ApiKind(
    "ValidatingAdmissionPolicy",
    "admissionregistration.k8s.io/v1",
    "validatingadmissionpolicies",
    Decoders.of(installation.PolicyFields),
    installation.project_policy,
    namespaced=False,
)
POLICY_BINDINGS: Final = ApiKind(
    "ValidatingAdmissionPolicyBinding",
    "admissionregistration.k8s.io/v1",
    "validatingadmissionpolicybindings",
    Decoders.of(installation.PolicyBindingFields),
    installation.project_policy_binding,
    namespaced=False,
)

INSTALLATION_KINDS: Final[tuple[ApiKind[Any], ...]] = (
    DEPLOYMENTS,
    DAEMON_SETS,
    MUTATING_WEBHOOKS,
    POLICIES,
    POLICY_BINDINGS,
)
"""All kinds that no other program reads."""

REPORTED_NODES: Final = NODES.read_as(
    Decoders.of(installation.ReportedNodeFields), installation.project_reported_node
)
"""Nodes with all their labels and their software."""

NODE_HEARTBEATS: Final = LEASES.read_as(
    Decoders.of(installation.HeartbeatFields), installation.project_heartbeat
)
"""The Leases of nodes, with the times of their renewal."""
