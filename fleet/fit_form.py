"""How many more pods of some memory and cores fit: the question that the page's form asks of `fit`.

Each sharing system of the cluster is asked in its own resources and units.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from fleet.snapshot import FleetSnapshot
from vgpu.model.units import GIB
from vgpu.schemes.registry import registry
from vgpu.schemes.system_titles import system_title
from vgpucli.fit.document import FitDocument
from vgpucli.misread_amounts import memory_unit

ASKED: Final[Mapping[str, tuple[str, ...]]] = {
    "volcano": ("count", "memory", "cores"),
    "hami": ("count", "memory", "cores"),
    "gpushare": ("memory",),
    "gaia": ("cores", "memory"),
}
"""The resources by which a pod of each system requests a part of one GPU; gpushare has no cores."""

MOST_GIB: Final = 10_240
"""Maximum amount of memory that is asked for, in GiB."""


class SystemFit(msgspec.Struct, frozen=True, rename="camel"):
    """The answer of ``vgpu fit`` for one system, and the command that has it.

    ``problem`` is why there is none, "" if there is one. ``ignored`` is what was not asked for,
    since the system does not divide it: ``cores``, or ``memory and cores``.
    """

    system: str
    title: str
    command: str
    answer: FitDocument | None
    problem: str = ""
    ignored: str = ""


class FitView(msgspec.Struct, frozen=True, rename="camel"):
    """What was asked, and the answers; ``memoryGib`` is 0 if nothing was asked.

    ``notAsked`` are other sharing systems of the cluster.
    """

    memory_gib: float
    cores: int
    systems: tuple[SystemFit, ...]
    not_asked: tuple[str, ...] = ()


def fit_view(snapshot: FleetSnapshot, query: Mapping[str, str]) -> FitView:
    """The answers of all systems with GPUs in the cluster; numbers out of range ask nothing."""
    memory, cores = _number(query.get("memory", ""), MOST_GIB), _number(query.get("cores", ""), 100)
    if not memory or (not cores and not _is_zero(query.get("cores", ""))):
        return FitView(0.0, math.ceil(cores), ())
    systems = sorted({room.system for room in snapshot.inspect.free_capacities} & ASKED.keys())
    found = [_asked(snapshot, system, memory, math.ceil(cores)) for system in systems]
    return FitView(
        memory, math.ceil(cores), (*found, *_asked_of_nvidia(snapshot)), _not_asked(snapshot)
    )


def _not_asked(snapshot: FleetSnapshot) -> tuple[str, ...]:
    """The titles of sharing systems whose requests are of another form."""
    of_nodes = {system for node in snapshot.inspect.nodes for system in node.systems}
    titles = {system_title(system) for system in of_nodes - ASKED.keys()}
    return tuple(sorted(titles | {each.scheduler for each in snapshot.inspect.other_schedulers}))


def _is_zero(text: str) -> bool:
    """Whether no cores are asked for: nothing is written, or a zero."""
    try:
        return not text.strip() or float(text) == 0
    except ValueError:
        return False


def _asked_of_nvidia(snapshot: FleetSnapshot) -> Iterator[SystemFit]:
    """One unit of each resource of NVIDIA's own plugin: it divides no GPU by memory.

    Where another system has the same name for its resource, the command would ask that one.
    """
    resources = {each.resource for each in snapshot.inspect.nvidia if each.node}
    shared = {room.system for room in snapshot.inspect.free_capacities}
    for resource in sorted(resources):
        if any(registry().names[each].count == resource for each in shared & ASKED.keys()):
            continue
        answer, problem = snapshot.answers.fit({resource: 1})
        command = snapshot.command(("fit", f"--request={resource}=1"))
        title = f"NVIDIA: {resource}"
        yield SystemFit(resource, title, command, answer, problem, "memory and cores")


def _number(text: str, most: int) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) and 0 < number <= most else 0.0


def _asked(snapshot: FleetSnapshot, system: str, memory_gib: float, cores: int) -> SystemFit:
    names = registry().names[system]
    unit = memory_unit(system, snapshot.answers.unit_bytes)
    amounts = {"count": 1, "memory": math.ceil(memory_gib * GIB / unit), "cores": cores}
    requests = {
        name: amounts[role]
        for role in ASKED[system]
        if (name := getattr(names, role)) and amounts[role]
    }
    words = [f"--request={name}={units}" for name, units in requests.items()]
    command = snapshot.command(("fit", *words))
    answer, problem = snapshot.answers.fit(requests)
    ignored = "cores" if cores and "cores" not in ASKED[system] else ""
    return SystemFit(system, system_title(system), command, answer, problem, ignored)
