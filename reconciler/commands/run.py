"""`vgpu reconcile run`: a plan again and again, applied if it is to be, with metrics and probes."""

import logging
import socket
import threading
from typing import Any, Final

import click

from reconciler.apply.audit import STANDARD, Audit
from reconciler.commands.common import AUDIT_HELP, opened_audit
from reconciler.config.flags import (
    CONTEXT,
    log_flags,
    options_from,
    policy_flags,
    run_flags,
    where_flags,
)
from reconciler.cycle import Cycles
from reconciler.leader import LEASE, Leader
from reconciler.metrics import ReconcilerMetrics
from reconciler.model import Scope
from reconciler.policy import Mode
from reconciler.schedule import Schedule
from reconciler.service import Loop, leave, routes
from reconciler.session import NoAudit, Session, session
from vgpu.program import signals
from vgpu.program.process import build_info, own_numbers
from vgpu.program.web_flags import max_connections, max_per_address
from vgpu.web.config import WebConfigError, WebConfigFile
from vgpu.web.server import ListenError, WebServer

log = logging.getLogger(__name__)

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
@click.option(
    "--web.listen-address",
    "web_listen_address",
    multiple=True,
    default=(f":{DEFAULT_PORT}",),
    show_default=True,
    metavar="ADDRESS",
    help="Address to serve on; repeatable. An empty host is every address.",
)
@click.option(
    "--web.config.file",
    "web_config_file",
    default="",
    metavar="FILE",
    help="TLS, client certificates and basic authentication, in exporter-toolkit's format.",
)
@max_connections
@max_per_address
@where_flags
@policy_flags
@log_flags("info")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    *,
    audit: str,
    leader_elect: bool | None,
    web_listen_address: tuple[str, ...],
    web_config_file: str,
    web_max_connections: int,
    web_max_connections_per_address: int,
    **_: Any,
) -> None:
    """Make a plan again and again, apply it with --mode apply, and serve metrics about it."""
    options = options_from(ctx)
    signals.ignore()
    signals.block_ending()
    applies = options.settings.mode is Mode.APPLY
    elects = options.scope is Scope.CLUSTER if leader_elect is None else leader_elect
    try:
        web_config = WebConfigFile(web_config_file) if web_config_file else None
        with (
            opened_audit(audit if applies else "") as book,
            session(options, continuous=True) as opened,
        ):
            loop, numbers, leader, stopping = _loop(opened, book, elects, web_config)
            server = WebServer(
                routes(loop, numbers),
                web_listen_address,
                web_config,
                max_connections=web_max_connections,
                max_per_address=web_max_connections_per_address,
            )
            settings = options.settings
            schedule = Schedule(loop.cycle, loop.missed, settings.every, settings.cron)
            server.start()
            if leader is not None:
                leader.start()
            schedule.start()
            log.info("serving", extra={"addresses": ",".join(server.urls)})
            received = signals.wait()
            log.info("stopping", extra={"reason": received.name})
            stopping.set()
            schedule.stop()
            leave(loop, leader, stopping)
            server.stop()
    except (WebConfigError, ListenError) as error:
        raise click.ClickException(str(error)) from error


def _loop(
    opened: Session, audit: Audit | NoAudit, elects: bool, web_config: WebConfigFile | None
) -> tuple[Loop, ReconcilerMetrics, Leader | None, threading.Event]:
    """The loop over this session, its numbers, its election, and what stops it."""
    options = opened.options
    settings = options.settings
    stopping = threading.Event()
    leader = None
    if elects:
        name = opened.own_name(LEASE)
        leader = Leader(opened.cluster, options.state_namespace, socket.gethostname(), name=name)
    leads = leader.leads if leader else lambda: True
    applies = settings.mode is Mode.APPLY
    cycles = Cycles(
        opened.observer,
        settings.policy,
        # Thousands of nodes would write; their own loops remember in their processes.
        store=opened.store() if options.scope is Scope.CLUSTER else None,
        apply=opened.apply(audit, leads=leads, stopping=stopping) if applies else None,
    )
    numbers = ReconcilerMetrics(
        options.scope,
        settings.mode,
        leads=leader.leads if leader else None,
        requests=lambda: opened.cluster.requests,
        build=build_info(),
        own=own_numbers(web_config),
    )
    loop = Loop(cycles, numbers, leader, stopping, deadline=settings.deadline)
    return loop, numbers, leader, stopping
