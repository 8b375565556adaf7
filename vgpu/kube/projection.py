"""Nodes, Leases, ConfigMaps and Events of the API server reduced to what is kept; pure.

Strings that repeat from object to object are kept once. :mod:`vgpu.kube.pod_projection` has pods.
"""

import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from vgpu.kube import wire
from vgpu.kube.kept_keys import kept_keys
from vgpu.kube.quantities import QUOTED, is_extended, units, whole
from vgpu.model.objects import Lease, Namespace, Node, ResourceQuota
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.kai.keys import RESERVATION
from vgpu.schemes.name_evidence import CONFIG_KEY

_NOTHING: Final[Mapping[str, Any]] = {}

QUOTA_PREFIXES: Final = ("requests.", "limits.")
"""Prefixes of a ResourceQuota's entries; Kubernetes counts extended resources by the first only."""


def project_node(node: wire.NodeFields, object_name: str) -> Node:
    """A node. Raises SourceError MALFORMED for an extended resource that is no whole number."""
    meta, status = node.metadata, node.status
    capacity, broken = units(status.capacity or _NOTHING)
    allocatable, also_broken = units(status.allocatable or _NOTHING)
    for name, text in (*broken.items(), *also_broken.items()):
        detail = f"{name[:QUOTED]}: not a whole number: {text!r}"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    if status.allocatable is None:  # the API server's default
        allocatable = capacity
    elif capacity:  # what the kubelet does not report has no device that it can allocate
        allocatable = {**dict.fromkeys(capacity, 0), **allocatable}
    names = (*(status.capacity or ()), *(status.allocatable or ()))
    internal = (a.address for a in status.addresses or () if a.type == "InternalIP")
    return Node(
        name=sys.intern(meta.name),
        resource_version=meta.resource_version,
        annotations=kept(meta.annotations),
        labels=kept(meta.labels),
        capacity=capacity,
        allocatable=allocatable,
        address=next(internal, ""),
        ready=any(c.type == "Ready" and c.status == "True" for c in status.conditions or ()),
        unschedulable=bool(node.spec.unschedulable),
        uid=meta.uid,
        taints=node.spec.taints or (),
        others=_other_extended(names),
    )


_NO_NAMES: Final[frozenset[str]] = frozenset()


def _other_extended(names: Iterable[str]) -> frozenset[str]:
    """The extended resources that are of no sharing system by their names."""
    is_resource = kept_keys().is_resource
    others = {sys.intern(name) for name in names if is_extended(name) and not is_resource(name)}
    return frozenset(others) if others else _NO_NAMES


def project_namespace(namespace: wire.NamespaceFields, _: str) -> Namespace:
    """A Namespace."""
    meta = namespace.metadata
    return Namespace(
        meta.name,
        meta.labels or _NOTHING,
        kept(meta.annotations),
        meta.uid,
        meta.resource_version,
    )


def project_resource_quota(quota: wire.QuotaFields, _: str) -> ResourceQuota:
    """A ResourceQuota with its entries about shared GPUs."""
    spec = quota.spec
    return ResourceQuota(
        sys.intern(quota.metadata.namespace),
        quota.metadata.name,
        _gpu_entries(spec.hard),
        _gpu_entries(quota.status.used),
        scoped=bool(spec.scopes) or bytes(spec.scope_selector) not in (b"null", b"{}"),
        annotations=kept(quota.metadata.annotations),
    )


def _gpu_entries(entries: wire.Quantities) -> Mapping[str, str]:
    is_resource = kept_keys().is_resource
    return {
        name: str(quantity)
        for name, quantity in (entries or _NOTHING).items()
        if any(map(is_resource, (name.removeprefix(prefix) for prefix in QUOTA_PREFIXES)))
    }


def project_lease(lease: wire.LeaseFields, _: str) -> Lease:
    """A Lease."""
    meta, spec = lease.metadata, lease.spec
    return Lease(
        namespace=meta.namespace,
        name=meta.name,
        resource_version=meta.resource_version,
        holder=spec.holder_identity or "",
        duration_seconds=spec.lease_duration_seconds or 0,
        acquired_at=seconds(spec.acquire_time),
        renewed_at=seconds(spec.renew_time),
        transitions=spec.lease_transitions or 0,
    )


def project_annotations(lease: wire.LeaseFields, _: str) -> tuple[str, Mapping[str, str]]:
    """The resource version of an object, and all its annotations."""
    return lease.metadata.resource_version, lease.metadata.annotations or _NOTHING


def project_marks(
    object_: wire.PodFields | wire.NamespaceFields, _: str
) -> tuple[str, Mapping[str, str]]:
    """An object as ``<namespace>/<name>``, with its annotations and labels; labels come first."""
    meta = object_.metadata
    marks = {**(meta.annotations or _NOTHING), **(meta.labels or _NOTHING)}
    return f"{meta.namespace}/{meta.name}", marks


def project_capacity(node: wire.NodeFields, _: str) -> Mapping[str, str]:
    """A node's capacity with every resource, as it is written."""
    return {name: str(quantity) for name, quantity in (node.status.capacity or {}).items()}


def project_node_units(node: wire.NodeFields, _: str) -> Node:
    """A node with every extended resource in its capacity; unreadable quantities are left out."""
    numbers = (
        (name, whole(str(quantity)))
        for name, quantity in (node.status.capacity or _NOTHING).items()
        if is_extended(name)
    )
    return Node(
        node.metadata.name,
        annotations=kept(node.metadata.annotations),
        capacity={name: number for name, number in numbers if number is not None},
    )


def project_device_config(config: wire.ConfigMapFields, _: str) -> tuple[str, str]:
    """Namespace and name of a ConfigMap, and its text of ``device-config.yaml``; "" without one."""
    meta = config.metadata
    return f"{meta.namespace}/{meta.name}", (config.data or {}).get(CONFIG_KEY, "")


def project_config_map(config: wire.ConfigMapFields, _: str) -> tuple[Mapping[str, str], str]:
    """The data of a ConfigMap, and its resource version."""
    return config.data or {}, config.metadata.resource_version


def project_named_config_map(config: wire.ConfigMapFields, _: str) -> tuple[str, Mapping[str, str]]:
    """The name and the data of a ConfigMap."""
    return config.metadata.name, config.data or {}


def project_event_count(event: wire.EventFields, _: str) -> int:
    """Number of times that a core Event was reported."""
    return event.count or 0


def kept(texts: Mapping[str, str] | None) -> Mapping[str, str]:
    """The annotations or labels that are kept."""
    is_kept = kept_keys().is_kept
    kept_texts = {
        sys.intern(key): text
        for key, text in (texts or _NOTHING).items()
        if is_kept(key) or (key, text) == RESERVATION
    }
    return kept_texts or _NOTHING


def seconds(time: datetime | None) -> float | None:
    """Unix seconds."""
    return None if time is None else time.timestamp()
