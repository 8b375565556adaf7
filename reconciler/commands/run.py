"""`vgpu reconcile run`: a plan again and again, applied if it is to be, with metrics and probes."""

import socket
import threading
from collections.abc import Callable
from typing import Any, Final

import click

from reconciler.apply.audit import STANDARD, Audit
from reconciler.commands.basics import AUDIT_HELP, notifier, notify_flag, opened_audit
from reconciler.config.flags import CONTEXT, options_from, policy_flags, run_flags, where_flags
from reconciler.cycle import Cycle, Cycles
from reconciler.metrics import ReconcilerMetrics
from reconciler.model import Scope
from reconciler.policy import Mode
from reconciler.schedule import Schedule
from reconciler.service import Loop, leave, routes
from reconciler.session import LEASE, NoAudit, Session, session
from vgpu.apiserver.leader_election import LeaderElector
from vgpu.program.flags import composed, log_flags
from vgpu.program.host import ProgramHost
from vgpu.program.node_token import NodeToken
from vgpu.program.web_flags import WebOptions, web_flags

DEFAULT_PORT: Final = 9396


@click.command(
    "run",
    context_settings=CONTEXT,
    epilog="""\
\b
Examples:
  vgpu reconcile run                       report what is wrong, as metrics, every 2 minutes
  vgpu reconcile run --mode apply --every 5m
  vgpu reconcile run --mode apply --cron '*/10 8-18 * * mon-fri'
  vgpu reconcile run --scope node --mode apply --node-name "$NODE_NAME"

\b
Metrics are on /metrics, probes on /-/healthy and /-/ready.
""",
)
@run_flags
@click.option(
    "--audit",
    default=STANDARD,
    show_default=True,
    metavar="FILE",
    help=f"{AUDIT_HELP} With --mode apply.",
)
@click.option(
    "--leader-elect/--no-leader-elect",
    default=None,
    help="Work only while holding the Lease, so that several may run.  [default: with --scope"
    " cluster]",
)
@notify_flag
@composed(*web_flags(f":{DEFAULT_PORT}"))
@where_flags
@policy_flags
@composed(*log_flags("info"))
@click.pass_context
def run(
    ctx: click.Context,
    /,
    *,
    audit: str,
    leader_elect: bool | None,
    notify_url_file: str,
    **_: Any,
) -> None:
    """Make a plan again and again, apply it with --mode apply, and serve metrics about it."""
    options = options_from(ctx)
    settings = options.settings
    applies = settings.mode is Mode.APPLY
    elects = options.scope is Scope.CLUSTER if leader_elect is None else leader_elect
    with (
        ProgramHost(WebOptions.of(ctx.params)) as host,
        opened_audit(audit if applies else "") as book,
        session(options, continuous=True) as opened,
    ):
        notify = notifier(ctx, notify_url_file, opened.cluster.server)
        loop, numbers, leader, stopping = _loop(opened, book, elects, host, notify)
        schedule = Schedule(loop.cycle, loop.missed, settings.every, settings.cron)
        host.start(routes(loop, numbers))
        if leader is not None:
            leader.start()
        schedule.start()
        host.wait()
        stopping.set()
        schedule.stop()
        leave(loop, leader, stopping)
    ctx.exit(host.leave())


def _loop(
    opened: Session,
    audit: Audit | NoAudit,
    elects: bool,
    host: ProgramHost,
    notify: Callable[[Cycle], None],
) -> tuple[Loop, ReconcilerMetrics, LeaderElector | None, threading.Event]:
    """The loop of this session, its metrics, its leader election, and its stop event."""
    options = opened.options
    settings = options.settings
    stopping = threading.Event()
    token = NodeToken(opened.cluster, options.node, is_required=options.require_node_token)
    token.complaint()  # the log has it before anything is served
    leader = None
    if elects:
        name, identity = opened.own_name(LEASE), socket.gethostname()
        leader = LeaderElector(opened.cluster, options.state_namespace, name, identity)
    leads = leader.leads if leader else lambda: True
    applies = settings.mode is Mode.APPLY
    cycles = Cycles(
        opened.observer,
        settings.policy,
        # Thousands of nodes would write; a node's loop keeps its state in its process.
        store=opened.store() if options.scope is Scope.CLUSTER else None,
        apply=opened.apply(audit, leads=leads, stopping=stopping) if applies else None,
    )
    numbers = ReconcilerMetrics(
        options.scope,
        settings.mode,
        leads=leader.leads if leader else None,
        requests=lambda: opened.cluster.requests,
        build=host.build,
        own=token.numbers(host.process_numbers),
    )
    loop = Loop(cycles, numbers, leader, stopping, deadline=settings.deadline, notify=notify)
    loop.token = token.complaint
    return loop, numbers, leader, stopping
