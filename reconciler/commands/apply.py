"""`vgpu reconcile apply`: a plan is made, shown and done, once."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import click
from rich.console import Console

from reconciler.apply.audit import STANDARD
from reconciler.apply.records import AuditError
from reconciler.commands.basics import (
    AUDIT_FILE,
    AUDIT_HELP,
    JSON,
    NOTHING,
    PARTLY,
    PROMETHEUS,
    TEXT,
    WANTED,
    metrics_flag,
    metrics_text,
    notifier,
    notify_flag,
    opened_audit,
    refuse_blindness,
    stopped_by_signals,
    write_metrics,
)
from reconciler.config.flags import (
    CONTEXT,
    options_from,
    output_flag,
    policy_flags,
    where_flags,
)
from reconciler.cycle import Cycle, Cycles, Ending, PreparedPlan, applied
from reconciler.model import ActionResult
from reconciler.policy import Mode
from reconciler.report.document import plan_document
from reconciler.report.table import show_outcomes, show_plan, show_result
from reconciler.session import session
from vgpu.model.document_text import json_text
from vgpu.program.flags import composed, log_flags
from vgpu.program.output import is_confirmed, say_document, say_text, yes_flag
from vgpu.program.terminal import BOLD, DIM, standard_output, write

FRESH_SECONDS: Final = 60.0
"""Maximum age of a plan at its confirmation, in seconds; for an older plan, we plan again."""


@click.command(
    "apply",
    context_settings=CONTEXT,
    epilog="""\
\b
Examples:
  vgpu reconcile apply
  vgpu reconcile apply --rule refused=apply --max-per-cycle 5 --yes
  vgpu reconcile apply --server-dry-run
  vgpu reconcile apply --namespace ml --audit /var/lib/vgpu/audit/today.jsonl

\b
Status: 0 if all was done, or was no longer needed since objects were gone or had changed; 3 if
you answered no; 4 if something was not done, or the circuit breaker has tripped; 1 for an error;
2 for wrong flags, or if nobody can be asked: standard input is no terminal, and --yes is missing.
""",
)
@click.option(
    "--audit",
    default=AUDIT_FILE,
    show_default=True,
    metavar="FILE",
    help=f"{AUDIT_HELP} A dry run has none.",
)
@click.option(
    "--server-dry-run",
    is_flag=True,
    allow_from_autoenv=False,
    help="Let the API server check everything and keep nothing.",
)
@yes_flag
@notify_flag
@metrics_flag
@where_flags
@policy_flags
@output_flag(TEXT, JSON, PROMETHEUS)
@composed(*log_flags("warn"))
@click.pass_context
def apply(
    ctx: click.Context,
    /,
    *,
    audit: str,
    server_dry_run: bool,
    yes: bool,
    notify_url_file: str,
    metrics_file: str,
    output: str,
    **_: Any,
) -> None:
    """Make a plan, show it, ask, and do it, once. What is shown is what is done."""
    options = options_from(ctx)
    if audit == STANDARD and output != TEXT and not server_dry_run:
        complaint = f"--audit - and --output {output} both write standard output: choose one"
        raise click.UsageError(complaint, ctx)
    aside = output != TEXT or audit == STANDARD
    console = standard_output(stderr=aside)
    stopping = threading.Event()

    def show(prepared: PreparedPlan, remark: str = "") -> None:
        if output == TEXT or (asks and prepared.plan.actions):
            if remark:
                write(console, [[(remark, BOLD)]])
            show_plan(console, prepared.plan)

    asks = not (yes or server_dry_run)
    with opened_audit("" if server_dry_run else audit) as book, session(options) as opened:
        cycles = Cycles(
            opened.observer,
            options.settings.policy,
            store=opened.store(),
            apply=opened.apply(book, dry_run=server_dry_run, stopping=stopping),
            keeps=not server_dry_run,
        )

        def confirm(prepared: PreparedPlan) -> bool:
            where = opened.cluster.server
            return is_confirmed(f"At {where}. Do it ({len(prepared.plan.actions)})?")

        notify = notifier(ctx, notify_url_file, opened.cluster.server)
        prepared = agreed(cycles.make, show, confirm if asks else None)
        if prepared is None:
            ctx.exit(WANTED)
        with stopped_by_signals(stopping):
            cycle = _apply(cycles, prepared, console if output == TEXT else None)
        if output == TEXT and cycle.results and not server_dry_run and audit != STANDARD:
            write(console, [[(f"To undo what can be: vgpu reconcile restore {audit}", DIM)]])
        if not server_dry_run:
            notify(cycle)
        numbers = metrics_text(options, Mode.APPLY, cycle, opened.cluster.requests)
        write_metrics(metrics_file, numbers)
        if output == JSON:
            say_text(json_text(plan_document(prepared.plan, cycle.results)) + "\n")
        elif output == PROMETHEUS:
            say_document(numbers)
    refuse_blindness(prepared)
    if cycle.error:
        raise click.ClickException(cycle.error)
    ctx.exit(NOTHING if cycle.ending is Ending.APPLIED else PARTLY)


def agreed(
    make_plan: Callable[[], PreparedPlan],
    show: Callable[..., None],
    confirm: Callable[[PreparedPlan], bool] | None,
    monotonic: Callable[[], float] = time.monotonic,
) -> PreparedPlan | None:
    """The plan to apply, None if the user answered no; without ``confirm`` no question is asked.

    After a late confirmation we plan again; if the new plan differs, the user is asked again. So
    the applied plan is the confirmed plan, and it is not old.
    """
    prepared = make_plan()
    show(prepared)
    while confirm is not None and prepared.plan.actions:
        asked_at = monotonic()
        if not confirm(prepared):
            return None
        if monotonic() - asked_at <= FRESH_SECONDS:
            break
        before, prepared = prepared, make_plan()
        if prepared.plan.id == before.plan.id:
            break
        show(prepared, "The plan has changed while it was read; this is the one of now:")
    return prepared


def _apply(cycles: Cycles, prepared: PreparedPlan, console: Console | None) -> Cycle:
    """Apply the plan; each result is shown as it comes."""
    results: list[ActionResult] = []
    complaint = ""
    began = time.monotonic()
    try:
        for result in cycles.apply(prepared):
            results.append(result)
            if console is not None:
                with suppress(OSError):  # the terminal is gone; the plan is still applied
                    show_result(console, result)
    except AuditError as error:
        complaint = str(error)
    if console is not None:
        show_outcomes(console, (result.outcome for result in results))
    return applied(prepared, results, time.monotonic() - began, complaint)
