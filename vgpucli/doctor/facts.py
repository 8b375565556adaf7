"""What the checks are made from: the facts about a cluster; pure."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec

from vgpu.kube.api_kind import ApiKind
from vgpu.kube.installation import (
    AdmissionPolicy,
    AdmissionWebhook,
    NodeHeartbeat,
    PolicyBinding,
    ReportedNode,
    Workload,
)
from vgpu.model.objects import Node
from vgpu.quota.kueue_config import KueueConfig
from vgpu.schemes.name_evidence import ConfiguredNames
from vgpu.schemes.nvidia.resources import is_nvidia_resource
from vgpu.schemes.registry import UnitBytes, names_of, registry
from vgpucli.doctor.access_review import Right
from vgpucli.doctor.components import (
    HAMIS,
    NVIDIA,
    ComponentRole,
    InstalledComponent,
    components,
)
from vgpucli.doctor.model import Unread

_NAMED: Final = 3
"""Number of nodes that a text names."""


class SchedulerText(msgspec.Struct, frozen=True):
    """The text of a scheduler's configuration, and where it is; the text is never printed."""

    place: str
    text: str


class DeniedRight(msgspec.Struct, frozen=True):
    """A right that the ServiceAccount of a component does not have.

    ``need`` is what it is for; "" if the component cannot do without it.
    """

    component: str
    account: str
    right: Right
    need: str = ""


class ClusterFacts(msgspec.Struct, frozen=True, dict=True):
    """What is known of a cluster.

    Attributes:
        as_of: unix seconds of the objects.
        is_dump: whether they are of a dump: then clocks, rights and the server are not known.
        nodes, workloads, webhooks, heartbeats: the objects.
        policies, policy_bindings: ValidatingAdmissionPolicies and their bindings; None if they are
            not known.
        configs: configurations of schedulers.
        groups: the API's groups with their versions, such as ``resource.k8s.io/v1``; None if they
            are not known.
        custom_kinds: names of those CustomResourceDefinitions of sharing systems whose kinds the
            server has; None if they are not known.
        server_version: such as ``v1.34.4``; "" if it is not known.
        clock_ahead: seconds that this machine's clock is ahead of the server's; None if unknown.
        reviewed: number of rights that were asked for.
        denied: those that are missing.
        unread: what could not be read.
        nothing_read: whether not even one list could be read.
        malformed: names of objects that could not be decoded.
        named_configs: the names of resources in schedulers' ConfigMaps.
        node_units: the nodes with a register, with all extended resources in their capacity.
        kueue: Kueue's configuration; None if Kueue is not there, or it was not read.
        units: bytes of one unit of memory by the name of the system's row, as the caller has set
            them; a system whose unit is not set has none.
    """

    as_of: float
    is_dump: bool = False
    nodes: tuple[ReportedNode, ...] = ()
    workloads: tuple[Workload, ...] = ()
    webhooks: tuple[AdmissionWebhook, ...] = ()
    heartbeats: tuple[NodeHeartbeat, ...] = ()
    policies: tuple[AdmissionPolicy, ...] | None = None
    policy_bindings: tuple[PolicyBinding, ...] | None = None
    configs: tuple[SchedulerText, ...] = ()
    groups: frozenset[str] | None = None
    custom_kinds: frozenset[str] | None = None
    server_version: str = ""
    clock_ahead: float | None = None
    reviewed: int = 0
    denied: tuple[DeniedRight, ...] = ()
    unread: tuple[Unread, ...] = ()
    nothing_read: bool = False
    malformed: tuple[str, ...] = ()
    named_configs: tuple[ConfiguredNames, ...] = ()
    node_units: tuple[Node, ...] = ()
    units: UnitBytes = {}
    kueue: KueueConfig | None = None
    queued_by: Mapping[str, tuple[str, ...]] = {}

    @cached_property
    def components(self) -> tuple[InstalledComponent, ...]:
        """The known components."""
        return components(self.workloads)

    def has_read(self, kind: ApiKind[Any]) -> bool:
        """Whether the objects of this kind were read: only then is a missing one known."""
        return f"{kind.name}s" not in {each.what for each in self.unread}

    def of_role(self, role: ComponentRole) -> list[InstalledComponent]:
        """The components of a role that are meant to run."""
        return [each for each in self.components if each.row.role is role and each.workload.desired]

    @cached_property
    def systems(self) -> Mapping[str, frozenset[str]]:
        """The names of the systems' rows, by the node whose GPUs they share; such nodes only."""
        by_node = {node.node.name: node_systems(node) for node in self.nodes}
        return {name: systems for name, systems in by_node.items() if systems}

    @cached_property
    def gpu_nodes(self) -> tuple[ReportedNode, ...]:
        """The nodes with GPUs of a system."""
        return tuple(node for node in self.nodes if node.node.name in self.systems)

    def selected(self, *workloads: Workload) -> list[ReportedNode]:
        """The nodes on which all these may have a pod."""
        return [
            node for node in self.nodes if all(workload.selects(node) for workload in workloads)
        ]


def node_systems(node: ReportedNode) -> frozenset[str]:
    """The names of the systems' rows that have GPUs on the node; NVIDIA's plugin is one of them.

    HAMi's plugin registers NVIDIA's resource itself.
    """
    names = {row.name for row in registry().rows if row.has_devices(node.node)}
    for resource, number in node.node.capacity.items():
        of_hami = resource == names_of(HAMIS).count and HAMIS in names
        if number and is_nvidia_resource(resource) and not of_hami:
            names.add(NVIDIA)
    return frozenset(names)


def named(names: Iterable[str]) -> str:
    """The first names, and the number of the others."""
    names = sorted(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
