"""Names of extended resources: of the flags, of schedulers' ConfigMaps and of nodes. Pure.

A scheduler that counts another name than the device plugin advertises finds no room for any pod,
and an exporter or reconciler with another name judges pods by resources that nobody has.
"""

from collections.abc import Iterable, Iterator

from vgpu.model.objects import Node
from vgpu.schemes.name_evidence import ConfiguredNames, advertised_as
from vgpu.schemes.registry import registry
from vgpu.schemes.resource_names import ORIGINAL_NAMES, NamesSource, roles
from vgpu.schemes.system_titles import system_title
from vgpucli.doctor.components import InstalledComponent
from vgpucli.doctor.facts import ClusterFacts
from vgpucli.doctor.model import DoctorCheck, DoctorFinding, DoctorReason, finding


def check_names(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Names that differ between two sources, for each system and role."""
    for system in registry().names:
        for role in roles(system):
            by_name: dict[str, list[str]] = {}
            for name, place in _of_role(facts, system, role):
                by_name.setdefault(name, []).append(place)
            named = _of_nodes(facts.node_units, system, role, set(by_name))
            for name, place in named if by_name else _each_of_nodes(facts.node_units, system, role):
                by_name.setdefault(name, []).append(place)
            if len(by_name) > 1:
                texts = (f"{name}: {', '.join(by_name[name])}" for name in sorted(by_name))
                about = f"{system_title(system)}, {role}"
                yield finding(DoctorCheck.SETTINGS, DoctorReason.NAMES_DIFFER, about, *texts)


def _of_role(facts: ClusterFacts, system: str, role: str) -> Iterator[tuple[str, str]]:
    """The names that flags and ConfigMaps set, each with where."""
    if registry().sources.get(system) is NamesSource.FLAG:
        yield getattr(registry().names[system], role), "the flags of this command"
    for config in _configs(facts.named_configs, system):
        if role in config.names:
            yield config.names[role], config.place
    for component in _named(facts.components, system, role):
        yield component.names[system, role], component.text


def _configs(configs: Iterable[ConfiguredNames], system: str) -> Iterator[ConfiguredNames]:
    return (config for config in configs if config.system == system)


def _named(
    components: Iterable[InstalledComponent], system: str, role: str
) -> Iterator[InstalledComponent]:
    return (each for each in components if (system, role) in each.names)


def _of_nodes(
    nodes: Iterable[Node], system: str, role: str, names: set[str]
) -> Iterator[tuple[str, str]]:
    """The name that a node advertises where it has none of these."""
    for node in nodes:
        name = _only_name(node, system, role, names)
        if name and name not in names:
            yield name, f"node {node.name} advertises it"
            return


def _each_of_nodes(nodes: Iterable[Node], system: str, role: str) -> Iterator[tuple[str, str]]:
    """Each name that is the only one of a node, with the first such node: nobody has set one."""
    seen: set[str] = set()
    known = {getattr(names[system], role) for names in (registry().names, ORIGINAL_NAMES)}
    for node in nodes:
        name = _only_name(node, system, role, known | seen)
        if name and name not in seen:
            seen.add(name)
            yield name, f"node {node.name} advertises it"


def _only_name(node: Node, system: str, role: str, names: set[str]) -> str:
    """The only name of which the node advertises what its register has; "" without one.

    A node with none left of one of ``names`` has lost its device plugin: another resource then has
    the number by chance.
    """
    advertised = advertised_as(node, system, role)
    if len(advertised) != 1 or any(node.capacity.get(name) == 0 for name in names):
        return ""
    return next(iter(advertised))
