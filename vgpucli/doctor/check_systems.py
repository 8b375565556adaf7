"""What is installed, in which version, and whether it runs; settings that contradict each other.

Names of custom resources are those of the CustomResourceDefinitions: KubeShare 1 and 2, Volcano
1.14, the GPU Operator, NVIDIA's DRA driver and KAI Scheduler 0.17. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Final

import msgspec

from vgpu.inventory.nvidia import is_own_unit
from vgpu.kube.closed_nodes import none_allocatable
from vgpu.kube.errors import one_line
from vgpu.kube.installation import ReportedNode
from vgpu.kube.installation_kinds import DAEMON_SETS, DEPLOYMENTS
from vgpu.ledger.from_api import registered
from vgpu.model.objects import Node
from vgpu.model.units import count
from vgpu.schemes.other_schedulers import OtherScheduler, system_of_resource
from vgpu.schemes.registry import registry
from vgpu.schemes.system_titles import system_title
from vgpucli.doctor.check_kai import check_kai
from vgpucli.doctor.check_kueue import check_kueue
from vgpucli.doctor.check_names import check_names
from vgpucli.doctor.components import (
    GKE,
    HAMIS,
    KAI,
    KUBESHARE,
    NVIDIA,
    RESOURCE_NAME_FLAG,
    VOLCANOS,
    ComponentRole,
    InstalledComponent,
    plugin_resources,
)
from vgpucli.doctor.facts import ClusterFacts, named
from vgpucli.doctor.model import DoctorCheck, DoctorFinding, DoctorReason, Severity, finding

_SYSTEMS: Final = DoctorCheck.SYSTEMS
_SETTINGS: Final = DoctorCheck.SETTINGS

_UNPLACED: Final = frozenset({NVIDIA})
"""Systems whose pods kube-scheduler places by itself."""


# ---------------------------------------------------------------- systems


def check_systems(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """What is installed, in which version, and whether it runs; custom resources."""
    yield from _check_components(facts)
    yield from check_custom_kinds(facts)


def _check_components(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    foreign = _foreign_nodes(facts)
    for system, names in foreign.items():
        number = count(len(names), "node")
        evidence = f"{number} with resources of {system}, which is not read: {named(names)}"
        yield finding(_SYSTEMS, DoctorReason.NODES, "", evidence)
    if not (facts.components or facts.systems or foreign):
        if not facts.nothing_read:
            yield finding(_SYSTEMS, DoctorReason.NOTHING_INSTALLED)
        return
    for of_workload in _by_workload(facts):
        yield from _of_workload(of_workload)
    nodes = Counter(name for systems in facts.systems.values() for name in systems)
    for name in sorted(nodes):
        on = named(node for node, systems in facts.systems.items() if name in systems)
        evidence = f"{count(nodes[name], 'node')} with GPUs of {system_title(name)}: {on}"
        yield finding(_SYSTEMS, DoctorReason.NODES, "", evidence)
    if facts.workloads:
        yield from _missing_components(facts, nodes)
    yield from _versions(facts)
    yield from _allocatable(facts)
    yield from _unreadable(facts)


def _foreign_nodes(facts: ClusterFacts) -> dict[OtherScheduler, list[str]]:
    """The nodes with resources of systems that are recognised only, by system."""
    nodes: dict[OtherScheduler, list[str]] = {}
    for each in facts.nodes:
        for system in sorted({*filter(None, map(system_of_resource, each.node.others))}):
            nodes.setdefault(system, []).append(each.node.name)
    return nodes


def _by_workload(facts: ClusterFacts) -> Iterable[list[InstalledComponent]]:
    by_title: dict[str, list[InstalledComponent]] = {}
    for component in facts.components:
        by_title.setdefault(component.workload.title, []).append(component)
    return by_title.values()


def _of_workload(installed: list[InstalledComponent]) -> Iterator[DoctorFinding]:
    workload = installed[0].workload
    ready = f"{workload.ready} of {count(workload.desired, 'pod')} ready"
    titles = (f"{each.row.title} {each.version}" for each in installed)
    yield finding(_SYSTEMS, DoctorReason.INSTALLED, workload.title, ", ".join((*titles, ready)))
    if workload.ready < workload.desired:
        reason = DoctorReason.PARTLY_READY if workload.ready else DoctorReason.NONE_READY
        names = " and ".join(each.row.title for each in installed)
        yield finding(_SYSTEMS, reason, workload.title, f"{names}: {ready}")


def _missing_components(facts: ClusterFacts, nodes: Counter[str]) -> Iterator[DoctorFinding]:
    """Systems without a plugin or scheduler, where the kinds of such workloads were read."""
    has_plugins, has_schedulers = facts.has_read(DAEMON_SETS), facts.has_read(DEPLOYMENTS)
    plugins = {name for each in facts.of_role(ComponentRole.DEVICE_PLUGIN) for name in each.serves}
    placing = (ComponentRole.SCHEDULER, ComponentRole.CONTROLLER)
    schedulers = {name for role in placing for each in facts.of_role(role) for name in each.serves}
    for row in registry().rows:
        if not nodes[row.name]:
            continue
        on = named(node for node, systems in facts.systems.items() if row.name in systems)
        evidence = f"{system_title(row.name)}: {count(nodes[row.name], 'node')} ({on})"
        if has_plugins and row.has_allocate and row.name not in plugins:
            yield finding(_SYSTEMS, DoctorReason.NO_DEVICE_PLUGIN, "", evidence)
        if has_schedulers and row.name not in schedulers | _UNPLACED:
            yield finding(_SYSTEMS, DoctorReason.NO_SCHEDULER, "", evidence)


def _versions(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    by_images: dict[tuple[str, ...], dict[str, list[InstalledComponent]]] = {}
    for each in facts.components:
        if each.row.role is not ComponentRole.KUBE_SCHEDULER:
            by_images.setdefault(each.row.release, {}).setdefault(each.version, []).append(each)
    for versions in by_images.values():
        if len(versions) > 1:
            texts = (each.text for of_version in versions.values() for each in of_version)
            yield finding(_SYSTEMS, DoctorReason.SEVERAL_VERSIONS, "", *texts)


def _allocatable(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    gone: dict[str, list[str]] = {}
    for reported in facts.gpu_nodes:
        node = reported.node
        shared = {name for name in plugin_resources() if not is_own_unit(name)}
        names = {*plugin_resources(), *filter(is_own_unit, node.capacity)}
        if any(node.allocatable.get(name) for name in shared):
            names = shared  # what NVIDIA's plugin has left on another system's node is no error
        for name in none_allocatable(node):
            if name in names:
                gone.setdefault(name, []).append(node.name)
    for name, nodes in gone.items():
        evidence = f"{count(len(nodes), 'node')}: {named(nodes)}"
        yield finding(_SYSTEMS, DoctorReason.NOTHING_ALLOCATABLE, name, evidence)


def _unreadable(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Nodes of which a register cannot be read, by what is wrong with it."""
    codecs = registry().codecs({})
    nodes: dict[str, list[str]] = {}
    for reported in facts.gpu_nodes:
        node = reported.node
        for unread in registered(node, codecs)[1]:
            text = one_line(unread.detail).removeprefix(f"node {node.name}: ")
            nodes.setdefault(text, []).append(node.name)
    for text, names in nodes.items():
        evidence = f"{count(len(names), 'node')} ({named(names)}): {text}"
        yield finding(_SYSTEMS, DoctorReason.UNREADABLE_REGISTER, "", evidence)


def node_errors(node: Node, as_of: float) -> tuple[DoctorFinding, ...]:
    """The errors that one node shows by itself."""
    facts = ClusterFacts(as_of, nodes=(ReportedNode(node),))
    found = (*_allocatable(facts), *_several_systems(facts), *_unreadable(facts))
    return tuple(each for each in found if each.severity is Severity.ERROR)


# ---------------------------------------------------------------- settings


def check_settings(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Settings and components that contradict each other."""
    yield from _several_systems(facts)
    yield from _several_binders(facts)
    yield from _several_plugins(facts)
    yield from _two_feedbacks(facts)
    yield from _node_locks(facts)
    for each in facts.of_role(ComponentRole.SCHEDULER):
        if each.is_ours and "single" in each.flags and each.workload.desired > 1:
            evidence = f"{count(each.workload.desired, 'replica')} with --single"
            yield finding(
                _SETTINGS, DoctorReason.SINGLE_WITH_REPLICAS, each.workload.title, evidence
            )
    yield from _webhooks(facts)
    yield from _renamed(facts)
    yield from check_names(facts)
    yield from check_kueue(facts)
    yield from check_kai(facts)


def _renamed(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """A resource that HAMi's scheduler counts, and no node of HAMi advertises."""
    nodes = [each.node for each in facts.nodes if HAMIS in facts.systems.get(each.node.name, ())]
    advertised = frozenset(name for node in nodes for name in node.advertised)
    for each in facts.of_role(ComponentRole.SCHEDULER):
        name = each.flags.get(RESOURCE_NAME_FLAG, "")
        if name and nodes and name not in advertised:
            has = ", ".join(sorted(advertised)) or "none"
            evidence = f"it has --{RESOURCE_NAME_FLAG}={name}; its nodes advertise {has}"
            yield finding(_SETTINGS, DoctorReason.RESOURCE_RENAMED, each.workload.title, evidence)


def _several_systems(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    by_systems: dict[frozenset[str], list[str]] = {}
    for name, systems in facts.systems.items():
        if KUBESHARE in systems:
            systems -= {NVIDIA}  # its holder pods request GPUs of NVIDIA's plugin
        if len(systems) > 1:
            by_systems.setdefault(systems, []).append(name)
    for systems, nodes in by_systems.items():
        verb = "has" if len(nodes) == 1 else "have"
        *others, last = map(system_title, sorted(systems))
        evidence = f"{named(nodes)} {verb} GPUs of {', '.join(others)} and {last}"
        yield finding(_SETTINGS, DoctorReason.SEVERAL_SYSTEMS, "", evidence)


def _several_binders(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    in_use = {name for systems in facts.systems.values() for name in systems}
    for name in sorted(in_use):
        binders = [each for each in facts.of_role(ComponentRole.SCHEDULER) if name in each.serves]
        if len({each.workload.title for each in binders}) > 1:
            texts = [each.text for each in binders]
            yield finding(
                _SETTINGS, DoctorReason.SEVERAL_BINDERS, f"pods of {system_title(name)}", *texts
            )


def _several_plugins(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    plugins = [each for each in facts.of_role(ComponentRole.DEVICE_PLUGIN) if each.resource]
    for first, second in combinations(plugins, 2):
        if first.row.system == GKE == second.row.system:
            continue  # GKE separates them by labels that are not all public
        if first.resource == second.resource and first.workload != second.workload:
            yield from _together(facts, DoctorReason.SEVERAL_PLUGINS, first.resource, first, second)


def _two_feedbacks(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    for feedback in facts.of_role(ComponentRole.FEEDBACK):
        for monitor in facts.of_role(ComponentRole.MONITOR):
            yield from _together(facts, DoctorReason.TWO_FEEDBACKS, "", feedback, monitor)


def _together(
    facts: ClusterFacts,
    reason: DoctorReason,
    about: str,
    first: InstalledComponent,
    second: InstalledComponent,
) -> Iterator[DoctorFinding]:
    """The finding, if both may have a pod on the same node."""
    nodes = [each.node.name for each in facts.selected(first.workload, second.workload)]
    if nodes:
        evidence = (first.text, second.text, f"{count(len(nodes), 'node')}: {named(nodes)}")
        yield finding(_SETTINGS, reason, about, *evidence)


def _node_locks(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    plugins = facts.of_role(ComponentRole.DEVICE_PLUGIN)
    originals = [
        each for each in plugins if not each.is_ours and {HAMIS, VOLCANOS} & {*each.serves}
    ]
    schedulers = facts.of_role(ComponentRole.SCHEDULER)
    theirs = {name for each in schedulers if not each.is_ours for name in each.serves}
    # Where the original scheduler runs as well, it may place these pods: several_binders has that.
    unlocked = [each for each in originals if not theirs & {*each.serves}]
    for each in schedulers:
        if not each.is_ours:
            continue
        locks = "original-plugin" in each.flags
        if unlocked and not locks:
            texts = [plugin.text for plugin in unlocked]
            yield finding(_SETTINGS, DoctorReason.NO_NODE_LOCK, each.workload.title, *texts)
        if locks and plugins and not originals:
            yield finding(_SETTINGS, DoctorReason.NEEDLESS_LOCK, each.workload.title)


def _webhooks(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    for each in facts.webhooks:
        down = [
            component.text
            for component in facts.components
            if component.workload.namespace == each.namespace
            and each.service.startswith(component.workload.name)
            and component.workload.desired
            and not component.workload.ready
        ]
        if each.failure_policy == "Fail" and each.service and down:
            evidence = f"it calls the Service {each.namespace}/{each.service}"
            yield finding(
                _SETTINGS, DoctorReason.WEBHOOK_BLOCKS_PODS, each.configuration, evidence, *down
            )


class CustomKind(msgspec.Struct, frozen=True):
    """A custom resource.

    Attributes:
        system: the system for people.
        plural, group: such as ``sharepods`` and ``kubeshare.nthu``.
        roles: the roles of the system's components that do not work without it.
        words: the first words of our own programs that do not, either.
    """

    system: str
    plural: str
    group: str
    roles: tuple[ComponentRole, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its CustomResourceDefinition."""
        return f"{self.plural}.{self.group}"

    def is_needed_by(self, component: InstalledComponent) -> bool:
        """Whether the component does not work without it."""
        row = component.row
        if component.is_ours:
            return bool(self.words) and row.words[: len(self.words)] == self.words
        return row.system == self.system and row.role in self.roles


_ROLE = ComponentRole

CUSTOM_KINDS: Final[tuple[CustomKind, ...]] = (
    CustomKind(
        "KubeShare",
        "sharepods",
        "kubeshare.nthu",
        (_ROLE.CONTROLLER, _ROLE.SCHEDULER),
        ("kubeshare", "controller"),
    ),
    CustomKind("Volcano", "podgroups", "scheduling.volcano.sh", (_ROLE.SCHEDULER,)),
    CustomKind("Volcano", "queues", "scheduling.volcano.sh", (_ROLE.SCHEDULER,)),
    CustomKind("Volcano", "jobs", "batch.volcano.sh", (_ROLE.CONTROLLER,)),
    CustomKind("NVIDIA", "clusterpolicies", "nvidia.com", (_ROLE.OPERATOR,)),
    CustomKind("NVIDIA", "computedomains", "resource.nvidia.com"),
    CustomKind(KAI, "bindrequests", "scheduling.run.ai", (_ROLE.SCHEDULER, _ROLE.BINDER)),
    CustomKind(KAI, "podgroups", "scheduling.run.ai", (_ROLE.SCHEDULER, _ROLE.POD_GROUPER)),
    CustomKind(KAI, "queues", "scheduling.run.ai", (_ROLE.SCHEDULER,)),
)


def check_custom_kinds(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """The custom resources by name, and components that lack theirs."""
    served = facts.custom_kinds
    if served is None:
        return
    by_system: dict[str, list[str]] = {}
    for kind in CUSTOM_KINDS:
        if kind.name in served:
            by_system.setdefault(kind.system, []).append(kind.name)
    for system, names in by_system.items():
        evidence = f"custom resources of {system}: {', '.join(names)}"
        yield finding(DoctorCheck.SYSTEMS, DoctorReason.CUSTOM_KINDS, "", evidence)
    for component in facts.components:
        if not component.workload.desired:
            continue
        missing = [
            kind.name
            for kind in CUSTOM_KINDS
            if kind.name not in served and kind.is_needed_by(component)
        ]
        if missing:
            text = f"{component.row.title}: {', '.join(missing)}"
            about = component.workload.title
            yield finding(DoctorCheck.SYSTEMS, DoctorReason.MISSING_KIND, about, text)
