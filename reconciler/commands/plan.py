"""`vgpu reconcile plan`: what would be done, and why the rest would not. Changes nothing."""

import re
import time
from datetime import UTC, datetime
from typing import Any

import click

from reconciler.commands.common import (
    JSON,
    NOTHING,
    PROMETHEUS,
    TEXT,
    WANTED,
    print_metrics,
    refuse_blindness,
)
from reconciler.config.flags import (
    CONTEXT,
    ReconcilerOptions,
    options_from,
    output_flag,
    policy_flags,
    where_flags,
)
from reconciler.cycle import Cycles, Made, planned
from reconciler.model import Scope
from reconciler.observe.dump import DumpObserver
from reconciler.policy import Mode
from reconciler.report.document import json_text, plan_document
from reconciler.report.table import show_plan
from reconciler.session import session
from vgpu.kube.flags import API_FLAGS, not_a_dump, read_dump
from vgpu.program.flags import composed, is_typed, log_flags
from vgpu.reasons import SourceError
from vgpu.terminal import standard_output


class Moment(click.ParamType[float]):
    """Unix seconds, written as RFC 3339 has times, or as such seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """To unix seconds."""
        text = str(value)
        if re.fullmatch(r"\d{1,11}", text, re.ASCII):
            return float(text)
        try:
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is not a time such as 2026-11-21T03:00:00Z", param, ctx)


@click.command(
    "plan",
    context_settings=CONTEXT,
    epilog="""\
\b
Examples:
  vgpu reconcile plan
  vgpu reconcile plan -o json | jq '.actions[].name'
  kubectl get nodes,pods,sharepods -A -o json > dump.json
  vgpu reconcile plan --from dump.json --at 2026-11-21T03:00:00Z
  vgpu reconcile plan --scope node
  vgpu reconcile plan --print-config > reconcile.yaml

\b
Status: 0 if nothing is to be done, 3 if something is, also if the circuit breaker forbids it;
1 for an error, 2 for wrong flags.
""",
)
@click.option(
    "--from",
    "dump",
    default="",
    metavar="FILE",
    allow_from_autoenv=False,
    help="Read 'kubectl get nodes,pods -A -o json' from a file, or from - for standard input, and"
    " ask no API server. SharePods and ConfigMaps in it are used.",
)
@click.option(
    "--at",
    "taken",
    type=Moment(),
    metavar="TIME",
    allow_from_autoenv=False,
    help="When the dump was taken, such as 2026-11-21T03:00:00Z.  [default: when its file was"
    " written]",
)
@where_flags
@policy_flags
@output_flag(TEXT, JSON, PROMETHEUS)
@composed(*log_flags("warn"))
@click.pass_context
def plan(ctx: click.Context, /, *, dump: str, taken: float | None, output: str, **_: Any) -> None:
    """Show what would be done, and why the rest would not. Changes nothing."""
    options = options_from(ctx)
    if taken is not None and not dump:
        raise click.UsageError("--at is of a dump: it needs --from", ctx)
    if dump:
        named = [name for name in API_FLAGS if is_typed(ctx, name)]
        if named or options.scope is Scope.NODE:
            wrong = f"--{named[0].replace('_', '-')}" if named else "--scope node"
            raise click.UsageError(f"--from asks no cluster: drop {wrong}", ctx)
        made, requests = _from_dump(options, dump, taken), {}
    else:
        with session(options) as opened:
            made = Cycles(opened.observer, options.settings.policy, store=opened.store()).make()
            requests = dict(opened.cluster.requests)
    if output == TEXT:
        hint = "" if dump else "vgpu reconcile apply, with the same flags"
        show_plan(standard_output(), made.plan, hint)
    elif output == JSON:
        click.echo(json_text(plan_document(made.plan)))
    else:
        print_metrics(options, Mode.PLAN, planned(made), requests)
    refuse_blindness(made)
    ctx.exit(WANTED if _wanted(made) else NOTHING)


def _from_dump(options: ReconcilerOptions, path: str, taken: float | None) -> Made:
    content, written = read_dump(path)
    now = min(written, time.time()) if taken is None else taken
    observer = DumpObserver(content, path, options.units)
    try:
        return Cycles(observer, options.settings.policy, clock=lambda: now).make()
    except SourceError as error:
        raise not_a_dump(str(error)) from error


def _wanted(made: Made) -> bool:
    return bool(made.plan.actions) or made.plan.breaker.tripped
