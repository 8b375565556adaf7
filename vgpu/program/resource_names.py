"""The names of the sharing systems' resources, where a program or command begins.

The flags of :data:`resource_flags` count first, then the scheduler's ConfigMap where it may be
read, then what nodes advertise (:mod:`vgpu.schemes.name_evidence`). The names hold for the process
until the command ends. A program that runs on finds other names when it starts again.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import click

from vgpu.kube.documents import Keep
from vgpu.kube.dump import DumpItems, bound_pods_in_dump, names_in_dump
from vgpu.kube.kinds import DEVICE_CONFIGS, NODE_UNITS
from vgpu.model.objects import Node, Pod
from vgpu.schemes.name_evidence import (
    HAMI_LABEL,
    HOLDS_NAMES,
    HOLDS_REGISTERS,
    VOLCANO_CONFIG,
    ConfiguredNames,
    configured_names,
    has_register,
    may_differ,
    merged_names,
    names_by_evidence,
    needs_pods,
    registered_systems,
)
from vgpu.schemes.registry import registry, renamed
from vgpu.schemes.resource_names import (
    NamesSource,
    SystemNames,
    named_twice,
    roles,
    typed_role,
    unknown_name,
)
from vgpu.schemes.system_titles import system_title

if TYPE_CHECKING:  # slow to import: only commands that use the API server wait
    from vgpu.apiserver.client import ApiClient

log = logging.getLogger(__name__)

START_SECONDS: Final = 10.0
"""Maximum time to wait for each answer of the API server when a program starts, in seconds."""

RENAMED_BY_CONFIG: Final = frozenset({"hami", "volcano"})
"""The systems whose schedulers read names of resources in a ConfigMap."""


def settle_by_cluster(cluster: "ApiClient", nodes: Iterable[Node], *, judges: bool = True) -> bool:
    """Find the names by a cluster; returns whether others than before are in force.

    Then what was read before has to be read again. ``nodes`` are those that were read. Outside of a
    command nothing is found, because the names hold as long as a command. Without ``judges`` names
    that are not known stay as they are: a scheduler has to place the first pod by some name. Raises
    ClusterError.
    """
    known = tuple(nodes)
    if not _is_open(known):
        return False

    def with_all_units() -> Sequence[Node]:
        if len(known) == 1:
            return (cluster.get(NODE_UNITS, "", known[0].name),)
        return tuple(
            node for page in cluster.pages(NODE_UNITS, ahead=True) for node in page.objects
        )

    def pods() -> Iterator[Pod]:
        node = known[0].name if len(known) == 1 else ""
        selector = f"spec.nodeName={node}" if node else ""
        for page in cluster.pods(keep=Keep.ALL, field_selector=selector):
            yield from (pod for pod in page.objects if pod.node)

    systems = registered_systems(known) - _named_by_flags()
    configs = configs_of_cluster(cluster, systems)
    return _settle(configs, known, with_all_units, pods, judges=judges)


def settle_at_start(kubeconfig: str, context: str, *, judges: bool = True) -> None:
    """Find the names by a cluster, for a program that runs on without an answer, too."""
    from vgpu.program.kube_flags import connected  # noqa: PLC0415  # slow to import

    try:
        with connected(kubeconfig, context, START_SECONDS) as cluster:
            settle_by_cluster(cluster, cluster.nodes(), judges=judges)
            for note in unknown_names():
                log.warning("names of resources not known", extra={"reason": note})
    except click.ClickException as error:
        log.warning("names of resources not looked for", extra={"reason": error.message})


def unknown_names() -> tuple[str, ...]:
    """A note for each system of which only some names are known, or none."""
    return (*map(_partly_named, registry().partly_named), *unnamed_notes())


def _partly_named(system: str) -> str:
    title, flag = system_title(system), f"--{system}.resource"
    names = registry().names[system]
    if registry().sources.get(system) is NamesSource.DIFFERING:
        open_roles = [
            typed_role(role)
            for role in roles(system)
            if getattr(names, role) == unknown_name(system, role)
        ]
        return (
            f"ConfigMaps of the scheduler of {title} differ in the names of its resources"
            f" ({', '.join(open_roles)}): what waiting pods request by them is unknown; vgpu doctor"
            f" has the ConfigMaps, and {flag} names the resources"
        )
    return (
        f"the name of the resource of {title} is {names.count} by what its nodes advertise, and the"
        " names that they do not advertise are not known: what waiting pods request by them is"
        f" unknown; {flag} names them"
    )


def unnamed_notes() -> tuple[str, ...]:
    """A note for each system of which no name is known."""
    return tuple(
        f"the names of the resources of {system_title(system)} are not known, since"
        f" {_reason_unnamed(system)}: nothing is judged by what pods request of"
        f" {system_title(system)}; --{system}.resource names them (count=NAME)"
        for system in registry().unnamed
    )


def _reason_unnamed(system: str) -> str:
    if registry().sources.get(system) is NamesSource.DIFFERING:
        return "ConfigMaps of its scheduler differ (vgpu doctor has them)"
    return "neither what its nodes advertise nor its pods show them"


def settle_by_dumps(
    contents: Sequence[tuple[bytes | DumpItems, str]],
) -> tuple[list[ConfiguredNames], list[Node]]:
    """Find the names by the nodes and ConfigMaps of dumps, which are returned.

    Each content has the dump's name, for errors. Raises SourceError MALFORMED.
    """
    by_place: dict[tuple[str, str], ConfiguredNames] = {}
    nodes: list[Node] = []
    texts = [each.content if isinstance(each, DumpItems) else each for each, _ in contents]
    has_registers = any(part in text for text in texts for part in HOLDS_REGISTERS)
    for text, (content, object_name) in zip(texts, contents, strict=True):
        if has_registers and any(part in text for part in HOLDS_NAMES):
            found = names_in_dump(content, object_name)
            for each in found[0]:
                by_place.setdefault((each.system, each.place), each)
            nodes += found[1]
    configs = list(by_place.values())
    if _is_open(nodes):
        _settle(
            configs,
            nodes,
            lambda: nodes,
            lambda: (pod for each in contents for pod in bound_pods_in_dump(*each)),
        )
    return configs, nodes


def _is_open(nodes: Iterable[Node]) -> bool:
    """Whether names can be found by these nodes, in a command."""
    return click.get_current_context(silent=True) is not None and any(map(has_register, nodes))


def _settle(
    configs: Iterable[ConfiguredNames],
    nodes: Sequence[Node],
    with_all_units: Callable[[], Sequence[Node]],
    pods: Callable[[], Iterable[Pod]],
    *,
    judges: bool = True,
) -> bool:
    by_flag = _named_by_flags()
    of_others = (each for each in configs if each.system not in by_flag)
    configured, differing = merged_names(of_others, registry().names)
    is_other = _put_in_force(configured, NamesSource.CONFIG_MAP)
    if judges:
        is_other |= _put_in_force(differing, NamesSource.DIFFERING)
        configured |= {system: names for system, names in differing.items() if not names.is_unknown}
    else:
        for system in differing:
            log.warning("ConfigMaps differ in names of resources", extra={"scheme": system})
    if not any(may_differ(node, registry().names) for node in nodes):
        return is_other
    all_units = with_all_units()
    if not needs_pods(all_units, registry().names):
        return is_other
    found = names_by_evidence(all_units, pods(), registry().names, configured)
    unsettled = {
        system: names
        for system, names in found.items()
        if system not in by_flag and (judges or not names.is_unknown)
    }
    return _put_in_force(unsettled, NamesSource.NODES) or is_other


def _named_by_flags() -> frozenset[str]:
    """The systems that a flag names."""
    sources = registry().sources.items()
    return frozenset(system for system, source in sources if source is NamesSource.FLAG)


def _put_in_force(names: SystemNames, source: NamesSource) -> bool:
    other = {system: each for system, each in names.items() if each != registry().names[system]}
    if not other or named_twice({**registry().names, **other}):
        return False
    click.get_current_context().with_resource(renamed(other, source))
    return True


def configs_of_cluster(
    cluster: "ApiClient", systems: Collection[str] = RENAMED_BY_CONFIG
) -> list[ConfiguredNames]:
    """The names in the ConfigMaps of these systems that may be read: one request for each.

    Raises ClusterError.
    """
    from vgpu.apiserver.connection import ClusterError  # noqa: PLC0415  # slow to import

    def of_hami() -> Iterator[tuple[str, str]]:
        for page in cluster.pages(DEVICE_CONFIGS, label_selector=HAMI_LABEL):
            yield from page.objects

    def of_volcano() -> Iterator[tuple[str, str]]:
        found = cluster.find(DEVICE_CONFIGS, *VOLCANO_CONFIG)
        yield from (found,) if found else ()

    configs: list[ConfiguredNames] = []
    for system, read in (("hami", of_hami), ("volcano", of_volcano)):
        try:
            configs += (
                ConfiguredNames(system, f"ConfigMap {place}", configured_names(text))
                for place, text in (read() if system in systems else ())
                if text
            )
        except ClusterError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
    return configs
