"""`vgpu reconcile plan`: what would be done, and why the rest would not. Changes nothing."""

from typing import Any

import click

from reconciler.commands.basics import (
    JSON,
    NOTHING,
    PROMETHEUS,
    TEXT,
    WANTED,
    print_metrics,
    refuse_blindness,
)
from reconciler.commands.dump_plans import (
    dump_flags,
    earlier_plan,
    is_from_dump,
    prepared_from_dump,
)
from reconciler.config.flags import (
    CONTEXT,
    options_from,
    output_flag,
    policy_flags,
    where_flags,
)
from reconciler.cycle import Cycles, PreparedPlan, planned
from reconciler.policy import Mode
from reconciler.report.document import ComparedPlan, compared, diff_lines, plan_document
from reconciler.report.table import show_plan
from reconciler.session import session
from vgpu.model.document_text import json_text
from vgpu.program.flags import composed, log_flags
from vgpu.program.output import say, say_text
from vgpu.program.terminal import standard_output


@click.command(
    "plan",
    context_settings=CONTEXT,
    epilog="""\
\b
Examples:
  vgpu reconcile plan
  vgpu reconcile plan -o json | jq '.actions[].name'
  kubectl get nodes,pods -A -o json --show-managed-fields > dump.json
  vgpu reconcile plan --from dump.json --at 2026-11-21T03:00:00Z
  vgpu reconcile plan -o json > plan.json; vgpu reconcile plan --diff plan.json
  vgpu reconcile plan --scope node
  vgpu reconcile plan --print-config > reconcile.yaml

\b
Status: 0 if nothing is to be done, 3 if something is, also if the circuit breaker forbids it;
1 for an error, 2 for wrong flags.
""",
)
@dump_flags
@click.option(
    "--diff",
    "before",
    default="",
    metavar="FILE",
    allow_from_autoenv=False,
    help="Show what has changed since an earlier plan (`plan -o json`) or dump.",
)
@where_flags
@policy_flags
@output_flag(TEXT, JSON, PROMETHEUS)
@composed(*log_flags("warn"))
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    *,
    dumps: tuple[str, ...],
    taken: float | None,
    before: str,
    output: str,
    **_: Any,
) -> None:
    """Show what would be done, and why the rest would not. Changes nothing."""
    options = options_from(ctx)
    offline = is_from_dump(ctx, options, dumps, taken)
    earlier = earlier_plan(options, before) if before else None
    if offline:
        prepared, requests = prepared_from_dump(options, dumps, taken), {}
    else:
        with session(options) as opened:
            prepared = Cycles(opened.observer, options.settings.policy, store=opened.store()).make()
            requests = dict(opened.cluster.requests)
    document = plan_document(prepared.plan)
    shown = document if earlier is None else compared(document, earlier)
    if output == TEXT:
        hint = "" if dumps else "vgpu reconcile apply, with the same flags"
        show_plan(standard_output(), prepared.plan, hint)
        if isinstance(shown, ComparedPlan):
            say("", *diff_lines(shown.diff))
    elif output == JSON:
        say_text(json_text(shown) + "\n")
    else:
        print_metrics(options, Mode.PLAN, planned(prepared), requests)
    refuse_blindness(prepared)
    ctx.exit(WANTED if _wanted(prepared) else NOTHING)


def _wanted(prepared: PreparedPlan) -> bool:
    return bool(prepared.plan.actions) or prepared.plan.breaker.tripped
