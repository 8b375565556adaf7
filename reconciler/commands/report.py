"""`vgpu reconcile report`: the problems, the nodes and owners with the most, the past actions."""

from pathlib import Path
from typing import Any

import click

from reconciler.apply.audit import read as read_audit
from reconciler.apply.records import AuditError, AuditEvent
from reconciler.commands.basics import (
    AUDIT_FILE,
    JSON,
    PROMETHEUS,
    TEXT,
    metrics_flag,
    metrics_text,
    refuse_blindness,
    write_metrics,
)
from reconciler.commands.dump_plans import Moment, dump_flags, is_from_dump, prepared_from_dump
from reconciler.config.flags import (
    CONTEXT,
    options_from,
    output_flag,
    policy_flags,
    where_flags,
)
from reconciler.cycle import Cycles, planned
from reconciler.model import Snapshot
from reconciler.policy import Mode
from reconciler.report.document import Done, done_of, report_document
from reconciler.report.table import show_report
from reconciler.session import session
from vgpu.model.document_text import json_text
from vgpu.program.flags import composed, log_flags
from vgpu.program.output import say_document, say_text
from vgpu.program.terminal import standard_output


@click.command(
    "report",
    context_settings=CONTEXT,
    epilog="""\
\b
Examples:
  vgpu reconcile report
  vgpu reconcile report --audit /var/lib/vgpu/audit/today.jsonl -o json | jq .done
  vgpu reconcile report --since 24h
  vgpu reconcile report --from dump.json
  vgpu reconcile report -o prometheus > /var/lib/node_exporter/reconcile.prom

\b
Status: 0 if the cluster could be read, whatever its state; 1 if not; 2 for wrong flags.
""",
)
@click.option(
    "--audit",
    default="",
    metavar="FILE",
    help=f"The audit file that `apply` and `run` have written.  [default: {AUDIT_FILE}, if there is"
    " one]",
)
@click.option(
    "--since",
    type=Moment(ago=True),
    metavar="TIME",
    allow_from_autoenv=False,
    help="Only past actions since then: a duration such as 24h, or 2026-11-21T03:00:00Z.",
)
@metrics_flag
@dump_flags
@where_flags
@policy_flags
@output_flag(TEXT, JSON, PROMETHEUS)
@composed(*log_flags("warn"))
@click.pass_context
def report(
    ctx: click.Context,
    /,
    *,
    audit: str,
    since: float | None,
    dumps: tuple[str, ...],
    taken: float | None,
    metrics_file: str,
    output: str,
    **_: Any,
) -> None:
    """Show what is wrong, rule by rule, who has the most of it, and what was done about it."""
    options = options_from(ctx)
    done = _done(audit, since)
    if is_from_dump(ctx, options, dumps, taken):
        prepared, requests = prepared_from_dump(options, dumps, taken), {}
    else:
        with session(options) as opened:
            prepared = Cycles(opened.observer, options.settings.policy, store=opened.store()).make()
            requests = dict(opened.cluster.requests)
    numbers = metrics_text(options, Mode.PLAN, planned(prepared), requests)
    write_metrics(metrics_file, numbers)
    if output == PROMETHEUS:
        say_document(numbers)
    else:
        document = report_document(prepared.plan, _owners(prepared.snapshot), done)
        if output == JSON:
            say_text(json_text(document) + "\n")
        else:
            show_report(standard_output(), prepared.plan, document)
    refuse_blindness(prepared)


def _done(path: str, since: float | None) -> tuple[Done, ...] | None:
    """The actions of an audit since then; None if there is none. Raises click.ClickException."""
    if not path and not Path(AUDIT_FILE).exists():
        return None
    try:
        return done_of(
            (record.rule, record.outcome, record.time)
            for record in read_audit(path or AUDIT_FILE)
            if record.event is AuditEvent.RESULT
            and record.outcome is not None
            and (since is None or record.time.timestamp() >= since)
        )
    except AuditError as error:
        raise click.ClickException(f"--audit {error}") from error


def _owners(snapshot: Snapshot) -> dict[str, str]:
    """The controllers of pods, by UID."""
    return {
        pod.owner.uid: f"{pod.owner.kind} {pod.ref.namespace}/{pod.owner.name}"
        for pod in (*snapshot.pods, *snapshot.nvidia_pods, *snapshot.share_pods)
        if pod.owner is not None
    }
