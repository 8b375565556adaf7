"""`vgpu exporter`: the command, whose help needs nothing but the flags."""

from typing import Any

import click

from exporter.flags import all_flags, options_from
from vgpu.program import logs
from vgpu.program.version import version_option

EPILOG = """\
\b
Examples:
  vgpu exporter --collector.api --node-name "$NODE_NAME"
  vgpu exporter --compat volcano --compat volcano-scheduler --volcano.memory-factor 1
  vgpu exporter --once | grep vgpu_collector_success
"""


@click.command("exporter", epilog=EPILOG, context_settings={"max_content_width": 100})
@all_flags
@version_option
@click.pass_context
def command(ctx: click.Context, /, **_: Any) -> None:
    """Serve this node's GPU metrics to Prometheus.

    Every flag is also an environment variable: --web.listen-address is
    VGPU_WEB_LISTEN_ADDRESS; a repeatable one takes a space-separated list.
    """
    options = options_from(ctx)
    logs.configure(options.log_level, options.log_format)
    from exporter.main import nvml_driver, run  # noqa: PLC0415  # slow to import

    ctx.exit(run(options, nvml_driver(options) if "nvml" in options.collectors else None))
