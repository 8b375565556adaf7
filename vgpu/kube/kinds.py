"""The kinds of object that the programs use at the API server, a row for each; pure.

Paths, reads, watches, writes and the simulator take a row. A kind that a program needs requires
only a row here.
"""

from collections.abc import Mapping
from typing import Any, Final

from vgpu.kube import wire
from vgpu.kube.api_kind import ApiKind, Decoders
from vgpu.kube.disruption import project_budget, project_labels
from vgpu.kube.dra_objects import project_resource_claim, project_resource_slice
from vgpu.kube.pod_projection import project_pod, project_share_pod, wire_shares_gpus
from vgpu.kube.projection import (
    project_annotations,
    project_capacity,
    project_config_map,
    project_device_config,
    project_event_count,
    project_lease,
    project_marks,
    project_named_config_map,
    project_namespace,
    project_node,
    project_node_units,
    project_resource_quota,
)
from vgpu.model.objects import NODE_KIND, POD_KIND, SHARE_POD_KIND

PODS: Final = ApiKind(
    POD_KIND,
    "v1",
    "pods",
    Decoders.of(wire.PodFields),
    project_pod,
    shares_gpus=wire_shares_gpus,
)
SHARE_PODS: Final = ApiKind(
    SHARE_POD_KIND,
    "kubeshare.nthu/v1",
    "sharepods",
    Decoders.of(wire.SharePodFields),
    project_share_pod,
    optional=True,
)
NODES: Final = ApiKind(
    NODE_KIND, "v1", "nodes", Decoders.of(wire.NodeFields), project_node, namespaced=False
)
CONFIG_MAPS: Final = ApiKind(
    "ConfigMap", "v1", "configmaps", Decoders.of(wire.ConfigMapFields), project_config_map
)
EVENTS: Final = ApiKind("Event", "v1", "events", Decoders.of(wire.EventFields), project_event_count)
LEASES: Final = ApiKind(
    "Lease", "coordination.k8s.io/v1", "leases", Decoders.of(wire.LeaseFields), project_lease
)
BUDGETS: Final = ApiKind(
    "PodDisruptionBudget",
    "policy/v1",
    "poddisruptionbudgets",
    Decoders.of(wire.BudgetFields),
    project_budget,
)

NAMESPACES: Final = ApiKind(
    "Namespace",
    "v1",
    "namespaces",
    Decoders.of(wire.NamespaceFields),
    project_namespace,
    namespaced=False,
)

RESOURCE_QUOTAS: Final = ApiKind(
    "ResourceQuota",
    "v1",
    "resourcequotas",
    Decoders.of(wire.QuotaFields),
    project_resource_quota,
)

RESOURCE_API: Final = "resource.k8s.io"
"""The API group of dynamic resource allocation."""

_OLDER: Final = (f"{RESOURCE_API}/v1beta2", f"{RESOURCE_API}/v1beta1")

RESOURCE_CLAIMS: Final = ApiKind(
    "ResourceClaim",
    f"{RESOURCE_API}/v1",
    "resourceclaims",
    Decoders.of(wire.ResourceClaimFields),
    project_resource_claim,
    optional=True,
    older=_OLDER,
)
RESOURCE_SLICES: Final = ApiKind(
    "ResourceSlice",
    f"{RESOURCE_API}/v1",
    "resourceslices",
    Decoders.of(wire.SliceFields),
    project_resource_slice,
    namespaced=False,
    optional=True,
    older=_OLDER,
)

KINDS: Final[tuple[ApiKind[Any], ...]] = (
    PODS,
    NODES,
    NAMESPACES,
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    SHARE_PODS,
    BUDGETS,
    RESOURCE_QUOTAS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
"""All kinds that the programs use."""

API_VERSIONS: Final[Mapping[str, str]] = {kind.name: kind.api_version for kind in KINDS}
"""The API version of each kind, since other groups have a Node or a Pod, too."""

NAMED_CONFIG_MAPS: Final = CONFIG_MAPS.read_as(CONFIG_MAPS.decoders, project_named_config_map)
"""ConfigMaps with their names, for lists and watches."""

POD_MARKS: Final = PODS.read_as(PODS.decoders, project_marks)
NAMESPACE_MARKS: Final = NAMESPACES.read_as(NAMESPACES.decoders, project_marks)
"""Pods and Namespaces, of which only the annotations and labels are kept, all of them."""

POD_LABELS: Final = PODS.read_as(PODS.decoders, project_labels)
"""Pods, of which only the UID and the labels are kept, all of them."""

LEASE_ANNOTATIONS: Final = LEASES.read_as(LEASES.decoders, project_annotations)
"""Leases, of which only the annotations are kept."""

DEVICE_CONFIGS: Final = CONFIG_MAPS.read_as(CONFIG_MAPS.decoders, project_device_config)
"""ConfigMaps, of which only the place and a scheduler's names of resources are kept."""

NODE_UNITS: Final = NODES.read_as(NODES.decoders, project_node_units)
"""Nodes with all extended resources in their capacity, whoever's they are."""

NODE_CAPACITIES: Final = NODES.read_as(NODES.decoders, project_capacity)
"""Nodes, of which only the whole capacity is kept, as it is written."""
