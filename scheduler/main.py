"""`vgpu scheduler`: places pods on shared GPUs, as an extender of kube-scheduler."""

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import click
import msgspec

from scheduler.bind.binder import SETTLE_SECONDS, PodBinder
from scheduler.bind.commit import CacheCommitter, Committer, LeaseCommitter
from scheduler.bind.lock_queue import LockQueue
from scheduler.bind.locks_and_labels import (
    NodeLabel,
    NodeLocker,
    recent_missing_labels,
    write_label,
)
from scheduler.cache.informers import ClusterInformers
from scheduler.cache.scheduler_cache import SchedulerCache
from scheduler.check_config.command import check_config
from scheduler.cluster.reservations import PodReservation
from scheduler.compat.gauges import SchedulerCompat, tables
from scheduler.compat.rows import PodHoldings, SchemeHoldings
from scheduler.flags import CertificateName, SchedulerOptions, policy_flags
from scheduler.metrics import TABLES, SchedulerMetrics, SchedulerView
from scheduler.presence import ReplicaPresence
from scheduler.queue_workers import QueueWorker, Waker
from scheduler.routes import extender_routes, page_routes
from scheduler.verbs.extender import Extender, RejectionEvents
from scheduler.verbs.preemption import Preemptor
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.work_queue import WorkQueue
from vgpu.kube.kept_keys import keep_also
from vgpu.metrics.family import FamilyTable
from vgpu.model.documentation import page
from vgpu.model.objects import Node
from vgpu.placement.dialects import scheduler_schemes
from vgpu.program.flags import Duration, MemoryUnit, composed, log_flags
from vgpu.program.host import CannotServe, ProgramHost
from vgpu.program.kube_flags import connected, kubeconfig_flags
from vgpu.program.pages import program_routes
from vgpu.program.resource_flags import resource_flags
from vgpu.program.resource_names import settle_at_start
from vgpu.program.web_flags import WebOptions, web_flags
from vgpu.web.listen import ListenError, parse_address
from vgpu.web.message import Handler
from vgpu.web.routes import Routes, restricted

log = logging.getLogger(__name__)

HeldNode = tuple[PodReservation, str]
"""What is held for a nominated pod, and its node."""

DEFAULT_ADDRESS: Final = "127.0.0.1:9398"

CONNECTIONS: Final = 512
"""Open connections at a time: kube-scheduler opens one for each pod that it binds."""

GATHER_SECONDS: Final = 0.005
"""Time for which events of the API server gather before they are read, in seconds."""

API_CONNECTIONS: Final = 72
"""Connections to the API server that are kept open: for 64 binds at a time, and for watches."""

STARTED_SECONDS: Final = 300.0
"""Maximum time to wait for the first read of the cluster before missing labels are looked for, in
seconds."""

EVENTS_SECONDS: Final = 1.0
"""Maximum time to wait at the end for events that are not written yet, in seconds."""

LOCK_PART: Final = 0.6
"""Part of kube-scheduler's timeout for which a bind waits for a lock; its writes need the rest."""

REQUESTS: Final = 256
"""Maximum number of requests that are answered at a time."""


CLIENT_FLAG: Final = "--extender.client-san"
PAGES_FLAG: Final = "--web.pages-client-san"


@click.group(
    "scheduler",
    invoke_without_command=True,
    context_settings={"auto_envvar_prefix": "VGPU", "max_content_width": 100},
    epilog=f"""\
\b
Examples:
  vgpu scheduler
  vgpu scheduler --single --gpu-policy binpack --node-policy spread
  vgpu scheduler check-config /etc/kubernetes/kube-scheduler.yaml

\b
The part of the KubeSchedulerConfiguration, and what is not there yet:
{page("scheduler")}.
""",
)
@click.option(
    "--single",
    is_flag=True,
    help="Reserve GPUs in memory and write no Leases of nodes: for one replica. Exits if another"
    " replica runs.",
)
@click.option(
    "--lease-namespace",
    default="kube-system",
    show_default=True,
    metavar="NAMESPACE",
    help="Namespace of the Leases of nodes, by which several replicas decide, and of the Lease"
    " vgpu-scheduler, by which --single finds other replicas.",
)
@click.option(
    "--original-plugin",
    is_flag=True,
    help="Lock the node of each pod of HAMi and Volcano, as their own device plugins need it. Ours"
    " does not: with locks one pod of a node is bound at a time.",
)
@click.option(
    "--extender.http-timeout",
    "http_timeout",
    type=Duration(),
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="httpTimeout of kube-scheduler's configuration: with --original-plugin a bind waits up to"
    " 60 % of it for the lock of its node.",
)
@click.option(
    "--best-node-only",
    is_flag=True,
    help="Answer filter with the best node alone, where kube-scheduler's configuration has no"
    " prioritizeVerb. kube-scheduler's own scores then count nothing.",
)
@click.option(
    "--no-quotas",
    is_flag=True,
    help="Enforce no quotas of namespaces, and read neither Namespaces nor ResourceQuotas: where"
    " the right to do so is missing.",
)
@kubeconfig_flags
@policy_flags
@click.option(
    "--volcano.memory-factor",
    "volcano_memory_factor",
    type=click.IntRange(1, 1 << 20),
    default=1,
    show_default=True,
    metavar="MIB",
    help="What one unit of volcano.sh/vgpu-memory means: the plugin's gpu-memory-factor.",
)
@click.option(
    "--gpushare.memory-unit",
    "gpushare_memory_unit",
    type=MemoryUnit(),
    default="GiB",
    show_default=True,
    metavar="UNIT",
    help="What one unit of aliyun.com/gpu-mem means: GiB, MiB, or a number of them (256MiB).",
)
@resource_flags
@click.option(
    "--web.allow-anonymous",
    "allow_anonymous",
    is_flag=True,
    help="Listen on other addresses than this host's although no client certificate is required:"
    " whoever reaches the port can bind pods.",
)
@click.option(
    CLIENT_FLAG,
    "client_sans",
    multiple=True,
    type=CertificateName(),
    metavar="NAME",
    help="Name (subjectAltName) in the client certificate of kube-scheduler; repeatable. Other"
    " certificates of the CA then get pages and metrics only, and 403 from filter, prioritize,"
    " preempt and bind.  [default: all certificates may bind pods]",
)
@click.option(
    PAGES_FLAG,
    "page_sans",
    multiple=True,
    type=CertificateName(),
    metavar="NAME",
    help="Name in a client certificate that gets pages and metrics, such as Prometheus';"
    " repeatable.  [default: all certificates of the CA]",
)
@click.option(
    "--compat",
    multiple=True,
    type=click.Choice([each.value for each in SchedulerCompat]),
    help="Gauges of an original scheduler beside our own; repeatable.",
)
@composed(
    *web_flags(DEFAULT_ADDRESS, max_connections=CONNECTIONS, max_per_address=CONNECTIONS),
    *log_flags("info"),
)
@click.pass_context
def command(ctx: click.Context, /, *, allow_anonymous: bool, **_: Any) -> None:
    """Place pods on shared GPUs, as an HTTP extender of kube-scheduler.

    The page of the documentation has what it has run with, and what it has not.
    """
    if ctx.invoked_subcommand is not None:
        return
    options = SchedulerOptions.of(ctx.params)
    web = msgspec.structs.replace(
        WebOptions.of(ctx.params), max_requests=REQUESTS, max_bodies=REQUESTS
    )
    with ProgramHost.from_flags(ctx.params, web=web) as host:
        check_listeners(host, web, allow_anonymous=allow_anonymous)
        check_clients(host, options)
        settle_at_start(options.kubeconfig, options.context, judges=False)
        with connected(
            options.kubeconfig,
            options.context,
            options.request_timeout,
            waits=True,
            gather=GATHER_SECONDS,
            connections=API_CONNECTIONS,
        ) as api:
            scheduler = Scheduler(api, options, host.metrics, host.fail)
            host.start(scheduler.routes())
            scheduler.start()
            host.wait()
            scheduler.stop()
    ctx.exit(host.leave())


command.add_command(check_config)


def check_listeners(host: ProgramHost, web: WebOptions, *, allow_anonymous: bool) -> None:
    """Refuse to listen for strangers: a bind writes to pods. Raises CannotServe."""
    if host.requires_client_certificates or all(map(is_loopback, web.listen_address)):
        return
    exposed = next(address for address in web.listen_address if not is_loopback(address))
    what = "whoever reaches this port can bind pods to nodes"
    if not allow_anonymous:
        raise CannotServe(
            f"{web.listen_flag} {exposed!r}: {what}. Require client certificates"
            " (--web.config.file, client_auth_type), listen on 127.0.0.1, or pass"
            " --web.allow-anonymous"
        )
    log.warning("no client certificate is required", extra={"address": exposed, "reason": what})


def check_clients(host: ProgramHost, options: SchedulerOptions) -> None:
    """Refuse lists of names that nothing verifies. Raises CannotServe.

    Without a list for the verbs any certificate of the CA may bind pods: the log has a warning.
    """
    if host.requires_client_certificates:
        if not options.client_sans:
            log.warning(
                "any client certificate of the CA may bind pods",
                extra={"reason": f"{CLIENT_FLAG} does not name that of kube-scheduler"},
            )
        return
    for flag, names in ((CLIENT_FLAG, options.client_sans), (PAGES_FLAG, options.page_sans)):
        if names:
            raise CannotServe(
                f"{flag} {names[0]!r}: no client certificate is required. Set client_auth_type:"
                " RequireAndVerifyClientCert in the file of --web.config.file"
            )


def is_loopback(address: str) -> bool:
    """Whether only this host can reach the address; a wrong one fails when it is listened on."""
    try:
        name, _ = parse_address(address)
    except ListenError:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


MetricsPages = Callable[[Iterable[FamilyTable], Callable[[], SchedulerView]], Handler]
"""Makes a page of metrics of tables over a view."""


class Scheduler:
    """The parts of the program, from its flags to its routes.

    Attributes:
        cache: what is known of the cluster.
        holder, labeler, reliever, waker: threads with a queue each, from :meth:`start` on: GPUs to
            hold, labels to set, namespaces and nodes whose rejected pods may be woken.
        locks: the binds that wait for locks of nodes.
        committer: decides for the binds.
        metrics, events: the counters, and the events of rejected pods.
    """

    def __init__(
        self,
        api: ApiClient,
        options: SchedulerOptions,
        metrics: MetricsPages,
        fail: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``fail`` ends the program for a reason; ``clock`` returns unix seconds."""
        rules = options.policies.exclusive
        keep_also(key for rule in rules for key, _ in rule.labels)
        self._api = api
        self._pages = metrics
        changed = WorkQueue[str]()
        schemes = scheduler_schemes(options.units, options.policies)
        self.cache = SchedulerCache(
            schemes,
            clock,
            changed.add,
            lambda *held: self.holder.add(held),
            self._relieve,
            offers_best=options.offers_best,
            takes_locks=options.has_original_plugin,
        )
        self.waker = Waker(api, self.cache, changed, clock)
        self.locks = LockQueue(LOCK_PART * options.http_timeout)
        self._informers = ClusterInformers(
            api, self.cache, quotas=options.enforces_quotas, node_seen=self.note_node
        )
        namespace = options.lease_namespace
        self._presence = ReplicaPresence(
            api, namespace, socket.gethostname(), fail, is_single=options.is_single
        )
        self.committer: Committer = (
            CacheCommitter(self.cache)
            if options.is_single
            else LeaseCommitter(api, self.cache, namespace, clock)
        )
        self.holder = QueueWorker[HeldNode]("holder", lambda held: self.committer.hold(*held))
        self.reliever = QueueWorker[str]("reliever", self._wake_relieved)
        self.labeler = QueueWorker[NodeLabel]("labeler", lambda label: write_label(api, label))
        self._binder = PodBinder(
            api,
            self.cache,
            clock,
            committer=self.committer,
            locker=NodeLocker(api, clock, self.locks) if options.has_original_plugin else None,
            label=self.labeler.add,
        )
        self._preemptor = Preemptor(api, self.cache, self.complaint)
        self.metrics = SchedulerMetrics()
        self.events = RejectionEvents(api.write_event, clock)
        self._extender = Extender(
            self.cache, self._binder, self.metrics, self.events, self.complaint
        )
        self._compat = frozenset(options.compat)
        self._client_sans, self._page_sans = options.client_sans, options.page_sans
        self._holdings = PodHoldings()
        self._ending = threading.Event()
        self._settler = threading.Thread(target=self._settle, name="settle", daemon=True)

    def routes(self) -> Routes:
        """All routes."""
        pages = {
            "/metrics": self._pages((*TABLES, *tables(self._compat)), self._view),
            **page_routes(self.cache),
        }
        verbs = extender_routes(self._extender, self._preemptor, self.metrics, self._client_sans)
        own = {**verbs, **restricted(pages, self._page_sans)}
        return program_routes("scheduler", own, ready=self.complaint)

    def wait(self, seconds: float) -> bool:
        """Wait until requests are answered; returns whether that was in time."""
        until = time.monotonic() + seconds
        is_read = self._informers.wait(seconds)
        while self.complaint() and time.monotonic() < until:
            time.sleep(0.05)
        return is_read and not self.complaint()

    def start(self) -> None:
        """Follow the cluster."""
        self._presence.start()
        self._informers.start()
        self._settler.start()
        self.waker.start()
        self.holder.start()
        self.labeler.start()
        self.reliever.start()

    def stop(self) -> None:
        """Stop following it."""
        self._ending.set()
        self.locks.close()
        self.waker.stop()
        self.holder.stop()
        self.labeler.stop()
        self.reliever.stop()
        self._informers.close()
        self.events.finish(EVENTS_SECONDS)
        self._presence.stop()

    def note_node(self, name: str, node: Node | None) -> None:
        """An event of a node, which the cache has taken; None if it is gone or unreadable."""
        if not self.cache.is_locked(name):
            self.locks.note_free(name, node)

    def _relieve(self, namespace: str) -> None:
        """The quota of a namespace may admit more pods."""
        self.reliever.add(namespace)

    def _wake_relieved(self, namespace: str) -> bool:
        return self.waker.wake_relieved(namespace, self.reliever.queue.add_after)

    def complaint(self) -> str:
        """Why no request can be answered; "" if they can."""
        return self._presence.complaint() or self._informers.complaint()

    def _settle(self) -> None:
        try:
            if self._informers.wait(STARTED_SECONDS):
                self._label_recent()
        except Exception:
            log.exception("missing labels of pods not written: unexpected error")
        while not self._ending.wait(SETTLE_SECONDS):
            try:
                self.check_reservations()
            except Exception:
                log.exception("reservations not checked: unexpected error")

    def _label_recent(self) -> None:
        """Set the labels that pods of the process before miss."""
        now = time.time()
        for label in recent_missing_labels(self.cache.all_pods(), self.cache.schemes, now):
            self.labeler.add(label)

    def check_reservations(self) -> None:
        """End those that are over without an event, and what was kept free for a time."""
        self.cache.end_kept_free()
        self._binder.settle()

    def _view(self) -> SchedulerView:
        nodes, pods, reservations, rejected = self.cache.counts()
        return SchedulerView(
            ready=not self.complaint(),
            ages=self._informers.ages(),
            nodes=nodes,
            pods=pods,
            reservations=reservations,
            rejected=rejected,
            woken=self.waker.woken,
            api_requests=self._api.requests,
            held=self._held(),
            quotas=self.cache.limited(),
            standing=self.cache.standing(),
            **self.metrics.counts(),
        )

    def _held(self) -> SchemeHoldings:
        """What the chosen compatibility sets need, of no other sharing system."""
        systems = {compat.system for compat in self._compat}
        nodes = {
            scheme.row.name: self._holdings.of(scheme, self.cache.inspected(scheme.row.name))
            for scheme in self.cache.schemes
            if scheme.row.name in systems
        }
        return SchemeHoldings(**nodes)
