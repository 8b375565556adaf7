"""What a scheduler's ConfigMap and nodes have about the names of extended resources. Pure.

HAMi's scheduler and device plugin read ``device-config.yaml`` of one ConfigMap (chart 2.10,
``templates/scheduler/device-configmap.yaml``, ``templates/device-plugin/daemonsetnvidia.yaml``),
and Volcano's deviceshare the same key of another one
(``pkg/scheduler/api/devices/config/config.go``).

A device plugin advertises as many units as the register of its node has. So for a role r of a
system, the name in force o, and the nodes N whose register can be read, with units(n, r) > 0:

    advertised(n) = the names of which n advertises units(n, r), o or such as no system has
    confirmed(r)  = some n in N has advertised(n) = {o}, or no n has another name than o

Other resources have the same number by chance, so a role that is not confirmed gets its name by
pods only. P are the pods on N with a readable allocation of the system:

    fits(p, c)    = each container of p that requests c requests as much as is allocated to it
    named(c)      = some p in P requests c, each p in P that requests c fits,
                    no p in P requests another name of the union of advertised(n), or o,
                    and c is o, or no pod on N without the system's annotations requests c

The role's name is the only c that is named; without one it is not known.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from vgpu.io.yaml_documents import NotYamlError, yaml_document
from vgpu.model.allocation import Claim, Share
from vgpu.model.objects import Node, Pod
from vgpu.model.units import MILLI_PER_PERCENT, WHOLE_DEVICE_PERCENT
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.nvidia.resources import is_nvidia_resource
from vgpu.schemes.resource_names import (
    ORIGINAL_NAMES,
    ResourceNames,
    SystemNames,
    roles,
    unknown,
    unknown_name,
)
from vgpu.schemes.volcano import claim as volcano_claim
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

HOLDS_NAMES: Final = (*HOLDS_REGISTERS, CONFIG_KEY.encode())
"""What dumps of such a cluster have that shows names."""


def configured_names(text: str) -> dict[str, str]:
    """The names in the text of ``device-config.yaml``, by role; {} if it cannot be read."""
    try:
        document: Any = yaml_document(text)
    except NotYamlError:
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


def registered_systems(nodes: Iterable[Node]) -> frozenset[str]:
    """The systems whose device plugins have registered GPUs and whose resources may be renamed."""
    return frozenset(
        key_set.name
        for node in nodes
        for key_set in (HAMI, VOLCANO)
        if key_set.register in node.annotations
    )


def merged_names(
    configs: Iterable[ConfiguredNames], names: SystemNames
) -> tuple[dict[str, ResourceNames], dict[str, ResourceNames]]:
    """The names by all ConfigMaps of a system, and those of systems whose ConfigMaps differ.

    For the names c(r) that some ConfigMap of the system sets for the role r:

        name(r) = the only one of c(r), the name in force if c(r) is empty, else not known
        no name is known if |c(count)| > 1
    """
    values: dict[str, dict[str, set[str]]] = {}
    for config in configs:
        for role, name in config.names.items():
            values.setdefault(config.system, {}).setdefault(role, set()).add(name)
    agreed: dict[str, ResourceNames] = {}
    differing: dict[str, ResourceNames] = {}
    for system, by_role in values.items():
        open_roles = [role for role, found in by_role.items() if len(found) > 1]
        settled = {role: min(found) for role, found in by_role.items() if len(found) == 1}
        if "count" in open_roles:
            differing[system] = unknown(system)
        elif open_roles:
            others = {role: unknown_name(system, role) for role in open_roles}
            known = structs.replace(names[system].renamed(settled | others), is_partial=True)
            differing[system] = known
        else:
            agreed[system] = names[system].renamed(settled)
    return agreed, differing


def needs_pods(nodes: Iterable[Node], names: SystemNames) -> bool:
    """Whether the names in force may not be those of the nodes, which have all their resources."""
    every = tuple(nodes)
    return any(
        not _is_confirmed(registered, role, getattr(names[key_set.name], role), names)
        for key_set in (HAMI, VOLCANO)
        if (registered := _all_registered(every, key_set))
        for role, _ in key_set.id_parts
    )


def may_differ(node: Node, names: SystemNames) -> bool:
    """Whether the node may advertise what its registers have by other names than those in force.

    ``node`` has the names of its other resources, and no numbers of them.
    """
    known = {name for of_system in names.values() for name in of_system.all}
    return has_register(node) and bool(node.others or not known.issuperset(node.capacity))


def names_by_evidence(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    names: SystemNames,
    configured: Collection[str] = (),
) -> dict[str, ResourceNames]:
    """The names of the systems that have others than those in force, or whose names are unknown.

    ``nodes`` have all their extended resources in ``capacity``, and ``pods`` all that they request.
    The names of the systems in ``configured`` are those of a ConfigMap: they are not the nodes', or
    those.
    """
    every, all_pods = tuple(nodes), tuple(pods)
    found: dict[str, ResourceNames] = {}
    for key_set in (HAMI, VOLCANO):
        own = names[key_set.name]
        registered = _all_registered(every, key_set)
        there = {node.name for node, _ in registered}
        bound = [pod for pod in all_pods if pod.node in there and not pod.terminal]
        others: dict[str, str] = {}
        for role, _ in key_set.id_parts:
            name = getattr(own, role)
            if registered and not _is_confirmed(registered, role, name, names):
                by_role = _advertised(registered, role, name, names)
                if key_set.name in configured:
                    is_there = any(name in each for each in by_role)
                    settled = name if is_there else ""
                else:
                    settled = _by_pods(key_set, role, name, frozenset().union(*by_role), bound)
                if settled != name:
                    others[role] = settled or unknown_name(key_set.name, role)
        if others.get("count") == unknown_name(key_set.name, "count"):
            found[key_set.name] = unknown(key_set.name)
        elif others:
            is_partial = len(key_set.id_parts) < len(roles(key_set.name))
            found[key_set.name] = structs.replace(
                own.renamed(others), is_partial=is_partial or own.is_partial, is_unknown=False
            )
    return found


_Registered = Sequence[tuple[Node, Mapping[str, int]]]
"""Nodes with the units that their registers have, by role."""


def _all_registered(nodes: Iterable[Node], key_set: KeySet) -> _Registered:
    return [(node, units) for node in nodes if (units := _registered(node, key_set))]


def _advertised(
    registered: _Registered, role: str, own: str, names: SystemNames
) -> list[frozenset[str]]:
    """The names that each node advertises with the number of its register."""
    known = {name for of_system in names.values() for name in of_system.all} - {own}
    return [
        frozenset(
            name
            for name, number in node.capacity.items()
            if number == units.get(role)
            and name not in known
            and (name == own or not is_nvidia_resource(name))
        )
        for node, units in registered
    ]


def _is_confirmed(registered: _Registered, role: str, own: str, names: SystemNames) -> bool:
    advertised = _advertised(registered, role, own, names)
    return {own} in advertised or all(each <= {own} for each in advertised)


def _by_pods(
    key_set: KeySet, role: str, own: str, candidates: frozenset[str], pods: Sequence[Pod]
) -> str:
    """The only name that pods show; "" if there is none."""
    every = candidates | {own}
    requesting: dict[str, list[bool]] = {name: [] for name in every}
    vetoed: set[str] = set()
    for pod in pods:
        requested = {name for _, name in pod.requesting(every)}
        if pod.annotations.keys().isdisjoint(key_set.claim):
            vetoed |= requested - {own}
        elif len(requested) == 1:
            (name,) = requested
            fits = _fits(pod, key_set, role, name)
            if fits is not None:
                requesting[name].append(fits)
        elif requested and _claim(pod, key_set, pod.requesting(every)):
            return ""
    shown = [name for name, fit in requesting.items() if fit]
    if len(shown) != 1 or shown[0] in vetoed or not all(requesting[shown[0]]):
        return ""
    return shown[0]


def _fits(pod: Pod, key_set: KeySet, role: str, name: str) -> bool | None:
    """Whether each container requests what is allocated to it; None without an allocation."""
    requesting = pod.requesting((name,))
    claim = _claim(pod, key_set, requesting)
    if claim is None:
        return None
    requested = {
        each.name: each.limits.get(name) or each.others.get(name) for each in pod.containers
    }
    return all(
        _amount(allocation.shares, role) == requested[allocation.container]
        for allocation in claim.allocations
    )


def _claim(pod: Pod, key_set: KeySet, requesting: Iterable[tuple[str, str]]) -> Claim | None:
    """The allocation, with memory in units of the annotations; None if it cannot be read."""
    try:
        return volcano_claim.read(pod, key_set, 1, {container for container, _ in requesting})
    except ClaimError:
        return None


def _amount(shares: Sequence[Share], role: str) -> int | None:
    if role == "count":
        return len(shares)
    amounts = {
        share.memory_bytes if role == "memory" else (share.cores_milli or 0) // MILLI_PER_PERCENT
        for share in shares
    }
    return amounts.pop() if len(amounts) == 1 else None


def advertised_as(node: Node, system: str, role: str) -> frozenset[str]:
    """The names of which the node advertises what its register has for the role.

    NVIDIA's own names, and those of other systems and roles, are not among them.
    """
    own = getattr(ORIGINAL_NAMES[system], role)
    units = next((_registered(node, each) for each in (HAMI, VOLCANO) if each.name == system), {})
    (names,) = _advertised([(node, units)], role, own, ORIGINAL_NAMES)
    return names


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
