"""What a command needs, opened by its flags: the API server, an observer, an applier, a store."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec

from reconciler.apply.applier import Applier, ApplyOptions, AuditSink
from reconciler.apply.records import AuditRecord
from reconciler.apply.removal import Remover
from reconciler.config.flags import ReconcilerOptions
from reconciler.cycle import Apply
from reconciler.model import ActionResult, Entry, Plan, Scope
from reconciler.observe import ClusterView, Observer, folders
from reconciler.observe.cluster import ListingObserver, WatchingObserver
from reconciler.observe.node import NodeObserver
from reconciler.state_store import CONFIG_MAP, ConfigMapStateStore
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.apiserver.reader import Reader
from vgpu.kube.kinds import LEASES
from vgpu.model.reasons import SourceError
from vgpu.program.kube_flags import connected
from vgpu.program.output import say
from vgpu.program.resource_names import settle_at_start

LEASE: Final = "vgpu-reconciler"
"""The Lease that the acting reconciler holds; a node's own is named after the node too."""

LEAST_MARGIN_SECONDS: Final = 5.0
"""Minimum tolerance for our clock, in seconds; clocks that NTP keeps differ by far less."""


class NoAudit:
    """The audit of a dry run: it records nothing."""

    def intent(self, plan: Plan, entry: Entry) -> None:
        """Record nothing."""

    def result(self, plan: Plan, result: ActionResult) -> None:
        """Record nothing."""

    def write(self, record: AuditRecord) -> None:
        """Record nothing."""


class LateObserver:
    """An observer that is created at its first use: a standby watches nothing."""

    def __init__(self, make: Callable[[], Observer], check: Callable[[], None]) -> None:
        """``make`` creates the observer; ``check`` raises after a view that cannot be judged."""
        self._make = make
        self._check = check
        self._made: Observer | None = None

    def view(self, now: float) -> ClusterView:
        """As :meth:`reconciler.observe.Observer.view`."""
        if self._made is None:
            self._made = self._make()
        view = self._made.view(now)
        self._check()
        return view

    def mapped(self, path: str) -> bool:
        """As :meth:`NodeObserver.mapped`; without an observer every folder counts as used."""
        return self._made.mapped(path) if isinstance(self._made, NodeObserver) else True

    def close(self) -> None:
        """Close the observer, if there is one."""
        if self._made is not None:
            self._made.close()


class Session(msgspec.Struct, frozen=True):
    """One API server, with its observer and the means to change it."""

    options: ReconcilerOptions
    cluster: ApiClient
    observer: LateObserver

    def store(self) -> ConfigMapStateStore:
        """The store of the reconciler's state; each node has its own."""
        return ConfigMapStateStore(
            self.cluster, self.options.state_namespace, self.own_name(CONFIG_MAP)
        )

    def own_name(self, name: str) -> str:
        """The name of an object of the whole cluster's reconciler, or of this node's."""
        return f"{name}-{self.options.node}" if self.options.scope is Scope.NODE else name

    def apply(
        self,
        audit: AuditSink,
        *,
        dry_run: bool = False,
        leads: Callable[[], bool] = lambda: True,
        stopping: threading.Event,
    ) -> Apply:
        """The function that applies a plan; arguments as of :class:`ApplyOptions`.

        Once ``stopping`` is set, no further action begins.
        """
        remover = None
        if self.options.scope is Scope.NODE:
            roots = self.options.places.shim_roots
            remover = Remover(roots, folders.identity, self.observer.mapped)
        return Applier(
            self.cluster,
            audit,
            ApplyOptions(
                remover=remover,
                deadline_seconds=self.options.settings.deadline,
                dry_run=dry_run,
                leads=leads,
                sleep=stopping.wait,
                stopping=stopping.is_set,
            ),
        ).apply


@contextmanager
def session(options: ReconcilerOptions, *, continuous: bool = False) -> Iterator[Session]:
    """A session; ``continuous`` watches instead of listing. Raises click.ClickException."""
    if continuous and options.scope is Scope.CLUSTER:
        settle_at_start(options.kubeconfig, options.context)
    with connected(
        options.kubeconfig, options.context, options.request_timeout, waits=continuous
    ) as cluster:
        observer = LateObserver(
            lambda: _observer(options, cluster, continuous=continuous),
            lambda: expect_right_clock(cluster, options.settings.policy.ages.clock_skew),
        )
        try:
            found = options if continuous else with_state_namespace(options, cluster)
            yield Session(found, cluster, observer)
        finally:
            observer.close()


def with_state_namespace(options: ReconcilerOptions, cluster: Reader) -> ReconcilerOptions:
    """The options with the namespace in which a running reconciler keeps its state.

    Its Lease is there. Where the namespace cannot be found, a line on standard error asks for it.
    """
    if not options.finds_state:
        return options
    try:
        pages = tuple(cluster.pages(LEASES, field_selector=f"metadata.name={LEASE}"))
    except (ClusterError, SourceError) as error:
        problem = str(error)
    else:
        namespaces = sorted({lease.namespace for page in pages for lease in page.objects})
        if len(namespaces) < 2:
            namespace = namespaces[0] if namespaces else options.state_namespace
            return msgspec.structs.replace(options, state_namespace=namespace)
        problem = f"there are several: {', '.join(namespaces)}"
    say(
        "the running reconciler's namespace is not known, so ages begin now; pass"
        f" --state-namespace ({problem})",
        err=True,
    )
    return options


def expect_right_clock(cluster: ApiClient, margin: float) -> None:
    """Raises ClusterError WrongClock if our clock differs by more: all ages would be wrong."""
    ahead = cluster.clock_ahead
    if abs(ahead) > max(margin, LEAST_MARGIN_SECONDS):
        where = "ahead of" if ahead > 0 else "behind"
        message = f"this machine's clock is {abs(ahead):.0f} s {where} that of {cluster.server}"
        raise ClusterError(0, "WrongClock", message)


def _observer(options: ReconcilerOptions, cluster: ApiClient, *, continuous: bool) -> Observer:
    if options.scope is Scope.CLUSTER:
        policy = options.settings.policy
        make = partial(WatchingObserver, queues=policy.queues) if continuous else ListingObserver
        return make(
            cluster,
            options.units,
            namespaces=policy.reads_labels,
            quotas=policy.reads_quotas,
            resource_claims=policy.reads_resource_claims,
        )
    driver = None
    if options.driver:
        from vgpu.sources.nvml import NvmlSource  # noqa: PLC0415  # ctypes and pynvml only if asked

        driver = NvmlSource()
    return NodeObserver(
        cluster,
        options.node,
        options.places,
        options.units,
        continuous=continuous,
        driver=driver,
        resource_claims=options.settings.policy.reads_resource_claims,
    )
