"""`vgpu feedback`: the feedback of HAMi's monitor, for nodes without that monitor."""

from contextlib import ExitStack
from typing import Any, Final

import click

from vgpu.io.writer_lock import WriterLockHeld, writer_lock
from vgpu.model.documentation import page
from vgpu.model.reasons import SourceError
from vgpu.program import logs
from vgpu.program.flags import composed, env, field
from vgpu.program.host import ProgramHost, program_flags
from vgpu.program.output import expect_terminal, is_confirmed, say, yes_flag
from vgpu.program.pages import program_routes
from vgpu.schemes.registry import registry
from vgpu.sources.kubelet import DEFAULT_CHECKPOINT
from vgpu.sources.own_checkpoint import DEFAULT_STATE_DIR
from vgpucli.feedback.confirmed_devices import ConfirmedDevices
from vgpucli.feedback.feedback_loop import FeedbackLoop
from vgpucli.feedback.metrics import TABLES
from vgpucli.feedback.other_writers import DEFAULT_LOCK, running_monitor

DEFAULT_ADDRESS: Final = ":9403"

DECLINED: Final = 3
"""Exit status if the user answers no, as of ``vgpu reconcile apply``."""

REFUSED: Final = (
    "{writer} writes the same words, and two programs would work against each other: use that"
    " monitor, or stop it on this node"
)

EPILOG: Final = f"""\
\b
Examples:
  vgpu feedback
  vgpu feedback --release

\b
Status of --release: 0; 3 if you answered no; 1 for an error; 2 for wrong flags, or if nobody can
be asked: standard input is no terminal, and --yes is missing.

\b
When it is needed, its rules and its limits:
{page("feedback")}.
"""


def _path(flag: str, help_: str, default: str, metavar: str = "FILE") -> Any:
    return click.option(
        flag,
        field(flag),
        default=default,
        show_default=True,
        envvar=env(flag),
        metavar=metavar,
        help=help_,
    )


@click.command("feedback", context_settings={"max_content_width": 100}, epilog=EPILOG)
@click.option(
    "--shim.root",
    field("--shim.root"),
    multiple=True,
    envvar=env("--shim.root"),
    metavar="DIR",
    help="Folder of the containers' regions; repeatable.  [default: those of HAMi and Volcano]",
)
@composed(
    _path("--kubelet.checkpoint", "The kubelet's device checkpoint.", DEFAULT_CHECKPOINT),
    _path(
        "--plugin.state-dir",
        "Our own device plugin's folder of checkpoints.",
        DEFAULT_STATE_DIR,
        "DIR",
    ),
    _path("--path.procfs", "The host's /proc.", "/proc", "DIR"),
    _path("--lock-file", "Held by the one that writes on this node.", DEFAULT_LOCK),
)
@click.option(
    "--release",
    is_flag=True,
    help="Let go of all containers of this node, print their number, and end. Asks before it does.",
)
@yes_flag
@program_flags(DEFAULT_ADDRESS)
@click.pass_context
def command(ctx: click.Context, /, **_: Any) -> None:
    """Hold containers of a low priority back while those of a higher one work, as HAMi's monitor.

    Writes two words into the regions of HAMi-core: who has to wait, and whose core limit is lifted.
    Must not run beside HAMi's own monitor. Lets go of all containers when it ends.
    """
    params = ctx.params
    roots = params["shim_root"] or registry().region_roots
    procfs = params["path_procfs"]
    asks = params["release"] and not params["yes"]
    if params["yes"] and not params["release"]:
        raise click.UsageError("--yes answers the question of --release, which is missing", ctx)
    if asks:
        expect_terminal()
    devices = ConfirmedDevices(params["kubelet_checkpoint"], params["plugin_state_dir"], procfs)
    with ExitStack() as stack:
        host = None if params["release"] else stack.enter_context(ProgramHost.from_flags(params))
        _require_sole_writer(stack, params["lock_file"], procfs, roots)
        if host is None:
            logs.configure(params["log_level"], params["log_format"])
            if asks and not is_confirmed("Let go of all containers of this node?"):
                ctx.exit(DECLINED)
            say(f"containers released: {FeedbackLoop(roots, devices).release()}")
            return
        loop = FeedbackLoop(
            roots,
            devices,
            other_writer=lambda: _other_writer(procfs, roots),
            give_up=host.fail,
        )
        metrics = host.metrics(TABLES, loop.view)
        host.start(program_routes("feedback", {"/metrics": metrics}, ready=loop.complaint))
        loop.start()
        host.wait()
        is_stuck = not loop.stop()
    ctx.exit(host.leave(stuck=is_stuck))


def _require_sole_writer(stack: ExitStack, lock: str, procfs: str, roots: tuple[str, ...]) -> None:
    """Take the lock, and make sure that HAMi's monitor does not run. Raises ClickException."""
    try:
        stack.enter_context(writer_lock(lock))
    except WriterLockHeld as error:
        problem = f"--lock-file {lock}: another `vgpu feedback` writes on this node"
        raise click.ClickException(problem) from error
    except OSError as error:
        raise click.ClickException(f"--lock-file {lock}: {error.strerror}") from error
    try:
        refusal = _other_writer(procfs, roots)
    except SourceError as error:
        problem = f"--path.procfs: it is unknown whether HAMi's monitor runs: {error}"
        raise click.ClickException(problem) from error
    if refusal:
        raise click.ClickException(refusal)


def _other_writer(procfs: str, roots: tuple[str, ...]) -> str:
    """The refusal if HAMi's monitor runs here; "" if it does not. Raises SourceError."""
    monitor = running_monitor(procfs, roots)
    return REFUSED.format(writer=monitor) if monitor else ""
