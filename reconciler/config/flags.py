"""The flags of `vgpu reconcile`: the sources, the allowed actions, and the output.

Each flag is also an environment variable: --state-namespace is VGPU_STATE_NAMESPACE; a repeatable
flag takes a space-separated list there. Flags win over the configuration file.
"""

import difflib
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from reconciler.config.settings import (
    KEYS,
    ConfigError,
    Key,
    ReconcilerSettings,
    Setting,
    config_text,
    from_flag,
    read,
    settings,
)
from reconciler.model import Scope
from reconciler.policy import OBSERVED, Mode
from vgpu.inventory import Units
from vgpu.model.documentation import page
from vgpu.model.reasons import SourceError
from vgpu.program import logs
from vgpu.program.failures import wrong_value
from vgpu.program.flags import AUTO, Decorator, MemoryUnit, composed, field, is_typed
from vgpu.program.kube_flags import kubeconfig_flags
from vgpu.program.node_token import node_token_flag
from vgpu.program.output import say_text
from vgpu.program.resource_flags import resource_flags
from vgpu.program.value_completion import OfferedText, words
from vgpu.schemes.registry import registry
from vgpu.sources.files import read_file
from vgpu.sources.node_sources import NodePaths

CONTEXT: Final[Mapping[str, Any]] = {"auto_envvar_prefix": "VGPU", "max_content_width": 100}
"""Settings of every command: each flag is an environment variable, too."""

CONFIG_LIMIT: Final = 1024 * 1024
"""Maximum size of the configuration file, in bytes."""

POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""The file with the name of a pod's own namespace."""

_DEFAULT_NAMESPACE: Final = "kube-system"
_PLACES: Final = NodePaths()
_LIMIT_DIRS: Final = {files.flag: files.folder for files in registry().limit_files.values()}

_RULE_FLAG: Final = "--rule"
_FLAGGED: Final = {key.flag: key for key in KEYS if key.flag and key.flag != _RULE_FLAG}
_OF_RUN: Final = frozenset({"--mode", "--every", "--cron"})
_METAVARS: Final = {"mode": "[plan|apply]", "every": "DURATION", "cron": "EXPRESSION"} | {
    "ages.idle": "DURATION"
}
_RULES: Final = {key.name.split(".")[1]: key for key in KEYS if key.flag == _RULE_FLAG}


_WORDS: Final = {
    "--mode": (Mode.PLAN.value, Mode.APPLY.value),
    "--act-on-scheme": tuple(sorted(OBSERVED)),
}
"""The values of flags that have few."""


class ReconcilerOptions(msgspec.Struct, frozen=True):
    """The flags that every command has.

    Attributes:
        scope: the sources to read.
        kubeconfig, context: how to reach the API server.
        request_timeout: maximum time to wait for its answer, in seconds; None is the default.
        node: this node's name.
        require_node_token: whether it is ready only if its token names this node.
        places, driver: the paths of the node's sources, and whether its driver is read.
        units: the amounts of the schemes' units.
        settings: of the configuration file, with the flags.
        state_namespace: the namespace of the Lease and of the state's ConfigMap.
        finds_state: whether a command by hand looks for the namespace of a running reconciler.
    """

    scope: Scope
    kubeconfig: str
    context: str
    request_timeout: float | None
    node: str
    require_node_token: bool
    places: NodePaths
    driver: bool
    units: Units
    settings: ReconcilerSettings
    state_namespace: str
    finds_state: bool = False


# ---------------------------------------------------------------- declared


def _node(name: str, help_: str, default: object, **kwargs: Any) -> Decorator:
    """A flag about the node's own sources; its default is the exporter's."""
    shown = default not in (None, "", ())
    return click.option(
        name, field(name), help=help_, default=default, show_default=shown, **kwargs
    )


_NODE_FLAGS: Final = {
    "--shim.root": _node(
        "--shim.root",
        "Folder of <podUID>_<container> folders with region files; repeatable. Default: those of"
        " HAMi and of Volcano's device plugin, old and new.",
        (),
        multiple=True,
        metavar="DIR",
    ),
    "--kubelet.log-dir": _node(
        "--kubelet.log-dir", "The kubelet's pod logs.", _PLACES.log_dir, metavar="DIR"
    ),
    "--kubelet.checkpoint": _node(
        "--kubelet.checkpoint",
        "The kubelet's device checkpoint.",
        _PLACES.checkpoint,
        metavar="FILE",
    ),
    "--kubelet.pod-resources": _node(
        "--kubelet.pod-resources",
        "The kubelet's pod-resources socket; needs the extra vgpu[pod-resources].",
        None,
        metavar="SOCKET",
    ),
    "--kubelet.dra-state": _node(
        "--kubelet.dra-state",
        "The kubelet's state of dynamic resource allocation: the pods of ResourceClaims.",
        _PLACES.dra_state,
        metavar="FILE",
    ),
    "--dra.spec-dir": _node(
        "--dra.spec-dir",
        "A folder of CDI specs, to find specs of DRA drivers that are missing; repeatable, and give"
        " all folders that the container runtime reads. Default: specs are not checked.",
        (),
        multiple=True,
        metavar="DIR",
    ),
    "--limits.gaia-dir": _node(
        "--limits.gaia-dir",
        "gpu-manager's folder of vcuda.config files.",
        _LIMIT_DIRS["--limits.gaia-dir"],
        metavar="DIR",
    ),
    "--limits.kubeshare-dir": _node(
        "--limits.kubeshare-dir",
        "KubeShare's folder of per-GPU config files.",
        _LIMIT_DIRS["--limits.kubeshare-dir"],
        metavar="DIR",
    ),
    "--limits.mps-dir": _node(
        "--limits.mps-dir",
        "Files of NVIDIA's device plugin about its MPS daemons.",
        _PLACES.mps_dir,
        metavar="DIR",
    ),
    "--plugin.state-dir": _node(
        "--plugin.state-dir",
        "Our own device plugin's folder of checkpoints.",
        _PLACES.state_dir,
        metavar="DIR",
    ),
    "--path.procfs": _node("--path.procfs", "The host's /proc.", _PLACES.procfs, metavar="DIR"),
    "--path.cgroupfs": _node(
        "--path.cgroupfs", "The host's cgroup file system.", _PLACES.cgroupfs, metavar="DIR"
    ),
    "--collector.nvml": click.option(
        "--collector.nvml/--no-collector.nvml",
        "collector_nvml",
        default=True,
        help="Ask the driver which processes use which GPU.  [default: on]",
    ),
}
"""With --scope node only."""


def _rule_modes(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """The rules; where one alone begins so, its modes."""
    rules = [name for name in _RULES if name.startswith(incomplete.partition("=")[0])]
    modes = [mode.value for mode in Mode] if len(rules) == 1 else [""]
    offered = [f"{name}={mode}" for name in rules for mode in modes]
    return [word for word in offered if word.startswith(incomplete)]


def _from_config(key: Key) -> Decorator:
    """The flag of a key of the configuration."""
    values: dict[str, Any] = {"default": None, "help": key.help}
    if key.form.allowed == "true or false":
        name = key.flag.removeprefix("--")
        return click.option(f"--{name}/--no-{name}", field(key.flag), **values)
    word = key.flag.removeprefix("--").upper() if key.form.many else _METAVARS.get(key.name, "N")
    values |= {"multiple": key.form.many, "metavar": word}
    if key.flag in _WORDS:
        values["type"] = words(*_WORDS[key.flag])
    return click.option(key.flag, field(key.flag), **values)


where_flags: Final = composed(
    click.option(
        "--scope",
        type=click.Choice([scope.value for scope in Scope]),
        default=Scope.CLUSTER.value,
        show_default=True,
        help="Read the whole cluster from its API server, or also this node from its own sources.",
    ),
    kubeconfig_flags,
    click.option(
        "--node-name",
        default="",
        envvar=["VGPU_NODE_NAME", "NODE_NAME"],
        metavar="NODE",
        help="This node, with --scope node.  [default: the host's name]",
    ),
    node_token_flag,
    *_NODE_FLAGS.values(),
    resource_flags,
    click.option(
        "--volcano.memory-factor",
        "volcano_memory_factor",
        type=click.IntRange(1, 1 << 20),
        default=1,
        show_default=True,
        metavar="MIB",
        help="What one unit of volcano.sh/vgpu-memory means: the plugin's gpu-memory-factor.",
    ),
    click.option(
        "--gpushare.memory-unit",
        "gpushare_memory_unit",
        type=MemoryUnit(auto=True),
        default=AUTO,
        show_default=True,
        metavar="UNIT",
        help="What one unit of aliyun.com/gpu-mem means: GiB, MiB, or so many of them (256MiB);"
        " auto goes by the size of the GPUs.",
    ),
)
"""The flags of the sources."""

policy_flags: Final = composed(
    click.option(
        "--config",
        "config",
        default="",
        metavar="FILE",
        help=f"The configuration; for its keys see {page('reconcile-config')}.",
    ),
    click.option(
        _RULE_FLAG,
        "rule",
        type=OfferedText(_rule_modes),
        multiple=True,
        metavar="NAME=MODE",
        help="How far a rule may go: off, plan or apply. Repeatable.",
    ),
    *(_from_config(key) for flag, key in _FLAGGED.items() if flag not in _OF_RUN),
    click.option(
        "--state-namespace",
        default="",
        metavar="NAMESPACE",
        help="Where the Lease and what is remembered are kept.  [default: that of the pod this"
        " runs in; by hand that of the running reconciler, else kube-system]",
    ),
    click.option(
        "--print-config",
        is_flag=True,
        allow_from_autoenv=False,
        help="Print the configuration with these flags, and exit.",
    ),
)
"""What may be done."""

run_flags: Final = composed(*(_from_config(_FLAGGED[flag]) for flag in sorted(_OF_RUN)))
"""What only `run` takes of the configuration."""


def output_flag(*forms: str) -> Decorator:
    """--output; the first form is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(forms),
        default=forms[0],
        show_default=True,
        help="Form of the output.",
    )


# ---------------------------------------------------------------- read


def options_from(ctx: click.Context) -> ReconcilerOptions:
    """The flags of a call. Raises click.UsageError that names the flag, or the file's line.

    With --print-config it prints and ends the command.
    """
    params = ctx.params
    logs.configure(params["log_level"], params["log_format"])
    try:
        settings_read = settings(_file(params["config"]), dict(_flag_settings(params)))
    except ConfigError as error:
        if not error.place.startswith("--") or error.place == "--config":
            raise click.UsageError(str(error), ctx) from error
        raise wrong_value(ctx, error.place, error.problem) from error
    if params["print_config"]:
        say_text(config_text(settings_read))
        ctx.exit()
    scope = Scope(params["scope"])
    if scope is not Scope.NODE:
        node_flags = [
            name
            for name in (*_NODE_FLAGS, "--node-name", "--require-node-token")
            if is_typed(ctx, field(name))
        ]
        if node_flags:
            raise click.UsageError(f"{', '.join(node_flags)}: only with --scope node", ctx)
    return ReconcilerOptions(
        scope=scope,
        kubeconfig=params["kubeconfig"],
        context=params["context"],
        request_timeout=params["request_timeout"],
        node=params["node_name"] or socket.gethostname(),
        require_node_token=params["require_node_token"],
        places=NodePaths(
            shim_roots=params["shim_root"] or _PLACES.shim_roots,
            procfs=params["path_procfs"],
            cgroupfs=params["path_cgroupfs"],
            log_dir=params["kubelet_log_dir"],
            checkpoint=params["kubelet_checkpoint"],
            pod_resources=params["kubelet_pod_resources"],
            dra_state=params["kubelet_dra_state"],
            cdi_dirs=params["dra_spec_dir"],
            limit_dirs={
                name: params.get(field(files.flag), files.folder)
                for name, files in registry().limit_files.items()
            },
            state_dir=params["plugin_state_dir"],
            mps_dir=params["limits_mps_dir"],
        ),
        driver=params["collector_nvml"],
        units=Units(params["volcano_memory_factor"], params["gpushare_memory_unit"]),
        settings=settings_read,
        state_namespace=params["state_namespace"] or _own_namespace(),
        finds_state=not params["state_namespace"]
        and scope is Scope.CLUSTER
        and not POD_NAMESPACE.exists(),
    )


def _file(path: str) -> Mapping[str, Setting]:
    if not path:
        return {}
    try:
        text = read_file(path, CONFIG_LIMIT, follow=True).decode()
    except SourceError as error:
        raise ConfigError("--config", "", str(error)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("--config", "", f"{path}: it is not UTF-8") from error
    return read(text, path)


def _flag_settings(params: Mapping[str, Any]) -> Iterator[tuple[str, Setting]]:
    """The configuration's keys that flags or environment set. Raises ConfigError."""
    for flag, key in _FLAGGED.items():
        value = params.get(field(flag))
        if value is None or value == ():
            continue
        texts = value if isinstance(value, tuple) else (str(value),)
        lowered = (text.lower() for text in texts) if isinstance(value, bool) else texts
        yield key.name, from_flag(key, lowered, flag)
    for text in params["rule"]:
        name, equals, mode = text.partition("=")
        if not equals or name not in _RULES:
            near = difflib.get_close_matches(name, _RULES, n=1) if equals else ()
            names = f"did you mean {near[0]}?" if near else f"names are {', '.join(_RULES)}"
            problem = f"must be NAME=MODE, not {text!r}; {names}"
            raise ConfigError(_RULE_FLAG, "", problem)
        key = _RULES[name]
        yield key.name, from_flag(key, (mode,), _RULE_FLAG)


def _own_namespace() -> str:
    """The namespace of the pod that this process runs in."""
    with suppress(OSError, UnicodeDecodeError):
        return POD_NAMESPACE.read_text("utf-8").strip() or _DEFAULT_NAMESPACE
    return _DEFAULT_NAMESPACE
