"""The routes of the scheduler: the extender's verbs, also on the paths of the original schedulers.

Every answer to kube-scheduler has status 200, since it reads no other: an error is a field of it.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from scheduler.metrics import Outcome, SchedulerMetrics, Verb
from scheduler.verbs.extender import Extender
from scheduler.verbs.preemption import Preemptor
from scheduler.verbs.wire import (
    FilterAnswer,
    read_binding,
    read_preemption,
    read_query,
    write_error,
    write_filter,
    write_scores,
    write_victims,
)
from vgpu.model.names import PodRef
from vgpu.model.reasons import SourceError
from vgpu.model.units import MIB
from vgpu.web.message import Handler, HttpRequest, HttpResponse
from vgpu.web.routes import Route, Routes, restricted

log = logging.getLogger(__name__)

MOST_QUERY: Final = 32 * 1024 * 1024
"""Maximum size of a request for nodes, in bytes: a pod and 5,000 names are 300 KB. Whole nodes
(nodeCacheCapable false) are 5 to 20 KB each."""

MOST_BINDING: Final = 64 * 1024
"""Maximum size of a request to bind, in bytes."""

_JSON: Final = (("Content-Type", "application/json"),)

_TOO_LONG: Final = (
    f"the request is longer than {MOST_QUERY // MIB} MiB: set nodeCacheCapable: true in the"
    " configuration of kube-scheduler"
)

_DEFECT: Final = "vgpu scheduler failed on a defect; its log has the details"


def extender_routes(
    extender: Extender,
    preemptor: Preemptor,
    metrics: SchedulerMetrics,
    client_sans: Iterable[str] = (),
) -> Routes:
    """The verbs, on our paths and on the original schedulers' paths.

    Only a client whose certificate has one of ``client_sans`` may call them; without any, each
    client of the port.
    """

    def filter_nodes(body: bytes) -> tuple[bytes, bool]:
        query = read_query(body, extender.known_pod)
        answer = extender.filter(query)
        return write_filter(answer, query.sent), not answer.error

    def prioritize(body: bytes) -> tuple[bytes, bool]:
        query = read_query(body, extender.known_pod)
        return write_scores(query.names, extender.prioritize(query)), True

    def preempt(body: bytes) -> tuple[bytes, bool]:
        return write_victims(preemptor.preempt(read_preemption(body))), True

    def bind(body: bytes) -> tuple[bytes, bool]:
        binding = read_binding(body)
        ref = PodRef(binding.pod_uid, binding.pod_namespace, binding.pod_name)
        error = extender.bind(ref, binding.node)
        return write_error(error), not error

    def query(
        name: Verb,
        answer: Callable[[bytes], tuple[bytes, bool]],
        failure: Callable[[str], bytes],
        too_long: bytes,
    ) -> Route:
        handler = _handler(name, answer, failure, metrics)
        return Route(handler, ("POST",), MOST_QUERY, HttpResponse(200, _JSON, too_long))

    def no_nodes(error: str) -> bytes:
        return write_filter(FilterAnswer(error=error))

    filtering = query(Verb.FILTER, filter_nodes, no_nodes, no_nodes(_TOO_LONG))
    scoring = query(Verb.PRIORITIZE, prioritize, lambda _: write_scores(), write_scores())
    preempting = query(Verb.PREEMPT, preempt, _no_victims, write_victims({}))
    binding = Route(_handler(Verb.BIND, bind, write_error, metrics), ("POST",), MOST_BINDING)
    verbs: Routes = {
        "/filter": filtering,
        "/prioritize": scoring,
        "/preempt": preempting,
        "/bind": binding,
        "/gpushare-scheduler/filter": filtering,
        "/gpushare-scheduler/bind": binding,
        "/scheduler/predicates": filtering,
    }
    return restricted(verbs, client_sans)


def _no_victims(error: str) -> bytes:
    """No node is a candidate: the answer has no field for an error."""
    log.warning("no preemption: %s", error)
    return write_victims({})


def _handler(
    verb: Verb,
    answer: Callable[[bytes], tuple[bytes, bool]],
    failure: Callable[[str], bytes],
    metrics: SchedulerMetrics,
) -> Handler:
    def handle(request: HttpRequest) -> HttpResponse:
        started = time.monotonic()
        is_success = False
        try:
            body, is_success = answer(request.body)
        except SourceError as error:
            body = failure(str(error))
        except Exception:
            log.exception("%s failed on a defect", verb)
            body = failure(_DEFECT)
        outcome = Outcome.SUCCESS if is_success else Outcome.ERROR
        metrics.note_request(verb, outcome, time.monotonic() - started)
        return HttpResponse(200, _JSON, body)

    return handle
