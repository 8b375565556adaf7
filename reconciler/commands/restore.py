"""`vgpu reconcile restore`: undoes the actions of an audit, where that is possible."""

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from reconciler.apply.audit import STANDARD
from reconciler.apply.audit import read as read_audit
from reconciler.apply.records import AuditError, Restored
from reconciler.apply.restore import restore, undoable
from reconciler.commands.basics import (
    AUDIT_HELP,
    JSON,
    NOTHING,
    PARTLY,
    TEXT,
    WANTED,
    opened_audit,
    stopped_by_signals,
)
from reconciler.config.flags import CONTEXT, output_flag
from reconciler.model import Edit
from reconciler.report.document import AS_BEFORE, restored_document
from reconciler.report.table import show_outcomes, show_restored, show_undoable
from vgpu.model.document_text import json_text
from vgpu.program import logs
from vgpu.program.flags import composed, log_flags
from vgpu.program.kube_flags import connected, kubeconfig_flags
from vgpu.program.output import is_confirmed, say_text, yes_flag
from vgpu.program.terminal import standard_output

RESTORE_FILE: Final = "vgpu-restore.jsonl"


@click.command(
    "restore",
    context_settings=CONTEXT,
    epilog="""\
\b
Examples:
  vgpu reconcile restore vgpu-audit.jsonl --server-dry-run
  vgpu reconcile restore vgpu-audit.jsonl
  tail -n 2 vgpu-audit.jsonl | vgpu reconcile restore - --yes
  vgpu reconcile restore vgpu-restore.jsonl --audit again.jsonl    # undoes the undoing

\b
Status: 0 if all is as it was before; 3 if you answered no; 4 if something is not, such as an
    evicted pod; 1 for an error; 2 for wrong flags, or if nobody can be asked: standard input is
    no terminal, and --yes is missing.
""",
)
@click.argument("audit", metavar="AUDIT")
@kubeconfig_flags
@click.option(
    "--audit",
    "own_audit",
    default=RESTORE_FILE,
    show_default=True,
    metavar="FILE",
    allow_from_autoenv=False,  # VGPU_AUDIT is the audit of `apply` and `run`
    help=f"{AUDIT_HELP} A dry run has none.",
)
@click.option(
    "--server-dry-run",
    is_flag=True,
    allow_from_autoenv=False,
    help="Let the API server check everything and keep nothing.",
)
@yes_flag
@output_flag(TEXT, JSON)
@composed(*log_flags("warn"))
@click.pass_context
def restore_command(
    ctx: click.Context,
    /,
    *,
    audit: str,
    kubeconfig: str,
    context: str,
    request_timeout: float | None,
    own_audit: str,
    server_dry_run: bool,
    yes: bool,
    output: str,
    log_level: str,
    log_format: str,
) -> None:
    """Undo the changes of annotations that an AUDIT records, the newest first.

    Only what is still as it was left; evictions and removed folders cannot be undone.
    """
    logs.configure(log_level, log_format)
    _expect_own(ctx, audit, own_audit, writes=not server_dry_run, shows=output == TEXT)
    aside = output != TEXT or own_audit == STANDARD
    console = standard_output(stderr=aside)
    try:
        records = tuple(read_audit(audit))
    except AuditError as error:
        raise click.ClickException(str(error)) from error
    todo = undoable(records)
    edits = sum(isinstance(record.action, Edit) for record in todo)
    with (
        opened_audit(own_audit if edits and not server_dry_run else "") as book,
        connected(kubeconfig, context, request_timeout) as cluster,
    ):
        if edits and not (yes or server_dry_run):
            show_undoable(console, todo)
            if not is_confirmed(f"At {cluster.server}. Undo it ({edits})?"):
                ctx.exit(WANTED)
        results = restore(records, cluster, book, dry_run=server_dry_run, clock=time.time)
        undone, complaint = _shown(results, console if output == TEXT else None)
    if output == TEXT:
        show_outcomes(console, (restored.undo for restored in undone))
    else:
        say_text(json_text([restored_document(restored) for restored in undone]) + "\n")
    if left := len(todo) - len(undone):
        reason = complaint or "stopped by a signal"
        raise click.ClickException(f"{reason}; not looked at: {left} of {len(todo)}")
    if complaint:
        raise click.ClickException(complaint)
    whole = all(restored.undo in AS_BEFORE for restored in undone)
    ctx.exit(NOTHING if whole else PARTLY)


def _expect_own(ctx: click.Context, audit: str, own: str, *, writes: bool, shows: bool) -> None:
    """Raises click.UsageError where the restore's own audit would be mixed with other output."""
    if own == STANDARD and writes and not shows:
        complaint = f"--audit - and --output {JSON} both write standard output: choose one"
        raise click.UsageError(complaint, ctx)
    with suppress(OSError):
        if writes and Path(audit).samefile(own):
            complaint = f"--audit {own} is the audit that is to be undone: name another file"
            raise click.UsageError(complaint, ctx)


def _shown(
    results: Iterable[Restored], console: Console | None
) -> tuple[tuple[Restored, ...], str]:
    """The results, shown as they come, until all are known or we are asked to stop.

    The second value is why the restore's audit could not be written; "" if it could.
    """
    stopping = threading.Event()
    undone: list[Restored] = []
    with stopped_by_signals(stopping):
        try:
            for restored in results:
                undone.append(restored)
                if console is not None:
                    show_restored(console, restored)
                if stopping.is_set():
                    break
        except AuditError as error:
            return tuple(undone), str(error)
    return tuple(undone), ""
