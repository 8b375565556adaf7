"""``vgpu device-plugin``: reads the flags, and runs the plugin until a signal."""

import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import click
import msgspec

from deviceplugin.failpoints import Failpoint, noop
from deviceplugin.flags import PluginOptions, all_flags, options_from
from deviceplugin.health.rules import HealthRules, parse_xids, rules
from deviceplugin.health.watch import TopologyDriver
from vgpu.model.reasons import SourceError
from vgpu.program import logs
from vgpu.program.failures import wrong_value
from vgpu.program.host import ProgramHost
from vgpu.program.version import version_option
from vgpu.program.web_flags import WebOptions

SWITCH_SECONDS: Final = 0.0005
"""Interval at which a busy thread yields to the others, in seconds. A call of the kubelet's goes
through several threads; with Python's 5 ms each could wait for the binder or status manager."""

EPILOG: Final = """\
\b
Examples:
  vgpu device-plugin --scheme volcano --node-name "$NODE_NAME" --volcano.memory-factor 10
  vgpu device-plugin --scheme volcano --volcano.dialect hami
  vgpu device-plugin --scheme gpushare --gpushare.memory-unit 256MiB
  vgpu device-plugin --scheme gaia --no-cdi
"""


@click.command("device-plugin", epilog=EPILOG, context_settings={"max_content_width": 100})
@all_flags
@version_option
@click.pass_context
def command(ctx: click.Context, /, **_: Any) -> None:
    """Give this node's GPUs to pods, as a device plugin of the kubelet.

    Serves the resources of one sharing system in place of its own plugin. Every flag is also an
    environment variable: --cdi.spec-dir is VGPU_CDI_SPEC_DIR.
    """
    options = options_from(ctx)
    judged = _rules(ctx, options)
    logs.configure(options.log_level, options.log_format)
    named = msgspec.structs.replace(options, node_name=options.node_name or socket.gethostname())
    ctx.exit(run(named, judged, nvml))


def nvml() -> TopologyDriver:
    """The real driver, read only for what health needs."""
    from vgpu.sources.nvml import NvmlSource  # noqa: PLC0415  # ctypes and pynvml only when run

    return NvmlSource(health_only=True)


def run(
    options: PluginOptions,
    judged: HealthRules,
    driver: Callable[[], TopologyDriver],
    failpoint: Failpoint = noop,
) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status. ``failpoint`` is called at every
    step.

    Raises click.ClickException.
    """
    try:
        from deviceplugin.plugin import Failure, Plugin  # noqa: PLC0415  # gRPC is an extra
    except ImportError as error:
        raise click.ClickException(f"{error}: install vgpu[device-plugin]") from error
    sys.setswitchinterval(SWITCH_SECONDS)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # gaia: one socket a pod
    with ProgramHost(WebOptions.of(msgspec.structs.asdict(options))) as host:
        try:
            with Plugin(options, judged, driver(), host, failpoint) as plugin:
                host.start(plugin.routes())
                host.announce()
                plugin.serve(host.is_ending)
                host.wait()
        except (Failure, SourceError) as error:
            raise click.ClickException(str(error)) from error
    return host.leave(stuck=plugin.stuck)


def _rules(ctx: click.Context, options: PluginOptions) -> HealthRules:
    """The rules. Raises click.UsageError that names the flag, or the variable."""
    try:
        ignored = parse_xids(options.health_ignore_xids)
    except ValueError as error:
        raise wrong_value(ctx, "--health.ignore-xids", str(error)) from error
    try:
        return rules(ignored, os.environ, options.health_recovery)
    except ValueError as error:
        raise click.UsageError(str(error), ctx) from error
