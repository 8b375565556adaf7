"""The rights that the components of vgpu need, as their manifests grant them; pure.

A test compares the table with the manifests.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from vgpucli.doctor.access_review import Right
from vgpucli.doctor.components import ComponentRole, InstalledComponent

OWN: Final = "(own)"
"""Stands for the namespace in which a component keeps what is its own."""

SYSTEM: Final = "kube-system"

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Rights(msgspec.Struct, frozen=True):
    """Verbs on a resource.

    ``need`` is what they are for; "" if the component cannot do without them. ``flag`` is the flag
    without which they are not needed.
    """

    resource: str
    verbs: tuple[str, ...]
    group: str = ""
    namespace: str = ""
    name: str = ""
    need: str = ""
    flag: str = ""


_READ: Final = ("list", "watch")
_GET: Final = ("get",)
_PATCH: Final = ("patch",)
_EVENTS: Final = Rights("events", ("create", "get", "patch"), need="events about its actions")
_LEASES: Final = "coordination.k8s.io"
_KUBESHARE: Final = "kubeshare.nthu"

RIGHTS: Final[dict[ComponentRole, tuple[Rights, ...]]] = {
    ComponentRole.DEVICE_PLUGIN: (
        Rights("pods", _READ),
        Rights("nodes", _READ),
        Rights("pods/status", _PATCH),
        Rights("nodes/status", _PATCH),
        _EVENTS,
    ),
    ComponentRole.SCHEDULER: (
        Rights("pods", ("get", *_READ)),
        Rights("pods/status", _PATCH),
        Rights("pods/binding", ("create",)),
        Rights("nodes", _READ),
        _EVENTS,
        Rights("namespaces", _READ, need="quotas; else --no-quotas"),
        Rights("resourcequotas", _READ, need="quotas; else --no-quotas"),
        Rights("poddisruptionbudgets", ("list",), "policy", need="preemption"),
        Rights("leases", ("get", "create", "update"), _LEASES, OWN),
        Rights("configmaps", _READ, namespace=SYSTEM, need="gpushare and gpu-admission"),
    ),
    ComponentRole.RECONCILER: (
        Rights("pods", ("get", *_READ)),
        Rights("nodes", ("get", *_READ)),
        Rights("namespaces", _READ, need="quotas and policies of namespaces"),
        Rights("resourcequotas", _READ, need="rules over_quota, quota_drift and quota_mark"),
        Rights("sharepods", ("get", *_READ), _KUBESHARE, need="KubeShare"),
        Rights("pods/eviction", ("create",), need="mode apply"),
        Rights("pods/status", _PATCH, need="rules that repair annotations"),
        Rights("nodes/status", _PATCH, need="rules that repair locks and handshakes"),
        _EVENTS,
        Rights("configmaps", ("list",), namespace=SYSTEM, need="gpushare"),
        Rights("configmaps", ("get", "update"), namespace=OWN, name="vgpu-reconcile-state"),
        Rights("configmaps", ("create",), namespace=OWN),
        Rights("leases", ("get", "update"), _LEASES, OWN, "vgpu-reconciler"),
        Rights("leases", ("create",), _LEASES, OWN),
    ),
    ComponentRole.EXPORTER: (
        Rights("pods", _READ, flag="collector.api"),
        Rights("nodes", _GET, flag="collector.api"),
    ),
    ComponentRole.NODE_RECONCILER: (
        Rights("pods", ("get", *_READ)),
        Rights("nodes", _GET),
        Rights("pods/status", _PATCH, need="rules card_drift and recover"),
        _EVENTS,
    ),
    ComponentRole.CONTROLLER: (
        Rights("sharepods", ("get", *_READ, "patch"), _KUBESHARE),
        Rights("pods", ("get", *_READ, "create", "delete")),
        Rights("pods/eviction", ("create",)),
        Rights("nodes", _READ),
        _EVENTS,
        Rights("leases", ("get", "update"), _LEASES, OWN, "vgpu-kubeshare-controller"),
        Rights("leases", ("create",), _LEASES, OWN),
    ),
    ComponentRole.NODE_COMPONENT: (
        Rights("sharepods", _READ, _KUBESHARE),
        Rights("nodes", _GET),
        Rights("nodes/status", _PATCH),
        Rights("pods", _READ, namespace=SYSTEM),
        Rights("pods/status", _PATCH, namespace=SYSTEM),
    ),
}
"""By the role of the component; feedback and token daemon need no right."""


def needed(component: InstalledComponent) -> Iterator[tuple[Right, str]]:
    """The rights of a component of vgpu, each with what it is for."""
    if not component.is_ours:
        return
    for rights in RIGHTS.get(component.row.role, ()):
        if rights.flag and rights.flag not in component.flags:
            continue
        namespace = _own(component) if rights.namespace == OWN else rights.namespace
        for verb in rights.verbs:
            right = Right(rights.group, rights.resource, verb, namespace, rights.name)
            yield right, rights.need


def _own(component: InstalledComponent) -> str:
    """The namespace of its Leases and ConfigMaps, by its flags."""
    flags, role = component.flags, component.row.role
    typed = flags.get("lease-namespace", flags.get("state-namespace", ""))
    if _NAMESPACE.fullmatch(typed):
        return typed
    is_default = not typed and role in (ComponentRole.SCHEDULER, ComponentRole.CONTROLLER)
    return SYSTEM if is_default else component.workload.namespace
