"""What is wrong on one node: the driver, the kubelet's files, containerd's CDI, monitors; pure."""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from vgpu.model.facts import Gpu
from vgpu.model.reasons import Reason
from vgpu.model.units import count
from vgpu.sources.samples import CollectorRow
from vgpucli.doctor.answer import findings_of
from vgpucli.doctor.model import DoctorCheck, DoctorFinding, DoctorReason, finding

SPEC_DIRS: Final = frozenset({"/var/run/cdi", "/run/cdi"})
"""The folder of our CDI specs by default, by its two names."""

_PLUGINS: Final = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "cri")
"""The names of containerd's CRI plugin, of version 2, 3 and 1 of its configuration."""

_DRIVER: Final = "nvml"
"""The name of the collector that asks the driver."""

_CHECK: Final = DoctorCheck.NODE


class ContainerdConfig(msgspec.Struct, frozen=True):
    """The settings of containerd about CDI; None is left to the default of its version.

    ``has_imports`` is whether further files may have more.
    """

    enable_cdi: bool | None = None
    spec_dirs: tuple[str, ...] | None = None
    has_imports: bool = False


class NodeFacts(msgspec.Struct, frozen=True):
    """What is known of this node.

    Attributes:
        as_of: unix seconds.
        name: the node.
        collectors: the health of the exporter's collectors after one sample.
        gpus: the devices that the driver reports.
        sockets: whether a socket of the kubelet is there, by path.
        containerd: its configuration; None if it was not read, and ``containerd_note`` is why.
        monitor: HAMi's monitor on this node; "" if there is none, None if that is not known, and
            ``monitor_note`` is why.
    """

    as_of: float
    name: str
    collectors: tuple[CollectorRow, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    sockets: Mapping[str, bool] = {}
    containerd: ContainerdConfig | None = None
    containerd_note: str = ""
    monitor: str | None = None
    monitor_note: str = ""


def parse_containerd(text: str) -> ContainerdConfig:
    """The configuration in a file. Raises ValueError if it is not TOML."""
    document = tomllib.loads(text)
    plugins = _table(document.get("plugins"))
    enabled: bool | None = None
    spec_dirs: tuple[str, ...] | None = None
    for name in _PLUGINS:
        plugin = _table(plugins.get(name))
        if isinstance(plugin.get("enable_cdi"), bool):
            enabled = plugin["enable_cdi"]
        if isinstance(plugin.get("cdi_spec_dirs"), list):
            spec_dirs = tuple(str(each) for each in plugin["cdi_spec_dirs"])
    return ContainerdConfig(enabled, spec_dirs, bool(document.get("imports")))


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


# ---------------------------------------------------------------- checks


def node_findings(facts: NodeFacts) -> Iterator[DoctorFinding]:
    """The findings of all checks of a node."""
    findings = [
        each
        for check in NODE_CHECKS
        for each in findings_of(_CHECK, check.__name__.removeprefix("_"), check, facts)
    ]
    yield from findings
    bad = {
        DoctorReason.NO_DRIVER,
        DoctorReason.GPU_UNREADABLE,
        DoctorReason.SOURCE_FAILED,
        DoctorReason.CHECK_FAILED,
    }
    if all(each.reason not in bad for each in findings) and facts.collectors:
        names = ", ".join(row.name for row in facts.collectors)
        yield finding(_CHECK, DoctorReason.PASSED, "", f"what the exporter reads here: {names}")


def _driver(facts: NodeFacts) -> Iterator[DoctorFinding]:
    for row in facts.collectors:
        if row.name == _DRIVER and row.success is False:
            yield finding(_CHECK, DoctorReason.NO_DRIVER, "", row.last_error)
        if row.name == _DRIVER and row.rejected:
            yield finding(_CHECK, DoctorReason.GPU_UNREADABLE, "", *_counted(row.rejected, "GPU"))
    devices = [gpu for gpu in facts.gpus if not gpu.parent]
    versions = sorted({gpu.info.get("driver_version", "unknown") for gpu in devices})
    if devices:
        models = Counter(gpu.info.get("name", "unknown model") for gpu in devices)
        texts = (f"{number} × {model}" for model, number in sorted(models.items()))
        text = f"driver {', '.join(versions)}: {', '.join(texts)}"
        yield finding(_CHECK, DoctorReason.DRIVER, "", text)


def _sources(facts: NodeFacts) -> Iterator[DoctorFinding]:
    for row in facts.collectors:
        if row.name == _DRIVER:
            continue
        if row.success is False:
            yield finding(_CHECK, DoctorReason.SOURCE_FAILED, row.name, row.last_error)
        # A folder that is absent is that of a system that is not in use.
        refused = dict(row.rejected)
        refused.pop(Reason.ABSENT, None)
        if refused:
            texts = _counted(refused, "input")
            yield finding(_CHECK, DoctorReason.INPUT_REFUSED, row.name, *texts)


def _counted(refused: Mapping[Reason, int], noun: str) -> tuple[str, ...]:
    return tuple(
        f"{count(number, noun)}: {reason.explanation}" for reason, number in sorted(refused.items())
    )


def _sockets(facts: NodeFacts) -> Iterator[DoctorFinding]:
    for path, is_there in facts.sockets.items():
        if not is_there:
            yield finding(_CHECK, DoctorReason.SOCKET_ABSENT, path)


def _containerd(facts: NodeFacts) -> Iterator[DoctorFinding]:
    config = facts.containerd
    if facts.containerd_note:
        yield finding(_CHECK, DoctorReason.CONTAINERD_UNKNOWN, "", facts.containerd_note)
    if config is None:
        return
    about = "containerd"
    imports = "; imported files were not read" if config.has_imports else ""
    if config.enable_cdi is False:
        yield finding(_CHECK, DoctorReason.CDI_OFF, about, f"enable_cdi = false{imports}")
    elif config.enable_cdi is None:
        text = f"enable_cdi is not set: off in containerd 1.7, on in 2.0 and newer{imports}"
        yield finding(_CHECK, DoctorReason.RUNTIME_CONFIG, about, text)
    else:
        yield finding(_CHECK, DoctorReason.RUNTIME_CONFIG, about, f"enable_cdi = true{imports}")
    if config.spec_dirs is not None and SPEC_DIRS.isdisjoint(config.spec_dirs):
        text = f"cdi_spec_dirs: {', '.join(config.spec_dirs) or 'none'}"
        yield finding(_CHECK, DoctorReason.CDI_FOLDER_UNKNOWN, about, text)


def _monitor(facts: NodeFacts) -> Iterator[DoctorFinding]:
    if facts.monitor:
        yield finding(_CHECK, DoctorReason.FEEDBACK_MONITOR, "", facts.monitor)
    if facts.monitor_note:
        yield finding(_CHECK, DoctorReason.MONITOR_UNKNOWN, "", facts.monitor_note)


NODE_CHECKS: Final[tuple[Callable[[NodeFacts], Iterator[DoctorFinding]], ...]] = (
    _driver,
    _sources,
    _sockets,
    _containerd,
    _monitor,
)
"""The checks of a node."""
