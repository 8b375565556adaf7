"""The names of the sharing systems' extended resources. Pure.

The originals let their operator rename them: HAMi by ``resourceCountName`` and the like of its
``device-config.yaml`` (``pkg/device/nvidia/device.go``), Volcano by the same keys of its ConfigMap
(``pkg/scheduler/api/devices/config``), and forks of gpushare and gpu-manager by constants. So one
value has all names of a system. It is made once, where a program begins, from its flags, from the
scheduler's ConfigMap or from what nodes advertise (:mod:`vgpu.program.resource_names`), and the
registry in force hands it down: nothing is judged by a name that is written elsewhere.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec


class ResourceNames(msgspec.Struct, frozen=True):
    """The extended resources of one system; "" where it has none.

    Attributes:
        count: number of GPUs.
        memory: amount of memory of each GPU.
        percentage: percent of each GPU's memory.
        cores: percent of each GPU's cores.
        priority: the priority of a container's kernels.
        is_partial: whether some of the names are not known, since what nodes advertise does not
            show them: then amounts of requests are unknown.
        is_unknown: whether none of the names is known: then nothing is judged by what pods request.
    """

    count: str = ""
    memory: str = ""
    percentage: str = ""
    cores: str = ""
    priority: str = ""
    is_partial: bool = False
    is_unknown: bool = False

    @property
    def all(self) -> tuple[str, ...]:
        """All names."""
        return tuple(filter(None, (getattr(self, role) for role in ROLES)))

    def renamed(self, names: Mapping[str, str]) -> "ResourceNames":
        """The same with other names for some roles, by the fields' names."""
        return msgspec.structs.replace(self, **names)


ROLES: Final = tuple(each for each in ResourceNames.__struct_fields__ if not each.startswith("is_"))
"""The fields with a name."""


def unknown_name(system: str, role: str) -> str:
    """What stands for a name that is not known: no resource can have it, and no pod requests it."""
    return f"unknown name ({system}, {typed_role(role)})"


def unknown(system: str) -> ResourceNames:
    """The names of a system of which none is known."""
    names = {role: unknown_name(system, role) for role in roles(system)}
    return ResourceNames(is_unknown=True).renamed(names)


class NamesSource(StrEnum):
    """Where names come from, the first one before the others."""

    FLAG = "flag"
    CONFIG_MAP = "ConfigMap of the scheduler"
    DIFFERING = "ConfigMaps of the scheduler that differ"
    NODES = "what nodes advertise"


NO_SOURCES: Final[Mapping[str, NamesSource]] = {}
"""Nobody has another name than the originals."""

SystemNames = Mapping[str, ResourceNames]
"""The names by the name of the system's row."""

ORIGINAL_NAMES: Final[SystemNames] = {
    "volcano": ResourceNames(
        count="volcano.sh/vgpu-number",
        memory="volcano.sh/vgpu-memory",
        percentage="volcano.sh/vgpu-memory-percentage",
        cores="volcano.sh/vgpu-cores",
    ),
    "hami": ResourceNames(
        count="nvidia.com/gpu",
        memory="nvidia.com/gpumem",
        percentage="nvidia.com/gpumem-percentage",
        cores="nvidia.com/gpucores",
        priority="nvidia.com/priority",
    ),
    "gpushare": ResourceNames(count="aliyun.com/gpu-count", memory="aliyun.com/gpu-mem"),
    "gaia": ResourceNames(memory="tencent.com/vcuda-memory", cores="tencent.com/vcuda-core"),
}
"""The names that the originals have where nobody has renamed them."""


def roles(system: str) -> tuple[str, ...]:
    """The roles for which a system has a name, by the fields' names."""
    names = ORIGINAL_NAMES[system]
    return tuple(role for role in ROLES if getattr(names, role))


def typed_role(role: str) -> str:
    """A role as users write it, in flags and in the chart's values."""
    return "memory-percentage" if role == "percentage" else role


def role_of(typed: str) -> str:
    """The role of a user's text; "" if there is none."""
    known = {typed_role(role): role for role in ROLES}
    return known.get(typed, "")


def named_twice(names: SystemNames) -> tuple[str, str, str] | None:
    """A name that two roles or systems have, with the two; None if there is none."""
    owners: dict[str, str] = {}
    for system, of_system in names.items():
        for role in roles(system):
            name, owner = getattr(of_system, role), f"{role} of {system}"
            if name in owners:
                return name, owners[name], owner
            owners[name] = owner
    return None
