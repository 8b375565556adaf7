"""The flags of ``vgpu device-plugin``, as one table and as checked options."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import click
import msgspec

from vgpu.model.names import Scheme
from vgpu.model.units import GIB
from vgpu.model.xids import IGNORED
from vgpu.program.flags import AUTO, ChoiceOf, Duration, MemoryUnit, env, field, is_typed, log_flags
from vgpu.program.node_token import node_token_flag
from vgpu.program.resource_flags import renamed_resource_flags
from vgpu.program.web_flags import web_flags
from vgpu.schemes.registry import served_names
from vgpu.web.connections import MAX_CONNECTIONS, MAX_PER_ADDRESS

DEFAULT_PORT: Final = 9395

_MOST_FACTOR: Final = 2**20
_LABEL: Final = re.compile(r"[A-Za-z0-9./_-]{1,317}=[A-Za-z0-9._-]{0,63}")


class Factor(click.ParamType[int | None]):
    """MiB of one unit of memory; None is ``auto``."""

    name = "factor"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """Convert to a number; refuses other text."""
        text = str(value)
        if text == AUTO:
            return None
        if not text.isascii() or not text.isdigit() or not 0 < int(text[:8]) <= _MOST_FACTOR:
            self.fail(f"{text!r} is not a number of MiB, nor {AUTO}", param, ctx)
        return int(text)


class Label(click.ParamType[tuple[str, str]]):
    """A label of the node: KEY=VALUE."""

    name = "label"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Convert to key and value; refuses what the API server would refuse."""
        text = str(value)
        if not _LABEL.fullmatch(text):
            self.fail(f"{text!r} is not KEY=VALUE", param, ctx)
        key, _, label_value = text.partition("=")
        return key, label_value


class PluginOptions(msgspec.Struct, frozen=True):
    """The flags, parsed and checked."""

    scheme: Scheme = Scheme.VOLCANO
    node_name: str = ""
    require_node_token: bool = False
    kubeconfig: str = ""
    web_listen_address: tuple[str, ...] = (f":{DEFAULT_PORT}",)
    web_config_file: str | None = None
    web_probe_address: str | None = None
    web_max_connections: int = MAX_CONNECTIONS
    web_max_connections_per_address: int = MAX_PER_ADDRESS
    cdi: bool = True
    cdi_spec_dir: str = "/var/run/cdi"
    state_dir: str = "/var/lib/vgpu"
    run_dir: str = "/run/vgpu"
    kubelet_dir: str = "/var/lib/kubelet/device-plugins"
    kubelet_pod_resources: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    kubelet_log_dir: str = "/var/log/pods"
    path_procfs: str = "/proc"
    path_cgroupfs: str = "/sys/fs/cgroup"
    volcano_dialect: str = "volcano"
    volcano_split_count: int = 10
    volcano_memory_factor: int | None = 1
    volcano_memory_scaling: float = 1.0
    volcano_core_scaling: float = 1.0
    volcano_handshake: str = AUTO
    volcano_shim_library: str | None = None
    volcano_shim_dir: str = "/usr/local/vgpu"
    volcano_oversubscribe: bool = False
    volcano_core_policy: str = "default"
    gpushare_memory_unit: int = GIB
    gaia_limits_dir: str = "/etc/gpu-manager/vm"
    gaia_driver_dir: str = "/etc/gpu-manager/vdriver"
    gaia_control_library: str | None = None
    gaia_host_root: str = "/"
    gaia_node_label: tuple[tuple[str, str], ...] = ()
    gaia_share_mode: bool = True
    gaia_checkpoint: str = "/etc/gpu-manager/checkpoint/gpumanager_internal_checkpoint"
    health_ignore_xids: str = ",".join(map(str, sorted(IGNORED)))
    health_interval: float = 15.0
    health_recovery: float = 300.0
    prestart_timeout: float = 20.0
    legacy_refusal: bool = False
    log_level: str = "info"
    log_format: str = "logfmt"

    @property
    def kubelet_checkpoint(self) -> str:
        """The kubelet's own file of devices."""
        return f"{self.kubelet_dir}/kubelet_internal_checkpoint"

    @property
    def limit_dirs(self) -> Mapping[str, str]:
        """Folders of limit files, by the name of their row in the registry."""
        return {"gaia": self.gaia_limits_dir}


DEFAULTS: Final = PluginOptions()


def flag(name: str, help_: str, *, also_env: str = "", **kwargs: Any) -> Callable[[Any], Any]:
    """One option of the command; its default is that of :class:`PluginOptions`."""
    on = name.partition("/")[0]
    names = [env(on), also_env] if also_env else env(on)
    default = getattr(DEFAULTS, field(on))
    if not kwargs.get("required"):
        kwargs.setdefault("default", default)
    if default is True:
        help_ += "  [default: on]"
    kwargs.setdefault(
        "show_default", not isinstance(default, bool) and default not in (None, "", ())
    )
    return click.option(name, field(on), help=help_, envvar=names, **kwargs)


FLAGS: Final = (
    flag(
        "--scheme",
        "The sharing scheme that is served.",
        type=ChoiceOf(served_names),
        required=True,
        show_default=False,
    ),
    flag(
        "--node-name",
        "Name of this node. Default: the host's name.",
        also_env="NODE_NAME",
        metavar="NAME",
    ),
    node_token_flag,
    flag(
        "--kubeconfig",
        "How to reach the API server. Default: $KUBECONFIG, ~/.kube/config, the pod's own account.",
        metavar="FILE",
    ),
    *web_flags(f":{DEFAULT_PORT}"),
    flag(
        "--cdi/--no-cdi",
        "Inject shares into containers by CDI, so that no share is ever prepared for a guessed"
        " pod. Without CDI (containerd before 1.7, or enable_cdi off), the pod is guessed by the"
        " original plugin's rule, and a wrong guess is refused at the container's start.",
    ),
    flag("--cdi.spec-dir", "Where the container runtime looks for CDI specs.", metavar="DIR"),
    flag("--state-dir", "Where our own checkpoint is kept.", metavar="DIR"),
    flag("--run-dir", "Folder of limits without CDI; lost at a reboot.", metavar="DIR"),
    flag("--kubelet.dir", "The kubelet's folder of device plugins.", metavar="DIR"),
    flag("--kubelet.pod-resources", "The kubelet's pod-resources socket.", metavar="SOCKET"),
    flag("--kubelet.log-dir", "The kubelet's pod logs, for the containers' names.", metavar="DIR"),
    flag("--path.procfs", "The host's /proc.", metavar="DIR"),
    flag("--path.cgroupfs", "The host's cgroup file system.", metavar="DIR"),
    flag(
        "--volcano.dialect",
        "Resource and annotation names: those of Volcano's vGPU plugin, or those of HAMi.",
        type=click.Choice(["volcano", "hami"]),
    ),
    flag(
        "--volcano.split-count",
        "Shares that a GPU is cut into (device-split-count).",
        type=click.IntRange(1, 1000),
        metavar="N",
    ),
    flag(
        "--volcano.memory-factor",
        "MiB of one unit of volcano.sh/vgpu-memory (gpu-memory-factor): all requests depend on it."
        " 'auto' takes the factor of the other nodes, or else the smallest that the length of this"
        " node's list allows, and refuses to serve where nodes differ or the factor is too small"
        " here.",
        type=Factor(),
        metavar="MIB",
        default="1",
    ),
    flag(
        "--volcano.memory-scaling",
        "Multiple of a GPU's memory that is shared (device-memory-scaling).",
        type=click.FloatRange(0.01, 100),
        metavar="RATIO",
    ),
    flag(
        "--volcano.core-scaling",
        "Multiple of a GPU's cores that is shared (device-cores-scaling).",
        type=click.FloatRange(0.01, 100),
        metavar="RATIO",
    ),
    flag(
        "--volcano.handshake",
        "Report to the scheduler that the plugin is alive: on request (Volcano up to 1.15, HAMi),"
        " always, or never.",
        type=click.Choice([AUTO, "on", "off"]),
    ),
    flag(
        "--volcano.shim-library",
        "A libvgpu.so to put on the host. Default: the one that is there.",
        metavar="FILE",
    ),
    flag("--volcano.shim-dir", "Where libvgpu.so is on the host.", metavar="DIR"),
    flag(
        "--volcano.oversubscribe",
        "Let containers take memory from the host beyond the GPU's (CUDA_OVERSUBSCRIBE).",
        is_flag=True,
    ),
    flag(
        "--volcano.core-policy",
        "GPU_CORE_UTILIZATION_POLICY of containers: limits of cores hold until a monitor's feedback"
        " lifts one (default), always (force), or never (disable).",
        type=click.Choice(["disable", "force", "default"]),
    ),
    flag(
        "--gpushare.memory-unit",
        "What one unit of aliyun.com/gpu-mem means: GiB, MiB, or so many of them (256MiB).",
        type=MemoryUnit(),
        metavar="UNIT",
        default="GiB",
    ),
    flag("--gaia.limits-dir", "Where pods' vcuda.config files are.", metavar="DIR"),
    flag("--gaia.driver-dir", "Where the driver's libraries are mirrored.", metavar="DIR"),
    flag(
        "--gaia.control-library",
        "The library that enforces limits (libcuda-control.so).",
        metavar="FILE",
    ),
    flag("--gaia.host-root", "The host's root, to find the driver's libraries.", metavar="DIR"),
    flag(
        "--gaia.node-label",
        "A label for the node (gpu-manager's --node-labels); repeatable.",
        type=Label(),
        multiple=True,
        metavar="KEY=VALUE",
    ),
    flag("--gaia.share-mode/--no-gaia.share-mode", "Share parts of GPUs, not only whole ones."),
    flag(
        "--gaia.checkpoint",
        "gpu-manager's own checkpoint, read once when the plugin starts for the first time.",
        metavar="FILE",
    ),
    flag(
        "--health.ignore-xids",
        "XIDs that do not make a GPU unhealthy: those caused by applications.",
        metavar="XID,…",
    ),
    flag(
        "--health.interval",
        "Interval between two health checks of the GPUs; XIDs take effect at once.",
        type=Duration(),
        metavar="DURATION",
        default="15s",
    ),
    flag(
        "--health.recovery",
        "Time without a health event after which a GPU is healthy again; longer each time it"
        " fails.",
        type=Duration(),
        metavar="DURATION",
        default="5m",
    ),
    flag(
        "--prestart-timeout",
        "Maximum time that a container's start waits for its binding before the kubelet has to ask"
        " again.",
        type=Duration(),
        metavar="DURATION",
        default="20s",
    ),
    flag(
        "--legacy-refusal",
        "With gpushare, answer a request that cannot be served as the original does: with an"
        " environment that makes the container fail, not with an error.",
        is_flag=True,
    ),
    renamed_resource_flags,
    *log_flags("info"),
)


def all_flags(command: Any) -> Any:
    """Every flag of the plugin, in the order of its help."""
    for option in reversed(FLAGS):
        command = option(command)
    return command


def options_from(ctx: click.Context) -> PluginOptions:
    """The flags as :class:`PluginOptions`. Raises click.UsageError that names the flags."""
    values = dict(ctx.params)
    values["scheme"] = Scheme(values["scheme"])
    options = PluginOptions(**values)
    typed = frozenset(name for name in ctx.params if is_typed(ctx, name))
    for complaint in conflicts(options, typed):
        raise click.UsageError(complaint, ctx)
    return options


def conflicts(options: PluginOptions, typed: frozenset[str]) -> list[str]:
    """Why these flags cannot work together; ``typed`` are the Python names of the typed flags.

    Variables of other schemes are no mistake: the environment may serve several programs.
    """
    problems = []
    for name in sorted(typed):
        scheme = name.partition("_")[0]  # a scheme's name if only that scheme uses the flag
        if scheme in served_names() and scheme != options.scheme:
            flag = "--" + name.replace("_", ".", 1).replace("_", "-")
            problems.append(f"{flag} is of no use with --scheme {options.scheme}")
    if options.legacy_refusal and options.scheme is not Scheme.GPUSHARE:
        problems.append("--legacy-refusal is gpushare's: the other originals refuse by themselves")
    if options.volcano_memory_factor is None and options.volcano_dialect == "hami":
        problems.append(
            "--volcano.memory-factor auto: HAMi's plugin lists no memory, so nothing limits"
        )
    if "cdi_spec_dir" in typed and not options.cdi:
        problems.append("--cdi.spec-dir is of no use with --no-cdi")
    if "run_dir" in typed and options.cdi:
        problems.append("--run-dir is of no use with --cdi")
    return problems
