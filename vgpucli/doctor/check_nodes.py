"""Runtimes, kubelets, clocks and units of memory of the nodes; pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

from vgpu.inventory.unit_check import doubt_notes, doubts_of
from vgpu.kube.installation import ReportedNode
from vgpu.model.units import GIB, MIB, count
from vgpu.schemes.registry import registry
from vgpucli.doctor.components import (
    GPUSHARE,
    MEMORY_FACTOR,
    MEMORY_UNIT,
    VOLCANOS,
    ComponentRole,
    InstalledComponent,
)
from vgpucli.doctor.facts import ClusterFacts, named
from vgpucli.doctor.model import DoctorCheck, DoctorFinding, DoctorReason, finding

MACHINE_MARGIN_SECONDS: Final = 2.0
"""Maximum difference of the clocks of this machine and of the API server, in seconds."""

NODE_MARGIN_SECONDS: Final = 5.0
"""Maximum difference of the clocks of a node and of the API server, in seconds: a busy server may
write a Lease seconds after the kubelet has sent it."""

LATE_SECONDS: Final = 40.0
"""Maximum age of a node's Lease, in seconds: its duration by the kubelet's default."""

OLDEST_CDI_KUBELET: Final = (1, 29)
"""The first kubelet with CDI devices of device plugins switched on (DevicePluginCDIDevices)."""

MOST_SKEW: Final = 3
"""Number of minor versions that a kubelet may be older than its API server."""

_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?")
_FACTOR: Final = re.compile(r"[1-9][0-9]{0,6}")
_UNIT: Final = re.compile(r"([1-9][0-9]{0,6})?(MiB|GiB)")

Version = tuple[int, ...]


class CdiSupport(Enum):
    """Whether a container runtime injects CDI devices."""

    YES = "yes"
    NO = "no"
    IF_ENABLED = "if_enabled"
    UNKNOWN = "unknown"


_CDI: Final[Mapping[str, tuple[tuple[Version, CdiSupport], ...]]] = {
    "containerd": (
        ((2, 0), CdiSupport.YES),
        ((1, 7, 18), CdiSupport.IF_ENABLED),
        ((1, 7, 12), CdiSupport.UNKNOWN),
        ((0,), CdiSupport.NO),  # 1.7.11 reads no specs of version 0.6, 1.6 reads none
    ),
    "cri-o": (
        ((1, 28), CdiSupport.YES),
        ((1, 23), CdiSupport.UNKNOWN),
        ((0,), CdiSupport.NO),
    ),
}
"""The answer by the name of the runtime, from the version on that comes first."""


def version(text: str) -> Version:
    """Numbers of a version such as ``v1.34.4+k3s1``; () for another text."""
    match = _VERSION.match(text)
    return tuple(int(number) for number in match.groups() if number is not None) if match else ()


def cdi_support(runtime: str) -> CdiSupport:
    """The answer for a runtime such as ``containerd://1.7.18``."""
    name, _, text = runtime.partition("://")
    known = version(text)
    if known:
        for least, support in _CDI.get(name, ()):
            if known >= least:
                return support
    return CdiSupport.UNKNOWN


# ---------------------------------------------------------------- runtime


_SUPPORT_REASONS: Final = {
    CdiSupport.NO: DoctorReason.NO_CDI,
    CdiSupport.IF_ENABLED: DoctorReason.CDI_UNKNOWN,
    CdiSupport.UNKNOWN: DoctorReason.RUNTIME_UNKNOWN,
}


def check_runtime(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Container runtimes of nodes with GPUs; CDI where our device plugin needs it."""
    runtimes = _by_text((node.node.name, node.runtime) for node in facts.gpu_nodes)
    if runtimes:
        yield finding(DoctorCheck.RUNTIME, DoctorReason.RUNTIMES, "", *_texts(runtimes))
    for plugin in _cdi_plugins(facts):
        by_support: dict[CdiSupport, list[ReportedNode]] = {}
        for node in _nodes_of(facts, plugin):
            by_support.setdefault(cdi_support(node.runtime), []).append(node)
        for support, nodes in by_support.items():
            if support in _SUPPORT_REASONS:
                texts = _texts(_by_text((node.node.name, node.runtime) for node in nodes))
                reason = _SUPPORT_REASONS[support]
                yield finding(DoctorCheck.RUNTIME, reason, plugin.workload.title, *texts)


def _cdi_plugins(facts: ClusterFacts) -> Iterator[InstalledComponent]:
    for plugin in facts.of_role(ComponentRole.DEVICE_PLUGIN):
        if plugin.is_ours and "no-cdi" not in plugin.flags:
            yield plugin


def _nodes_of(facts: ClusterFacts, plugin: InstalledComponent) -> list[ReportedNode]:
    return [node for node in facts.selected(plugin.workload) if node.node.name in facts.systems]


# ---------------------------------------------------------------- kubelet


def check_kubelet(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Kubelets of nodes with GPUs: what they can do, and whether the API server supports them."""
    kubelets = _by_text((node.node.name, _kubelet(node)) for node in facts.gpu_nodes)
    if kubelets:
        server = (f"API server: {facts.server_version}",) if facts.server_version else ()
        yield finding(DoctorCheck.KUBELET, DoctorReason.KUBELETS, "", *_texts(kubelets), *server)
    for plugin in _cdi_plugins(facts):
        old = [
            (node.node.name, _kubelet(node))
            for node in _nodes_of(facts, plugin)
            if () < version(node.kubelet)[:2] < OLDEST_CDI_KUBELET
        ]
        if old:
            reason = DoctorReason.KUBELET_WITHOUT_CDI
            texts = _texts(_by_text(old))
            yield finding(DoctorCheck.KUBELET, reason, plugin.workload.title, *texts)
    server_version = version(facts.server_version)[:2]
    skewed = [
        (node.node.name, _kubelet(node))
        for node in facts.gpu_nodes
        if _is_skewed(version(node.kubelet)[:2], server_version)
    ]
    if skewed:
        texts = (*_texts(_by_text(skewed)), f"API server: {facts.server_version}")
        yield finding(DoctorCheck.KUBELET, DoctorReason.KUBELET_SKEW, "", *texts)
    drivers = facts.of_role(ComponentRole.DRA_DRIVER)
    if drivers and facts.groups is not None and "resource.k8s.io/v1" not in facts.groups:
        texts = tuple(each.text for each in drivers)
        yield finding(DoctorCheck.KUBELET, DoctorReason.OLD_DRA, "", *texts)


def _kubelet(node: ReportedNode) -> str:
    return f"kubelet {node.kubelet or 'unknown'}"


def _is_skewed(kubelet: Version, server: Version) -> bool:
    if not kubelet or not server:
        return False
    return kubelet > server or kubelet[0] < server[0] or server[1] - kubelet[1] > MOST_SKEW


# ---------------------------------------------------------------- clocks


def check_clocks(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Clocks by the Date of the server's answers, and by the renewals of the nodes' Leases."""
    ahead = facts.clock_ahead
    if ahead is not None and abs(ahead) > MACHINE_MARGIN_SECONDS:
        evidence = f"this machine is {_difference(ahead)} the API server"
        yield finding(DoctorCheck.CLOCKS, DoctorReason.CLOCK_OF_THIS_MACHINE, "", evidence)
    ready = {node.node.name for node in facts.nodes if node.node.ready}
    written = [each.written_at for each in facts.heartbeats if each.written_at is not None]
    now = max(written, default=0.0) if facts.is_dump else facts.as_of - (ahead or 0.0)
    for each in sorted(facts.heartbeats, key=lambda heartbeat: heartbeat.node):
        if each.renewed_at is not None and each.written_at is not None:
            # The server's time has whole seconds, rounded down.
            behind = max(0.0, each.written_at - each.renewed_at)
            difference = max(0.0, each.renewed_at - each.written_at - 1) - behind
            if abs(difference) > NODE_MARGIN_SECONDS:
                evidence = f"{_difference(difference)} the API server"
                reason = DoctorReason.CLOCK_OF_NODE
                yield finding(DoctorCheck.CLOCKS, reason, f"Node {each.node}", evidence)
        if each.node in ready and each.written_at is not None:
            age = now - each.written_at
            if age > LATE_SECONDS:
                evidence = f"its Lease was renewed {age:.0f} s ago"
                reason = DoctorReason.NO_HEARTBEAT
                yield finding(DoctorCheck.CLOCKS, reason, f"Node {each.node}", evidence)


def _difference(ahead: float) -> str:
    return f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"


# ---------------------------------------------------------------- units


_UNIT_FLAGS: Final = {
    MEMORY_FACTOR: (MEMORY_FACTOR, "gpu-memory-factor"),
    MEMORY_UNIT: (MEMORY_UNIT, "memory-unit"),
}
"""Our flag, and the names of the same one of ours and of the original."""

_DEFAULTS: Final = {MEMORY_FACTOR: "1", MEMORY_UNIT: "GiB"}
_ROW_OF: Final = {MEMORY_FACTOR: VOLCANOS, MEMORY_UNIT: GPUSHARE}


def check_units(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Units of memory: of the components among each other, and against what nodes advertise."""
    for flag, names in _UNIT_FLAGS.items():
        by_unit: dict[str, list[str]] = {}
        for each in facts.components:
            unit = _typed_unit(flag, each)
            if unit is None and each.row.role is ComponentRole.DEVICE_PLUGIN:
                own = [name for name in names if name in each.row.flags]
                serves = flag.partition(".")[0] in each.serves
                unit = _DEFAULTS[flag] if own and serves else None
            if unit is not None:
                by_unit.setdefault(_unit_text(flag, unit), []).append(each.text)
        if len(by_unit) > 1:
            texts = (f"{unit}: {', '.join(users)}" for unit, users in sorted(by_unit.items()))
            yield finding(DoctorCheck.UNITS, DoctorReason.UNITS_DIFFER, f"--{flag}", *texts)
    nodes = [node.node for node in facts.gpu_nodes]
    plugin_units, sentences = _plugin_units(facts)
    for text in sentences:
        yield finding(DoctorCheck.UNITS, DoctorReason.UNIT_OF_PLUGIN, "", text)
    unit_bytes, notes = registry().assumed_units({**plugin_units, **facts.units}, nodes)
    for note in notes:
        yield finding(DoctorCheck.UNITS, DoctorReason.UNIT_ASSUMED, "", note)
    for note in doubt_notes(doubts_of(nodes, {}, registry().rows, unit_bytes)):
        yield finding(DoctorCheck.UNITS, DoctorReason.UNIT_UNCONFIRMED, "", note)


def _plugin_units(facts: ClusterFacts) -> tuple[dict[str, int], list[str]]:
    """The units that device plugins run with, in bytes by row, and sentences about them.

    Where plugins of one system have several units, none of them is used.
    """
    units: dict[str, int] = {}
    texts: list[str] = []
    for flag, row in _ROW_OF.items():
        by_size: dict[int, str] = {}
        for plugin in facts.of_role(ComponentRole.DEVICE_PLUGIN):
            unit = _typed_unit(flag, plugin)
            size = _unit_bytes(flag, unit) if unit is not None else None
            if size is not None:
                by_size[size] = f"{_unit_text(flag, unit or '')}, by {plugin.text}"
        if len(by_size) == 1 and row not in facts.units:
            ((units[row], text),) = by_size.items()
            texts.append(f"one unit of {row}'s memory is {text}")
    return units, texts


def _typed_unit(flag: str, component: InstalledComponent) -> str | None:
    """The text of the flag, or of the original's; None if the command line has neither."""
    names = _UNIT_FLAGS[flag]
    return next((component.flags[name] for name in names if name in component.flags), None)


def _unit_bytes(flag: str, text: str) -> int | None:
    """Bytes of one unit; None for a text of another form."""
    if flag == MEMORY_FACTOR:
        return int(text) * MIB if _FACTOR.fullmatch(text) else None
    match = _UNIT.fullmatch(text)
    return int(match[1] or 1) * (GIB if match[2] == "GiB" else MIB) if match else None


def _unit_text(flag: str, text: str) -> str:
    """The unit for people; a text of another form is not repeated."""
    size = _unit_bytes(flag, text)
    if size is None:
        return "unreadable"
    return f"{size // GIB} GiB" if size % GIB == 0 else f"{size // MIB} MiB"


# ---------------------------------------------------------------- parts


def _by_text(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The names of nodes, by a text."""
    by_text: dict[str, list[str]] = {}
    for name, text in pairs:
        by_text.setdefault(text or "unknown", []).append(name)
    return by_text


def _texts(by_text: Mapping[str, list[str]]) -> tuple[str, ...]:
    return tuple(
        f"{text}: {count(len(names), 'node')} ({named(names)})"
        for text, names in sorted(by_text.items())
    )
