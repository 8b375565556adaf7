"""What `vgpu doctor` reads of a cluster: from the API server, or from a dump.

A part that cannot be read costs the checks that need it, and no others. Secrets are never read.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import click

from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.api_kind import ApiKind, unread
from vgpu.kube.documents import Keep, ObjectPage
from vgpu.kube.dump import DumpItems, items_of
from vgpu.kube.installation import Workload
from vgpu.kube.installation_kinds import (
    DAEMON_SETS,
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
    NODE_HEARTBEATS,
    POLICIES,
    POLICY_BINDINGS,
    REPORTED_NODES,
)
from vgpu.kube.kinds import CONFIG_MAPS, NODE_UNITS
from vgpu.kube.verbs import CREATE, LIST
from vgpu.model.objects import MalformedObject, Node
from vgpu.model.reasons import SourceError
from vgpu.program.failures import HintedFailure
from vgpu.program.kube_flags import ReadDump, read_dump
from vgpu.program.resource_names import (
    configs_of_cluster,
    settle_by_cluster,
    settle_by_dumps,
)
from vgpu.quota.kueue_config import CONFIG_MAP as KUEUE_CONFIG_MAP
from vgpu.quota.kueue_config import KEY as KUEUE_KEY
from vgpu.quota.kueue_config import KueueConfig, kueue_config
from vgpu.schemes.name_evidence import ConfiguredNames, has_register, registered_systems
from vgpu.schemes.registry import UnitBytes
from vgpucli.doctor import DUMPED
from vgpucli.doctor.access_review import ACCESS_REVIEWS, Right, account_access, service_account_user
from vgpucli.doctor.bare_pods import BARE_PODS, UNMANAGED
from vgpucli.doctor.check_rights import has_policies, needed, writers
from vgpucli.doctor.check_systems import CUSTOM_KINDS
from vgpucli.doctor.components import ComponentRole, components
from vgpucli.doctor.facts import ClusterFacts, DeniedRight, SchedulerText
from vgpucli.doctor.model import DoctorCheck, Unread
from vgpucli.doctor.queued_pods import QUEUED_PODS, QueueLabelsOfPod, pods_by_label, unread_labels

LEASES_OF_NODES: Final = "kube-node-lease"
"""The namespace of the Leases of nodes."""

KUBE_SYSTEM: Final = "kube-system"
"""The namespace of static pods, and of most components."""

CUSTOM_DEFINITION: Final = "CustomResourceDefinition"

_Kept = TypeVar("_Kept")

_WITH_CONFIG: Final = frozenset({ComponentRole.KUBE_SCHEDULER, ComponentRole.SCHEDULER})
"""The roles whose ConfigMaps may have a configuration of a scheduler."""

_QUEUE_MANAGER: Final = ComponentRole.QUEUE_MANAGER

_CHECK = DoctorCheck
_PARTS: Final[dict[str, tuple[ApiKind[Any], str, tuple[DoctorCheck, ...]]]] = {
    "nodes": (
        REPORTED_NODES,
        "",
        (_CHECK.SYSTEMS, _CHECK.SETTINGS, _CHECK.UNITS, _CHECK.RUNTIME, _CHECK.KUBELET),
    ),
    "daemon_sets": (DAEMON_SETS, "", (_CHECK.SYSTEMS, _CHECK.SETTINGS, _CHECK.RIGHTS)),
    "deployments": (DEPLOYMENTS, "", (_CHECK.SYSTEMS, _CHECK.SETTINGS, _CHECK.RIGHTS)),
    "webhooks": (MUTATING_WEBHOOKS, "", (_CHECK.SETTINGS,)),
    "heartbeats": (NODE_HEARTBEATS, LEASES_OF_NODES, (_CHECK.CLOCKS,)),
}
"""The lists, in the order of reading: the kind, the namespace, and the checks that need it."""

_POLICY_PARTS: Final[dict[str, ApiKind[Any]]] = {
    "policies": POLICIES,
    "policy_bindings": POLICY_BINDINGS,
}
"""The lists that are read only where a component of vgpu writes, and the server has them."""


class _Reading:
    """What was read so far, and what could not be."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Any]] = {name: [] for name in (*_PARTS, *_POLICY_PARTS)}
        self.has_policies = False
        self.bare_pods: list[Workload] = []
        self.queued_pods: list[QueueLabelsOfPod] = []
        self.unread: list[Unread] = []
        self.malformed: list[str] = []

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """What was read of all kinds of workload."""
        return (*self.parts["daemon_sets"], *self.parts["deployments"], *self.bare_pods)

    def facts(self, as_of: float, **others: Any) -> ClusterFacts:
        """The facts of the parts, and others."""
        parts = self.parts
        return ClusterFacts(
            as_of,
            nodes=tuple(parts["nodes"]),
            workloads=self.workloads,
            webhooks=tuple(webhook for of_one in parts["webhooks"] for webhook in of_one),
            heartbeats=tuple(parts["heartbeats"]),
            policies=tuple(parts["policies"]) if self.has_policies else None,
            policy_bindings=tuple(parts["policy_bindings"]) if self.has_policies else None,
            unread=tuple(self.unread),
            malformed=tuple(self.malformed),
            queued_by=pods_by_label(components(self.workloads), self.queued_pods),
            **others,
        )


# ---------------------------------------------------------------- the API server


def from_server(
    cluster: ApiClient, units: UnitBytes, given: Sequence[SchedulerText] = ()
) -> ClusterFacts:
    """The facts that the server has; ``given`` are further configurations of schedulers.

    Raises ClusterError if the server does not answer, or does not know the user.
    """
    as_of = time.time()
    reading = _Reading()
    server_version = _tried(reading, (_CHECK.KUBELET,), "the server's version", cluster.version)
    groups = _tried(reading, (_CHECK.KUBELET,), "the groups of the API", cluster.api_groups)
    before = len(reading.unread)
    for name, (kind, namespace, checks) in _PARTS.items():
        pages = partial(cluster.pages, kind, namespace=namespace)
        reading.parts[name] += _listed(reading, checks, kind, namespace, pages)
    nothing_read = len(reading.unread) == before + len(_PARTS)
    systems = registered_systems(each.node for each in reading.parts["nodes"])
    reads_names = bool(systems)
    if reads_names and settle_by_cluster(cluster, [each.node for each in reading.parts["nodes"]]):
        kind, namespace, checks = _PARTS["nodes"]
        pages = partial(cluster.pages, kind, namespace=namespace)
        reading.parts["nodes"] = _listed(reading, checks, kind, namespace, pages)
    _read_bare_pods(reading, cluster)
    _read_queued_pods(reading, cluster)
    if has_policies(server_version or "") and writers(components(reading.workloads)):
        _read_policies(reading, cluster)
    configs = [*given, *_configs(reading, cluster, reading.workloads)]
    reviewed, denied = _reviews(reading, cluster, reading.workloads)
    return reading.facts(
        as_of,
        groups=groups,
        custom_kinds=_custom_kinds(reading, cluster, groups),
        server_version=server_version or "",
        clock_ahead=cluster.clock_ahead,
        configs=tuple(configs),
        reviewed=reviewed,
        denied=tuple(denied),
        nothing_read=nothing_read,
        named_configs=tuple(configs_of_cluster(cluster, systems)) if reads_names else (),
        node_units=_with_all_units(cluster) if reads_names else (),
        units=units,
        kueue=_kueue_at(reading, cluster),
    )


def _kueue_at(reading: _Reading, cluster: ApiClient) -> KueueConfig | None:
    """The configuration in the ConfigMap that Kueue mounts."""
    managers = [each for each in components(reading.workloads) if each.row.role is _QUEUE_MANAGER]
    for manager in managers:
        namespace = manager.workload.namespace
        for name in manager.workload.config_maps:
            right = Right("", CONFIG_MAPS.plural, "get", namespace, name)
            ask = partial(cluster.config_map, namespace, name)
            data = _tried(reading, (_CHECK.SETTINGS,), f"ConfigMap {namespace}/{name}", ask, right)
            if data is not None and KUEUE_KEY in data:
                return kueue_config(data)
    return None


def _kueue_in(name: str, data: Mapping[str, str]) -> KueueConfig | None:
    """The configuration of Kueue in a ConfigMap of a dump; None if it has none."""
    is_kueues = name.endswith(KUEUE_CONFIG_MAP) and KUEUE_KEY in data
    return kueue_config(data) if is_kueues else None


def _with_all_units(cluster: ApiClient) -> tuple[Node, ...]:
    """The nodes with a register, with all their resources."""
    pages = cluster.pages(NODE_UNITS, ahead=True)
    return tuple(filter(has_register, (node for page in pages for node in page.objects)))


def installed(cluster: ApiClient) -> ClusterFacts | None:
    """The components and the configurations of schedulers alone; None if they may not be read.

    The nodes are missing, as are rights, clocks and policies.
    """
    reading = _Reading()
    try:
        for name in ("daemon_sets", "deployments"):
            kind, namespace, checks = _PARTS[name]
            pages = partial(cluster.pages, kind, namespace=namespace)
            reading.parts[name] += _listed(reading, checks, kind, namespace, pages)
        configs = tuple(_configs(reading, cluster, reading.workloads))
    except ClusterError:
        return None
    return reading.facts(time.time(), configs=configs)


def _tried(
    reading: _Reading,
    checks: tuple[DoctorCheck, ...],
    what: str,
    ask: Callable[[], _Kept],
    right: Right | None = None,
) -> _Kept | None:
    """The answer; None if the part cannot be read, which is noted.

    Raises ClusterError if no other part can be read either.
    """
    try:
        return ask()
    except ClusterError as error:
        if error.reason in ("Unreachable", "Unauthorized"):
            raise
        is_missing = error.reason == "Forbidden" and right is not None
        why = f"missing right: {right.text}" if right and is_missing else str(error)
        rule = right.rule if right and is_missing else ""
        reading.unread.append(Unread(checks, what, why, rule))
    except SourceError as error:
        reading.unread.append(Unread(checks, what, str(error)))
    return None


def _listed(
    reading: _Reading,
    checks: tuple[DoctorCheck, ...],
    kind: ApiKind[_Kept],
    namespace: str,
    pages: Callable[[], Iterable[ObjectPage[_Kept]]],
) -> list[_Kept]:
    """The objects of a list that can be read; what cannot is noted."""
    right = Right(kind.group, kind.plural, LIST.word, namespace)
    what = _part_text(kind, namespace)
    read = _tried(reading, checks, what, lambda: list(pages()), right) or []
    reading.malformed += (_title(each) for page in read for each in page.malformed)
    return [each for page in read for each in page.objects]


def _read_bare_pods(reading: _Reading, cluster: ApiClient) -> None:
    """The pods without a controller in the namespaces where components are."""
    namespaces = {component.workload.namespace for component in components(reading.workloads)}
    for namespace in sorted({KUBE_SYSTEM, *namespaces}):
        pages = partial(cluster.pages, BARE_PODS, namespace=namespace, label_selector=UNMANAGED)
        pods = _listed(reading, (_CHECK.SYSTEMS,), BARE_PODS, namespace, pages)
        reading.bare_pods += filter(None, pods)


def _read_queued_pods(reading: _Reading, cluster: ApiClient) -> None:
    """The pods that name a queue of KAI Scheduler by a label that it does not read."""
    read, others = unread_labels(components(reading.workloads))
    for label in others:
        pages = partial(cluster.pages, QUEUED_PODS, label_selector=f"{label},!{read}")
        pods = _listed(reading, (_CHECK.SETTINGS,), QUEUED_PODS, "", pages)
        reading.queued_pods += filter(None, pods)


def _read_policies(reading: _Reading, cluster: ApiClient) -> None:
    """The admission policies and their bindings: without one list the other proves nothing."""
    before = len(reading.unread)
    for name, kind in _POLICY_PARTS.items():
        pages = partial(cluster.pages, kind)
        reading.parts[name] += _listed(reading, (_CHECK.RIGHTS,), kind, "", pages)
    reading.has_policies = len(reading.unread) == before


def _custom_kinds(
    reading: _Reading, cluster: ApiClient, groups: frozenset[str] | None
) -> frozenset[str] | None:
    """The names of the custom resources of sharing systems; None if they are not known.

    By the server's discovery, which every user may read.
    """
    if groups is None:
        return None
    wanted = {kind.group for kind in CUSTOM_KINDS}
    names: set[str] = set()
    for group_version in sorted(groups):
        group = group_version.partition("/")[0]
        if group not in wanted:
            continue
        ask = partial(cluster.api_resources, group_version)
        plurals = _tried(reading, (_CHECK.SYSTEMS,), f"the kinds of {group_version}", ask)
        if plurals is None:
            return None
        names.update(f"{plural}.{group}" for plural in plurals)
    return frozenset(names & {kind.name for kind in CUSTOM_KINDS})


def _configs(
    reading: _Reading, cluster: ApiClient, workloads: Sequence[Workload]
) -> Iterator[SchedulerText]:
    """The configurations in ConfigMaps that pods of schedulers mount."""
    for namespace, name in _config_maps(workloads):
        right = Right("", CONFIG_MAPS.plural, "get", namespace, name)
        what = f"ConfigMap {namespace}/{name}"

        def ask(namespace: str = namespace, name: str = name) -> Any:
            return cluster.config_map(namespace, name)

        data = _tried(reading, (_CHECK.SCHEDULER,), what, ask, right) or {}
        yield from _texts(what, data)


def _config_maps(workloads: Iterable[Workload]) -> list[tuple[str, str]]:
    """Namespace and name of the ConfigMaps that may have a scheduler's configuration."""
    return sorted(
        {
            (each.workload.namespace, name)
            for each in components(workloads)
            if each.row.role in _WITH_CONFIG
            for name in each.workload.config_maps
        }
    )


def _texts(place: str, data: dict[str, str]) -> Iterator[SchedulerText]:
    for key, text in data.items():
        is_volcanos = key.startswith("volcano-scheduler") and key.endswith(".conf")
        if is_volcanos or "KubeSchedulerConfiguration" in text:
            yield SchedulerText(f"{place} {key}", text)


def _reviews(
    reading: _Reading, cluster: ApiClient, workloads: Sequence[Workload]
) -> tuple[int, list[DeniedRight]]:
    """The number of rights of our components that were asked for, and the missing ones."""
    wanted = {
        (each.workload.title, each.workload.namespace, each.workload.service_account, *need)
        for each in components(workloads)
        for need in needed(each)
    }
    if not wanted:
        return 0, []
    count, denied = 0, []
    for title, namespace, account, right, need in sorted(wanted):
        user = service_account_user(namespace, account)
        body = account_access(namespace, account, right)

        def ask(body: Mapping[str, Any] = body) -> bool:
            return ACCESS_REVIEWS.one(cluster.send(CREATE, ACCESS_REVIEWS, "", "", body))

        review = Right(ACCESS_REVIEWS.group, ACCESS_REVIEWS.plural, CREATE.word)
        allowed = _tried(reading, (_CHECK.RIGHTS,), f"rights of {user}", ask, review)
        if allowed is None:
            break  # the other answers would be the same
        count += 1
        if not allowed:
            denied.append(DeniedRight(title, user, right, need))
    return count, denied


# ---------------------------------------------------------------- dumps


def _contents(
    paths: Sequence[str], read: ReadDump
) -> tuple[list[tuple[str, DumpItems, float]], tuple[list[ConfiguredNames], list[Node]]]:
    """Path, objects and time of each dump, and what :func:`settle_by_dumps` finds in them."""
    files = [(path, *read(path)) for path in paths]
    try:
        contents = [
            (path, DumpItems.of(content, path), written) for path, content, written in files
        ]
        return contents, settle_by_dumps([(content, path) for path, content, _ in contents])
    except SourceError as error:
        raise _not_a_dump(str(error)) from error


def from_dumps(
    paths: Sequence[str],
    units: UnitBytes,
    given: Sequence[SchedulerText] = (),
    read: ReadDump | None = None,
) -> ClusterFacts:
    """The facts of dumps, which ``read`` reads; ``given`` as above. Raises ClickException."""
    reading = _Reading()
    times: list[float] = []
    configs = list(given)
    kueue: KueueConfig | None = None
    definitions: set[str] | None = None
    kinds = {kind.name: (name, kind, namespace) for name, (kind, namespace, _) in _PARTS.items()}
    kinds |= {kind.name: (name, kind, "") for name, kind in _POLICY_PARTS.items()}
    seen: set[str] = set()
    contents, (named_configs, node_units) = _contents(paths, read or read_dump)
    for path, content, written in contents:
        times.append(written)
        try:
            for kind_name, about, item in items_of(content, path):
                name, kind, namespace = kinds.get(kind_name, ("", CONFIG_MAPS, ""))
                if kind_name == CUSTOM_DEFINITION:
                    definitions = {*(definitions or ()), about.metadata.name}
                    continue
                if about.api_version not in ("", kind.api_version):
                    continue
                try:
                    if name and about.metadata.namespace == (namespace or about.metadata.namespace):
                        seen.add(name)
                        reading.parts[name] += kind.kept(item, path, Keep.ALL)
                    elif kind_name == CONFIG_MAPS.name:
                        ((data, _),) = CONFIG_MAPS.kept(item, path, Keep.ALL)
                        meta = about.metadata
                        configs += _texts(f"ConfigMap {meta.namespace}/{meta.name}", dict(data))
                        kueue = _kueue_in(meta.name, data) or kueue
                    elif kind_name == BARE_PODS.name:
                        seen.add(kind_name)
                        pods = BARE_PODS.kept(item, path, Keep.ALL)
                        reading.bare_pods += filter(None, pods)
                        queued = QUEUED_PODS.kept(item, path, Keep.ALL)
                        reading.queued_pods += filter(None, queued)
                except SourceError as error:
                    reading.malformed.append(_title(unread(kind_name, item, error)))
        except SourceError as error:
            raise _not_a_dump(str(error)) from error
    if not seen and not configs:
        raise _not_a_dump(f"{' and '.join(paths)}: it has nothing that is checked")
    reading.has_policies = not seen.isdisjoint(_POLICY_PARTS)
    for name, (kind, namespace, checks) in _PARTS.items():
        if name not in seen:
            what = _part_text(kind, namespace)
            reading.unread.append(Unread(checks, what, "there are none in the dump"))
    return reading.facts(
        min(times),
        is_dump=True,
        configs=tuple(configs),
        named_configs=tuple(named_configs),
        node_units=tuple(filter(has_register, node_units)),
        units=units,
        custom_kinds=None if definitions is None else frozenset(definitions),
        kueue=kueue,
    )


INSTALLATION_KINDS: Final = frozenset({"DaemonSet", "Deployment", "ConfigMap"})
"""The kinds of a dump that show how the sharing systems are installed."""


def installed_in_dumps(
    paths: Sequence[str], kinds: Collection[str], file: ReadDump
) -> Callable[[], ClusterFacts | None] | None:
    """How to read the installation from dumps with these ``kinds``; None if they have none of it.

    ``file`` reads one of the paths, again.
    """
    if INSTALLATION_KINDS.isdisjoint(kinds):
        return None

    def read() -> ClusterFacts | None:
        try:
            return from_dumps(paths, {}, read=file)
        except click.ClickException:
            return None

    return read


def _not_a_dump(problem: str) -> click.ClickException:
    return HintedFailure(f"--from {problem}", f"It is to be the output of: {DUMPED} -A -o json")


def _part_text(kind: ApiKind[Any], namespace: str) -> str:
    plural = f"{kind.name.removesuffix('y')}ies" if kind.name.endswith("y") else f"{kind.name}s"
    return f"{plural} of {namespace}" if namespace else plural


def _title(broken: MalformedObject) -> str:
    """The object, without what is wrong with it: that may repeat its texts."""
    return f"{broken.kind} {'/'.join(filter(None, (broken.ref.namespace, broken.ref.name)))}"


def given_config(path: str, most_bytes: int) -> SchedulerText:
    """The file of --scheduler-config. Raises click.ClickException."""
    try:
        with open(path, "rb") as opened:  # noqa: PTH123  # any file that the user names
            content = opened.read(most_bytes + 1)
    except OSError as error:
        raise click.ClickException(f"--scheduler-config {path}: {error.strerror}") from error
    if len(content) > most_bytes:
        raise click.ClickException(f"--scheduler-config {path}: larger than {most_bytes} bytes")
    return SchedulerText(path, content.decode("utf-8", "replace"))
