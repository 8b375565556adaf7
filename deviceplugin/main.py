"""``vgpu device-plugin``: flags in, node and driver found, the service run until a signal."""

import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import click
from msgspec.structs import replace

from deviceplugin.failpoints import Failpoint, noop
from deviceplugin.flags import PluginOptions, all_flags, options_from
from deviceplugin.health.rules import HealthRules, parse_xids, rules
from deviceplugin.health.watch import TopologyDriver
from vgpu.cli import version_option
from vgpu.program import logs, signals
from vgpu.reasons import SourceError

log = logging.getLogger(__name__)

SWITCH_SECONDS: Final = 0.0005
"""So often a busy thread lets the others in. A call of the kubelet's goes through several threads;
with Python's 5 ms it would wait for the binder and the status manager in each."""

ENDING_SECONDS: Final = 2.0
"""So long calls of the kubelet that are under way may take at the end."""

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
    signals.ignore()
    named = replace(options, node_name=options.node_name or socket.gethostname())
    run(named, judged, nvml)


def nvml() -> TopologyDriver:
    """The real driver, asked for no more than health needs."""
    from vgpu.sources.nvml import NvmlSource  # noqa: PLC0415  # ctypes and pynvml only when run

    return NvmlSource(health_only=True)


def run(
    options: PluginOptions,
    judged: HealthRules,
    driver: Callable[[], TopologyDriver],
    at: Failpoint = noop,
) -> None:
    """Serve until SIGTERM or SIGINT. ``at`` is told of every step.

    Raises click.ClickException.
    """
    try:
        from deviceplugin.plugin import Failure, Plugin  # noqa: PLC0415  # gRPC is an extra
    except ImportError as error:
        raise click.ClickException(f"{error}: install vgpu[device-plugin]") from error
    signals.block_ending()
    sys.setswitchinterval(SWITCH_SECONDS)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # gaia: a socket a pod
    ended = partial(os.kill, os.getpid(), signal.SIGTERM)
    try:
        with Plugin(options, judged, driver(), on_fatal=ended, at=at) as plugin:
            plugin.serve(signals.is_ending)
            received = signals.wait()
            log.info("stopping", extra={"reason": plugin.fatal or received.name})
    except (Failure, SourceError) as error:
        raise click.ClickException(str(error)) from error
    if plugin.fatal or plugin.stuck or _is_held():
        # Only a new process gets at the new driver; nothing would bring back a call that hangs.
        logging.shutdown()
        os._exit(1 if plugin.fatal else 0)


def _is_held() -> bool:
    """Whether a thread would keep the process, such as one that answers the kubelet."""
    until = time.monotonic() + ENDING_SECONDS
    others = [one for one in threading.enumerate() if not one.daemon]
    for thread in others:
        if thread is not threading.main_thread():
            thread.join(max(0.0, until - time.monotonic()))
    return any(one.is_alive() for one in others if one is not threading.main_thread())


def _rules(ctx: click.Context, options: PluginOptions) -> HealthRules:
    """Raises click.UsageError that names the flag, or the variable."""
    try:
        ignored = parse_xids(options.health_ignore_xids)
    except ValueError as error:
        raise click.UsageError(f"--health.ignore-xids: {error}", ctx) from error
    try:
        return rules(ignored, os.environ, options.health_recovery)
    except ValueError as error:
        raise click.UsageError(str(error), ctx) from error
