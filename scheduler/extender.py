"""The verbs of the extender: filter, prioritize and bind; preempt is :mod:`scheduler.preemption`.

A stale cache answers nothing: an error makes kube-scheduler try again, and no pod is placed by data
that may be wrong.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import structs

from scheduler.bind.binder import PodBinder
from scheduler.cache.scheduler_cache import SchedulerCache
from scheduler.events import RejectionEvents
from scheduler.filter.refusals import RefusedNodes, rejection_text, summary_of
from scheduler.metrics import SchedulerMetrics
from scheduler.reasons import BindError
from scheduler.wire import FilterAnswer, PlacementQuery
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.result import PlacementReason, PlacementRefusal

NOT_READY: Final = "vgpu scheduler is not ready: "


class Extender:
    """Answers kube-scheduler. Any thread may call every method."""

    def __init__(
        self,
        cache: SchedulerCache,
        binder: PodBinder,
        metrics: SchedulerMetrics,
        events: RejectionEvents,
        complaint: Callable[[], str],
    ) -> None:
        """``complaint`` returns why the cache cannot be used now, "" if it can."""
        self._cache = cache
        self._binder = binder
        self._metrics = metrics
        self._events = events
        self._complaint = complaint

    def known_pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name, as the last event showed it."""
        return self._cache.pod(namespace, name)

    def filter(self, query: PlacementQuery) -> FilterAnswer:
        """The nodes that take the pod, and why each of the others does not."""
        complaint = self._complaint()
        if complaint:
            return FilterAnswer(error=NOT_READY + complaint)
        demand = self._cache.demand_of(query.pod)
        if isinstance(demand, PlacementRefusal):
            if demand.reason is PlacementReason.NOTHING_REQUESTED:
                return FilterAnswer(query.names)
            self._metrics.note_rejection(demand.reason)
            text = demand.text
            self._events.rejected(query.pod.ref, lambda: text)
            return FilterAnswer(unresolvable=query.each(text))
        filtered = self._cache.filter(*demand, query.names)
        refused = filtered.refused
        if not filtered.nodes:
            reason = refused.most_frequent()
            if reason is not None:
                self._metrics.note_rejection(reason)
            explain = partial(self._explain, query.pod, *demand, refused)
            self._events.rejected(query.pod.ref, explain)
            return FilterAnswer((), *refused.texts(query.each))
        return FilterAnswer(filtered.nodes, *refused.texts())

    def _explain(
        self,
        pod: Pod,
        scheme: SchedulerScheme,
        demand: PodDemand,
        refused: RefusedNodes,
    ) -> str:
        """The event of a rejected pod.

        Every node that kube-scheduler offers has passed its own checks, so that its preemption
        finds nothing to preempt there, whatever holds the GPUs.
        """
        summary = summary_of(refused)
        if pod.preempts:
            outranked = self._cache.outranked(scheme, demand, refused.resolvable())
            summary = structs.replace(summary, outranked=outranked)
        return rejection_text(summary, demand)

    def prioritize(self, query: PlacementQuery) -> Sequence[int]:
        """The score of each node of the request; 0 where there is no preference."""
        demand = self._cache.demand_of(query.pod)
        if self._complaint() or isinstance(demand, PlacementRefusal):
            return (0,) * len(query.names)
        return self._cache.scores(*demand, query.names)

    def bind(self, pod: PodRef, node: str) -> str:
        """Bind the pod; returns why it is not bound, "" if it is."""
        complaint = self._complaint()
        if complaint:
            return NOT_READY + complaint
        try:
            self._binder.bind(pod, node)
        except BindError as error:
            self._metrics.note_bind_failure(error.reason)
            return str(error)
        return ""
