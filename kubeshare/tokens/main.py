"""`vgpu tokens`: the time and memory of a node's GPUs, for pods with Gemini's hook."""

import gc
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from kubeshare.gemini_placement import TokenWindow
from kubeshare.tokens.connections import host_address
from kubeshare.tokens.descriptors import raise_limit
from kubeshare.tokens.metrics import TABLES
from kubeshare.tokens.scheduler import DEFAULT_RULES, TokenMode, TokenRules
from kubeshare.tokens.server import TokenServer
from kubeshare.tokens.takeover import TakeoverError
from vgpu.model.documentation import page
from vgpu.program.flags import Decorator, Duration
from vgpu.program.host import ProgramHost, program_flags
from vgpu.program.pages import program_routes

DEFAULT_ADDRESS: Final = ":9402"

HANDOVER_FLAG: Final = "--handover-socket"


class HostAddress(click.ParamType[str]):
    """An IP address; "" is every one."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address as the kernel writes it; refuses what is none."""
        try:
            return host_address(str(value))
        except ValueError:
            self.fail(f"{value!r} is no IPv4 or IPv6 address", param, ctx)


def _time_flag(flag: str, default: int, text: str) -> Decorator:
    """A flag for a time whose default is in microseconds."""
    return click.option(
        flag,
        type=Duration(),
        default=f"{default // 1000}ms",
        show_default=True,
        metavar="DURATION",
        help=text,
    )


@click.command(
    "tokens",
    context_settings={"auto_envvar_prefix": "VGPU", "max_content_width": 100},
    epilog=f"""\
\b
Examples:
  vgpu tokens
  vgpu tokens --mode lenient --quota 250ms --min-quota 100ms

\b
What it replaces, the order of start, and what is not there yet:
{page("tokens")}.
""",
)
@click.option(
    "--mode",
    type=click.Choice([each.value for each in TokenMode]),
    default=TokenMode.EXCLUSIVE.value,
    show_default=True,
    help="One pod at a time on a GPU, or Gemini's own rules.",
)
@_time_flag("--quota", DEFAULT_RULES.window.base, "Length of a token without a known burst.")
@_time_flag("--min-quota", DEFAULT_RULES.window.least, "Minimum length of a token.")
@_time_flag(
    "--max-quota",
    DEFAULT_RULES.max_quota,
    "Maximum length of a token; not if lenient.  The defaults of the other two are not above it.",
)
@_time_flag(
    "--max-grace",
    DEFAULT_RULES.max_grace,
    "Maximum time to wait after a token for its return; not if lenient.",
)
@_time_flag("--window", DEFAULT_RULES.window.length, "Time over which shares are counted.")
@click.option(
    "--kubeshare-dir",
    default="/kubeshare/scheduler",
    show_default=True,
    metavar="FOLDER",
    help="Folder of Gemini's files: config and podmanagerport.",
)
@click.option(
    "--tenant-address",
    type=HostAddress(),
    default="",
    metavar="ADDRESS",
    help="IPv4 or IPv6 address on which the ports of pods are served.  [default: all]",
)
@click.option(
    HANDOVER_FLAG,
    default="/run/vgpu/tokens/handover.sock",
    show_default=True,
    metavar="FILE",
    help="Unix socket by which the next process takes over from this one; empty for none.",
)
@click.option(
    "--handover-wait",
    type=Duration(),
    metavar="DURATION",
    help="Maximum time to serve on after SIGTERM until the next process has taken over.  "
    "[default: none]",
)
@program_flags(DEFAULT_ADDRESS)
@click.pass_context
def command(ctx: click.Context, /, **_: Any) -> None:
    """Share the time and memory of this node's GPUs among pods with Gemini's hook.

    Takes the place of Gemini's gem-schd and gem-pmgr, which must not run beside it. If another
    vgpu tokens runs, this one takes over its ports and connections, and the other one then only
    waits for its end.
    """
    params = ctx.params
    rules = rules_in(ctx)
    with ProgramHost.from_flags(params) as host:
        raise_limit()
        handover = Path(params["handover_socket"]) if params["handover_socket"] else None
        try:
            server = TokenServer(
                Path(params["kubeshare_dir"]),
                params["tenant_address"],
                rules,
                host.fail,
                takeover_path=handover,
                handed_over=host.stop_serving,
            )
        except OSError as error:
            raise click.ClickException(f"inotify: {error.strerror}") from error
        metrics = host.metrics(TABLES, server.view)
        routes = program_routes("tokens", {"/metrics": metrics}, ready=server.complaint)
        # All that can fail comes before the sockets: the process that has them goes on without us.
        host.start(routes, shares_port=handover is not None)
        gc.collect()
        gc.freeze()  # a token would wait while a collection looks at all that is there now
        try:
            server.start()
        except TakeoverError as error:
            problem = f"the running vgpu tokens has not handed over: {error}"
            raise click.ClickException(f"{HANDOVER_FLAG} {handover}: {problem}") from error
        except OSError as error:
            problem = error.strerror or str(error)
            raise click.ClickException(f"{HANDOVER_FLAG} {handover}: {problem}") from error
        host.wait()
        if handover is not None and params["handover_wait"]:
            server.wait_handed_over(params["handover_wait"])
        server.stop()
    ctx.exit(host.leave())


def rules_in(ctx: click.Context) -> TokenRules:
    """The rules of the flags of a command. Raises UsageError where they contradict each other."""
    default = ParameterSource.DEFAULT
    names = [name for name in ctx.params if ctx.get_parameter_source(name) is default]
    return rules_of(ctx.params, names)


def rules_of(params: Mapping[str, Any], defaults: Collection[str] = ()) -> TokenRules:
    """The rules of the flags. Raises UsageError where they contradict each other.

    A quota of ``defaults`` follows the ones that are not: none is above a maximum, and neither the
    quota nor the maximum is below a smaller one.
    """
    quota, least, most, grace, window = (
        round(params[name] * 1_000_000)
        for name in ("quota", "min_quota", "max_quota", "max_grace", "window")
    )
    highest = window if "max_quota" in defaults else min(most, window)
    if "min_quota" in defaults:
        least = min(least, highest)
    if "quota" in defaults:
        quota = max(least, min(quota, highest))
    if "max_quota" in defaults:
        most = max(quota, min(most, highest))
    if not least <= quota <= most <= window:
        flags = "--min-quota, --quota, --max-quota, --window"
        raise click.UsageError(f"{flags}: each must be at most the next one")
    return TokenRules(TokenMode(params["mode"]), TokenWindow(quota, least, window), most, grace)
