"""`vgpu reconcile restore`: what an audit tells of is as it was before, where that can be."""

import time

import click

from reconciler.apply.audit import AuditError
from reconciler.apply.audit import read as read_audit
from reconciler.apply.restore import restore
from reconciler.commands.common import JSON, NOTHING, PARTLY, TEXT
from reconciler.flags import CONTEXT, log_flags, output_flag
from reconciler.report import AS_BEFORE, json_text, restored_document
from reconciler.report_table import show_outcomes, show_restored
from vgpu import logs
from vgpu.connection import connected, kubeconfig_flags
from vgpu.terminal import standard_output


@click.command(
    "restore",
    context_settings=CONTEXT,
    epilog="""\
\b
Examples:
  vgpu reconcile restore vgpu-audit.jsonl --server-dry-run
  vgpu reconcile restore vgpu-audit.jsonl
  tail -n 2 vgpu-audit.jsonl | vgpu reconcile restore -

\b
Status: 0 if all is as it was before; 4 if something is not, such as an evicted pod; 1 for an
error, 2 for wrong flags.
""",
)
@click.argument("audit", metavar="AUDIT")
@kubeconfig_flags
@click.option(
    "--server-dry-run",
    is_flag=True,
    allow_from_autoenv=False,
    help="Let the API server check everything and keep nothing.",
)
@output_flag(TEXT, JSON)
@log_flags("warn")
def restore_command(
    *,
    audit: str,
    kubeconfig: str,
    context: str,
    server_dry_run: bool,
    output: str,
    log_level: str,
    log_format: str,
) -> None:
    """Undo the changes of annotations that an AUDIT tells of, the newest first.

    Only what is still as it was left; evictions and removed folders cannot be undone.
    """
    logs.configure(log_level, log_format)
    console = standard_output()
    undone = []
    try:
        records = tuple(read_audit(audit))
    except AuditError as error:
        raise click.ClickException(str(error)) from error
    with connected(kubeconfig, context) as cluster:
        for restored in restore(records, cluster, dry_run=server_dry_run, clock=time.time):
            undone.append(restored)
            if output == TEXT:
                show_restored(console, restored)
    if output == TEXT:
        show_outcomes(console, (restored.undo for restored in undone))
    else:
        click.echo(json_text([restored_document(restored) for restored in undone]))
    whole = all(restored.undo in AS_BEFORE for restored in undone)
    click.get_current_context().exit(NOTHING if whole else PARTLY)
