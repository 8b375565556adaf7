"""The verbs filter, prioritize and bind, and the events of rejected pods.

A stale cache answers nothing: an error makes kube-scheduler try again, and no pod is placed by data
that may be wrong.

A rejected pod has one event for each text, and not more than one a minute.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import structs

from scheduler.bind.binder import PodBinder
from scheduler.cache.scheduler_cache import SchedulerCache
from scheduler.filter.refusals import RefusedNodes, rejection_text, summary_of
from scheduler.metrics import SchedulerMetrics
from scheduler.reasons import NOT_READY, BindError
from scheduler.verbs.wire import FilterAnswer, PlacementQuery
from vgpu.apiserver.event_recorder import EventRecorder, EventWriter
from vgpu.kube.events import EventNote, NoteType, event_note
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.result import PlacementReason, PlacementRefusal

COMPONENT: Final = "vgpu-scheduler"

NOT_PLACED: Final = "VgpuNotPlaced"
"""The reason of the events."""

INTERVAL_SECONDS: Final = 60.0
"""Minimum time between two texts of one pod, and so between two events, in seconds."""

MOST_WAITING: Final = 1000
"""Maximum number of events that wait to be written."""

MOST_REMEMBERED: Final = 20_000
"""Maximum number of pods whose last event is remembered."""


class RejectionEvents:
    """Writes the events on a thread of its own. Any thread may call :meth:`rejected`."""

    def __init__(
        self, write: Callable[[EventNote], None], clock: Callable[[], float] = time.time
    ) -> None:
        """``clock`` returns unix seconds."""
        self._clock = clock
        self._writer = EventWriter(EventRecorder(MOST_WAITING), write)
        self._lock = threading.Lock()
        self._last: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def rejected(self, pod: PodRef, explain: Callable[[], str]) -> None:
        """Report why no node takes a pod, unless that was reported last; never waits.

        ``explain`` is called once in :data:`INTERVAL_SECONDS` for each pod, however often
        kube-scheduler tries it.
        """
        now = self._clock()
        with self._lock:
            last_text, recorded_at = self._last.get(pod.uid, ("", 0.0))
        if now - recorded_at < INTERVAL_SECONDS:
            return
        text = explain()
        with self._lock:
            self._last[pod.uid] = text, now
            self._last.move_to_end(pod.uid)
            if len(self._last) > MOST_REMEMBERED:
                self._last.popitem(last=False)
            if text == last_text:
                return
            self._writer.record(
                event_note(pod, NOT_PLACED, text, now, component=COMPONENT, type_=NoteType.WARNING)
            )

    def finish(self, seconds: float) -> None:
        """Write the events that wait, for at most this time, in seconds."""
        self._writer.finish(seconds, lambda: False)


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
                return self._filter_others(query)
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

    def _filter_others(self, query: PlacementQuery) -> FilterAnswer:
        """The nodes that take a pod that requests nothing of ours: all but those of HAMi's."""
        refusal, refused = self._cache.unserved(query.pod, query.names)
        if refusal is None or not refused:
            return FilterAnswer(query.names)
        text = refusal.text
        nodes = [name for name in query.names if name not in refused]
        if not nodes:
            self._metrics.note_rejection(refusal.reason)
            self._events.rejected(query.pod.ref, lambda: text)
        return FilterAnswer(nodes, unresolvable=dict.fromkeys(refused, text))

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
        return rejection_text(summary, scheme, demand)

    def prioritize(self, query: PlacementQuery) -> Sequence[int]:
        """The score of each node of the request; 0 where there is no preference."""
        demand = self._cache.demand_of(query.pod)
        if self._complaint() or isinstance(demand, PlacementRefusal):
            return (0,) * len(query.names)
        return self._cache.scores(*demand, query.names)

    def bind(self, pod: PodRef, node: str, client_left: Callable[[], bool] = lambda: False) -> str:
        """Bind the pod; returns why it is not bound, "" if it is.

        ``client_left`` is whether kube-scheduler waits no more.
        """
        complaint = self._complaint()
        if complaint:
            return NOT_READY + complaint
        try:
            self._binder.bind(pod, node, client_left)
        except BindError as error:
            self._metrics.note_bind_failure(error.reason)
            return str(error)
        return ""
