"""The exporter's flags, which are also environment variables, and checks of their combinations."""

import re
from collections.abc import Callable
from typing import Any

import click
import msgspec

from exporter.compat import CONFLICTING, Compat
from exporter.details import MEANING, Detail
from vgpu.model.units import MIB
from vgpu.program.flags import Duration, MemoryUnit, env, field, is_typed, log_flags
from vgpu.program.pages import RESERVED
from vgpu.program.resource_flags import resource_flags
from vgpu.program.web_flags import web_flags
from vgpu.sources.http_access import ClientOptions
from vgpu.web.connections import MAX_CONNECTIONS, MAX_PER_ADDRESS
from vgpu.web.server import MAX_REQUESTS

DEFAULT_PORT = 9394

DEFAULT_TOKENS_URL = "http://127.0.0.1:9402/metrics"

ALL_DETAILS = "all"
"""The value of --metrics.detail that stands for all its other values."""

COLLECTORS: dict[str, tuple[bool, str]] = {
    "nvml": (True, "devices and their processes from the driver"),
    "xid": (True, "XID errors as the driver reports them"),
    "shim": (True, "shared regions of HAMi-core and Volcano vGPU"),
    "kubelet": (True, "pod names and the device checkpoint"),
    "limits": (True, "limit files of gpu-manager and KubeShare"),
    "plugin": (True, "what our own device plugin has bound, from its checkpoint"),
    "process": (True, "processes to containers, through /proc and cgroups"),
    "tokens": (False, "shares of GPU time from the node's token daemon"),
    "api": (False, "this node and its pods from the API server, watched: annotations, phases"),
    "dra": (False, "this node's ResourceClaims from the API server: UUIDs and sizes of devices"),
    "bare": (
        False,
        "regions, libraries and limits of MPS inside containers; needs SYS_PTRACE",
    ),
}
"""Name -> (on by default, help)."""

NEEDS = {"xid": "nvml", "bare": "process", "dra": "kubelet"}
"""Collectors that need another collector."""

FLAG_OF_COLLECTOR = {
    "--shim.root": "shim",
    "--kubelet.log-dir": "kubelet",
    "--kubelet.checkpoint": "kubelet",
    "--kubelet.pod-resources": "kubelet",
    "--kubelet.dra-state": "kubelet",
    "--dra.spec-dir": "kubelet",
    "--limits.gaia-dir": "limits",
    "--limits.kubeshare-dir": "limits",
    "--limits.mps-dir": "limits",
    "--plugin.state-dir": "plugin",
    "--path.procfs": "process",
    "--path.cgroupfs": "process",
    "--gpushare.memory-unit": "kubelet",
    "--nvidia.resource": "kubelet",
    "--kubeconfig": "api dra",
    "--tokens.url": "tokens",
    "--tokens.ca-file": "tokens",
    "--tokens.cert": "tokens",
    "--tokens.key": "tokens",
    "--tokens.server-name": "tokens",
    "--tokens.username": "tokens",
    "--tokens.password-file": "tokens",
    "--nvml.pcie-throughput": "nvml",
    "--nvml.expected-gpus": "nvml",
}
"""Flags that have no effect without their collector, or without all of several."""

PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")


class ExporterOptions(msgspec.Struct, frozen=True):
    """The flags, parsed and checked."""

    web_listen_address: tuple[str, ...] = (f":{DEFAULT_PORT}",)
    web_telemetry_path: str = "/metrics"
    web_config_file: str | None = None
    web_probe_address: str | None = None
    web_max_requests: int = MAX_REQUESTS
    web_max_connections: int = MAX_CONNECTIONS
    web_max_connections_per_address: int = MAX_PER_ADDRESS
    node_name: str = ""
    sample_interval: float = 15.0
    sample_timeout: float = 10.0
    compat: tuple[Compat, ...] = (Compat.VOLCANO,)
    compat_breakdown: bool = False
    metrics_detail: tuple[Detail, ...] = ()
    collectors: frozenset[str] = frozenset(name for name, (on, _) in COLLECTORS.items() if on)
    shim_root: tuple[str, ...] = ()
    kubelet_log_dir: str = "/var/log/pods"
    kubelet_checkpoint: str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    kubelet_pod_resources: str | None = None
    kubelet_dra_state: str = "/var/lib/kubelet/dra_manager_state"
    dra_spec_dir: tuple[str, ...] = ()
    pods: str | None = None
    limits_gaia_dir: str = "/etc/gpu-manager/vm"
    limits_kubeshare_dir: str = "/kubeshare/scheduler/config"
    plugin_state_dir: str = "/var/lib/vgpu"
    tokens_url: str = DEFAULT_TOKENS_URL
    tokens_ca_file: str | None = None
    tokens_cert: str | None = None
    tokens_key: str | None = None
    tokens_server_name: str | None = None
    tokens_username: str | None = None
    tokens_password_file: str | None = None
    path_procfs: str = "/proc"
    path_cgroupfs: str = "/sys/fs/cgroup"
    gpushare_memory_unit: int | None = None
    limits_mps_dir: str = "/run/nvidia/mps"
    volcano_memory_factor: int | None = None
    kubeconfig: str | None = None
    nvml_pcie_throughput: bool = False
    nvml_expected_gpus: int | None = None
    once: bool = False
    log_level: str = "info"
    log_format: str = "logfmt"

    @property
    def tokens_access(self) -> ClientOptions:
        """What the token daemon may ask for."""
        names = ClientOptions.__struct_fields__
        return ClientOptions(**{name: getattr(self, f"tokens_{name}") for name in names})

    @property
    def volcano_unit_bytes(self) -> int | None:
        """The size of one unit of volcano.sh/vgpu-memory, if the operator has set it."""
        factor = self.volcano_memory_factor
        return None if factor is None else factor * MIB


DEFAULTS = ExporterOptions()


def flag(name: str, help_: str, *, also_env: str = "", **kwargs: Any) -> Callable[[Any], Any]:
    """One option of the command; its default is that of :class:`ExporterOptions`."""
    names = [env(name), also_env] if also_env else env(name)
    default = getattr(DEFAULTS, field(name))
    kwargs.setdefault("default", default)
    kwargs.setdefault("show_default", default not in (None, False, "", ()))
    return click.option(name, field(name), help=help_, envvar=names, **kwargs)


def collector_flags(command: Any) -> Any:
    """--collector.NAME / --no-collector.NAME for each collector."""
    for name, (default, help_) in reversed(COLLECTORS.items()):
        command = click.option(
            f"--collector.{name}/--no-collector.{name}",
            f"collector_{name}",
            default=default,
            envvar=f"VGPU_COLLECTOR_{name.upper()}",
            help=f"Collect {help_}.  [default: {'on' if default else 'off'}]",
        )(command)
    return command


WEB = web_flags(f":{DEFAULT_PORT}")

FLAGS = (
    WEB.listen_address,
    flag("--web.telemetry-path", "Path of the metrics.", metavar="PATH"),
    WEB.config_file,
    WEB.probe_address,
    flag(
        "--web.max-requests",
        "Requests served at a time; more are answered 503.",
        type=click.IntRange(min=1),
    ),
    WEB.max_connections,
    WEB.max_per_address,
    flag(
        "--node-name",
        "Name of this node: picks its pods out of --pods, and is a label of the compatibility sets"
        " that have one. Default: the host's name.",
        also_env="NODE_NAME",
    ),
    flag(
        "--sample.interval",
        "Interval between two samples.",
        type=Duration(),
        metavar="DURATION",
        default="15s",
    ),
    flag(
        "--sample.timeout",
        "Maximum time to wait for the collectors of a sample; a late one is skipped for this"
        " sample. The processes are read last and have the same time again.",
        type=Duration(),
        metavar="DURATION",
        default="10s",
    ),
    flag(
        "--compat",
        "Metric names of an original monitor to serve beside our own; repeatable.",
        type=click.Choice([c.value for c in Compat]),
        multiple=True,
        default=[c.value for c in DEFAULTS.compat],
    ),
    flag(
        "--compat-breakdown",
        "Bring back the memory breakdown as labels of Device_memory_desc_of_container.",
        is_flag=True,
    ),
    flag(
        "--metrics.detail",
        "Own metrics to serve beside those of dashboards and alerts; repeatable. "
        + "; ".join(f"{detail}: {meaning}" for detail, meaning in MEANING.items())
        + f"; {ALL_DETAILS}: everything.",
        type=click.Choice([*(detail.value for detail in Detail), ALL_DETAILS]),
        multiple=True,
    ),
    collector_flags,
    flag(
        "--shim.root",
        "Folder of <podUID>_<container> folders with region files; repeatable. Default: those of"
        " HAMi and of Volcano's device plugin, old and new.",
        multiple=True,
        metavar="DIR",
    ),
    flag("--kubelet.log-dir", "The kubelet's pod logs, for the pods' names.", metavar="DIR"),
    flag("--kubelet.checkpoint", "The kubelet's device checkpoint.", metavar="FILE"),
    flag(
        "--kubelet.pod-resources",
        "The kubelet's pod-resources socket; needs the extra vgpu[pod-resources].",
        metavar="SOCKET",
    ),
    flag(
        "--kubelet.dra-state",
        "The kubelet's state of dynamic resource allocation: the pods of ResourceClaims.",
        metavar="FILE",
    ),
    flag(
        "--dra.spec-dir",
        "A folder of CDI specs, to find specs of DRA drivers that are missing; repeatable, and give"
        " all folders that the container runtime reads. Default: specs are not checked.",
        multiple=True,
        metavar="DIR",
    ),
    resource_flags,
    flag(
        "--pods",
        "A dump of 'kubectl get pods -A -o json' in place of --collector.api; read again on change."
        " Add --field-selector spec.nodeName=NODE: reading other nodes' pods costs memory.",
        metavar="FILE",
    ),
    flag("--limits.gaia-dir", "gpu-manager's folder of vcuda.config files.", metavar="DIR"),
    flag("--limits.kubeshare-dir", "KubeShare's folder of per-GPU config files.", metavar="DIR"),
    flag(
        "--limits.mps-dir", "Files of NVIDIA's device plugin about its MPS daemons.", metavar="DIR"
    ),
    flag("--plugin.state-dir", "Our own device plugin's folder of checkpoints.", metavar="DIR"),
    flag("--tokens.url", "The page of metrics of the node's `vgpu tokens`.", metavar="URL"),
    flag("--tokens.ca-file", "CA of its certificate, if it serves HTTPS.", metavar="FILE"),
    flag("--tokens.cert", "Client certificate for it.", metavar="FILE"),
    flag("--tokens.key", "Key of the client certificate.", metavar="FILE"),
    flag(
        "--tokens.server-name",
        "Name in its certificate. Default: the host of its URL.",
        metavar="NAME",
    ),
    flag("--tokens.username", "User name for its basic authentication.", metavar="NAME"),
    flag("--tokens.password-file", "File with the password.", metavar="FILE"),
    flag("--path.procfs", "The host's /proc.", metavar="DIR"),
    flag("--path.cgroupfs", "The host's cgroup file system.", metavar="DIR"),
    flag(
        "--gpushare.memory-unit",
        "What one unit of aliyun.com/gpu-mem means: GiB, MiB, or so many of them (256MiB). Without"
        " it, limits of gpushare are not exported.",
        type=MemoryUnit(),
        metavar="UNIT",
    ),
    flag(
        "--volcano.memory-factor",
        "MiB of one unit of volcano.sh/vgpu-memory: the plugin's --gpu-memory-factor. Without it,"
        " memory amounts of Volcano's annotations are not used.",
        type=click.IntRange(min=1, max=2**20),
        metavar="MIB",
    ),
    flag(
        "--kubeconfig",
        "How to reach the API server. Default: $KUBECONFIG, ~/.kube/config, the pod's own account.",
        metavar="FILE",
    ),
    flag(
        "--nvml.pcie-throughput",
        "Measure PCIe throughput; it blocks the driver 40 ms a GPU and sample.",
        is_flag=True,
    ),
    flag(
        "--nvml.expected-gpus",
        "How many GPUs this node should have. Default: the most that the driver has counted since"
        " start.",
        type=click.IntRange(min=0),
        metavar="N",
    ),
    flag("--once", "Take one sample, print it on standard output, and exit.", is_flag=True),
    *log_flags("info"),
)


def all_flags(command: Any) -> Any:
    """Every flag of the exporter, in the order of its help."""
    for option in reversed(FLAGS):
        command = option(command)
    return command


def options_from(ctx: click.Context) -> ExporterOptions:
    """The flags of a call as :class:`ExporterOptions`. Raises click.UsageError that names the
    flags.
    """
    params = dict(ctx.params)
    on = frozenset(name for name in COLLECTORS if params.pop(f"collector_{name}"))
    params["compat"] = tuple(Compat(name) for name in params["compat"])
    chosen = params["metrics_detail"]
    params["metrics_detail"] = tuple(
        detail for detail in Detail if {detail.value, ALL_DETAILS}.intersection(chosen)
    )
    options = ExporterOptions(collectors=on, **params)

    names = [parameter.name or "" for parameter in ctx.command.params]
    typed = frozenset(name for name in names if is_typed(ctx, name))
    set_flags = typed | frozenset(name for name in names if is_typed(ctx, name, or_set=True))
    for complaint in conflicts(options, set_flags, typed):
        raise click.UsageError(complaint, ctx)
    return options


def conflicts(
    options: ExporterOptions, configured: frozenset[str], typed: frozenset[str]
) -> list[str]:
    """Why these flags cannot be used together.

    ``configured`` are the Python names of the flags that were typed or set in the environment,
    ``typed`` of those typed: a container's environment may be for more than one command.
    """
    errors = []
    chosen = set(options.compat)
    if Compat.NONE in chosen and len(chosen) > 1:
        errors.append("--compat none cannot be combined with another --compat")
    if chosen.issuperset(CONFLICTING):
        errors.append(
            "--compat volcano and --compat hami-legacy use the same names with different labels:"
            " choose one"
        )
    if options.compat_breakdown and not chosen & set(CONFLICTING):
        errors.append("--compat-breakdown needs --compat volcano or --compat hami-legacy")
    if Compat.VOLCANO_SCHEDULER in chosen and options.volcano_memory_factor is None:
        errors.append(
            "--compat volcano-scheduler counts memory in Volcano's units: set how many MiB one is"
            " with --volcano.memory-factor (Volcano's own default is 1)"
        )
    on = options.collectors
    if "api" in on and options.pods:
        errors.append("--collector.api and --pods supply the same data: choose one")
    if not on - NEEDS.keys():
        errors.append("every collector is switched off (--no-collector.…): nothing to export")
    for name, needed in NEEDS.items():
        if (
            name in on
            and needed not in on
            and (f"collector_{name}" in configured or name == "bare")
        ):
            errors.append(f"--collector.{name} needs --collector.{needed}")
    for name, collectors in FLAG_OF_COLLECTOR.items():
        users = collectors.split()
        if on.isdisjoint(users) and field(name) in configured:
            off = " and ".join(f"--no-collector.{collector}" for collector in users)
            errors.append(f"{name} is of no use with {off}")
    path = options.web_telemetry_path
    if not PATH.fullmatch(path) or path in RESERVED:
        errors.append(f"--web.telemetry-path {path!r}: give a path of its own, such as /metrics")
    if options.once and typed & {"web_listen_address", "web_config_file", "web_probe_address"}:
        errors.append(
            "--once serves nothing: drop --web.listen-address, --web.config.file and"
            " --web.probe-address"
        )
    return errors
