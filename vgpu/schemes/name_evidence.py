"""What a scheduler's ConfigMap and nodes have about the names of extended resources. Pure.

HAMi's scheduler and device plugin read ``device-config.yaml`` of one ConfigMap (chart 2.10,
``templates/scheduler/device-configmap.yaml``, ``templates/device-plugin/daemonsetnvidia.yaml``),
and Volcano's deviceshare the same key of another one
(``pkg/scheduler/api/devices/config/config.go``).

A device plugin advertises as many units as the register of its node has. So for a role r of a
system, and the nodes N whose register can be read, with units(n, r) > 0:

    named(r)      = some n in N advertises units(n, r) of the name in force
    candidates(r) = the names that no system has, of which all n in N that advertise units(n, r) of
                    any such name advertise as many

Only a single candidate of a role that is not named is the role's name.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from vgpu.model.objects import Node
from vgpu.model.units import WHOLE_DEVICE_PERCENT
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.nvidia.resources import is_nvidia_resource
from vgpu.schemes.resource_names import ORIGINAL_NAMES, ResourceNames, SystemNames, roles
from vgpu.schemes.volcano.key_set import HAMI, SPLIT_COUNT, VOLCANO, KeySet
from vgpu.schemes.volcano.node import registrations

CONFIG_KEY: Final = "device-config.yaml"
"""The key of the ConfigMap's data."""

HAMI_LABEL: Final = "app.kubernetes.io/component=hami-scheduler"
"""The label of HAMi's ConfigMap, whose name depends on the release."""

VOLCANO_CONFIG: Final = ("kube-system", "volcano-vgpu-device-config")
"""Namespace and name of Volcano's ConfigMap: the defaults of deviceshare's arguments."""

_FIELDS: Final[Mapping[str, str]] = {
    "resourceCountName": "count",
    "resourceMemoryName": "memory",
    "resourceMemoryPercentageName": "percentage",
    "resourceCoreName": "cores",
    "resourcePriorityName": "priority",
}
"""The fields below ``nvidia``, with the roles of the names that they set."""


class ConfiguredNames(msgspec.Struct, frozen=True):
    """The names in a scheduler's ConfigMap.

    Attributes:
        system: the name of the system's row.
        place: the ConfigMap, for people.
        names: the names by role.
    """

    system: str
    place: str
    names: Mapping[str, str]


HOLDS_REGISTERS: Final = (HAMI.register.encode(), VOLCANO.register.encode())
"""A dump of a cluster with one of these may have resources under other names."""


def configured_names(text: str) -> dict[str, str]:
    """The names in the text of ``device-config.yaml``, by role; {} if it cannot be read."""
    import yaml  # noqa: PLC0415  # slow to import, and few clusters have such a text

    try:
        document: Any = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    part = document.get("nvidia") if isinstance(document, dict) else None
    fields = part if isinstance(part, dict) else {}
    return {
        role: value
        for field, role in _FIELDS.items()
        if isinstance(value := fields.get(field), str) and "/" in value
    }


def has_register(node: Node) -> bool:
    """Whether a device plugin whose resources may be renamed has registered the node's GPUs."""
    return any(key_set.register in node.annotations for key_set in (HAMI, VOLCANO))


def is_as_named(node: Node, names: SystemNames) -> bool:
    """Whether the node advertises what its registers have, by the names in force."""
    return all(
        node.capacity.get(getattr(names[key_set.name], role)) == units
        for key_set in (HAMI, VOLCANO)
        for role, units in _registered(node, key_set).items()
    )


def advertised_names(nodes: Iterable[Node], names: SystemNames) -> dict[str, ResourceNames]:
    """The names of the systems that have another name by what nodes advertise.

    ``nodes`` have all their extended resources in ``capacity``.
    """
    every = tuple(nodes)
    known = {name for of_system in names.values() for name in of_system.all}
    found: dict[str, ResourceNames] = {}
    for key_set in (HAMI, VOLCANO):
        own = names[key_set.name]
        others = dict(_other_names(every, key_set, own, known))
        if others:
            is_partial = len(key_set.id_parts) < len(roles(key_set.name))
            found[key_set.name] = structs.replace(own.renamed(others), is_partial=is_partial)
    return found


def _other_names(
    nodes: Iterable[Node], key_set: KeySet, own: ResourceNames, known: set[str]
) -> Iterator[tuple[str, str]]:
    registered = [(node, units) for node in nodes if (units := _registered(node, key_set))]
    for role, _ in key_set.id_parts:
        candidates: set[str] | None = None
        for node, units in registered:
            wanted = units[role]
            if node.capacity.get(getattr(own, role)) == wanted:
                candidates = None
                break
            here = {
                name
                for name, number in node.capacity.items()
                if number == wanted and name not in known and not is_nvidia_resource(name)
            }
            if here:
                candidates = here if candidates is None else candidates & here
        if candidates is not None and len(candidates) == 1:
            yield role, candidates.pop()


def advertised_as(node: Node, system: str, role: str) -> frozenset[str]:
    """The names of which the node advertises what its register has for the role.

    NVIDIA's own names, and those of other systems and roles, are not among them.
    """
    wanted = next(
        (
            units.get(role)
            for key_set in (HAMI, VOLCANO)
            if key_set.name == system and (units := _registered(node, key_set))
        ),
        None,
    )
    own = getattr(ORIGINAL_NAMES[system], role)
    known = {name for names in ORIGINAL_NAMES.values() for name in names.all} - {own}
    return frozenset(
        name
        for name, number in node.capacity.items()
        if number == wanted and name not in known and (name == own or not is_nvidia_resource(name))
    )


def _registered(node: Node, key_set: KeySet) -> dict[str, int]:
    """The units that the register of the node has, by role; {} if it cannot be read."""
    if key_set.register not in node.annotations:
        return {}
    try:
        gpus = registrations(node, key_set)
    except ClaimError:
        return {}
    units = {
        "count": sum(gpu.slots or SPLIT_COUNT for gpu in gpus),
        "memory": sum(gpu.memory or 0 for gpu in gpus),
        "cores": WHOLE_DEVICE_PERCENT * len(gpus),
    }
    return {role: units[role] for role, _ in key_set.id_parts if units[role]}
