"""The routes of the scheduler: the verbs for kube-scheduler, and pages for people.

The verbs are also on the paths of the original schedulers. Every answer to kube-scheduler has
status 200, since it reads no other: an error is a field of it.

The pages are why a pod is pending, and gpushare's inspect.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from urllib.parse import unquote

from msgspec import structs

from scheduler.cache.scheduler_cache import SchedulerCache
from scheduler.compat.gpushare import inspect_page
from scheduler.filter.refusals import (
    RefusedNodes,
    largest_gpu,
    node_lines,
    quota_lines,
    rejection_text,
    request_text,
    summary_of,
)
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
from vgpu.kube.closed_nodes import closed_to
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.model.reasons import SourceError
from vgpu.model.units import MIB, count
from vgpu.placement.result import PlacementRefusal
from vgpu.schemes.system_titles import system_title
from vgpu.web.message import Handler, HttpRequest, HttpResponse, plain
from vgpu.web.routes import Route, Routes, restricted

log = logging.getLogger(__name__)

MOST_QUERY: Final = 32 * 1024 * 1024
"""Maximum size of a request for nodes, in bytes: a pod and 5,000 names are 300 KB. Whole nodes
(nodeCacheCapable false) are 5 to 20 KB each."""

MOST_BINDING: Final = 64 * 1024
"""Maximum size of a request to bind, in bytes."""

INSPECT: Final = "/gpushare-scheduler/inspect"

EXPLAIN: Final = "/explain"

VERSION: Final = "0.1.0"
"""The answer of gpushare's extender to ``/version``."""

GPUSHARE: Final = "gpushare"
"""The sharing system of the inspect page."""

Answer = Callable[[HttpRequest], tuple[bytes, bool]]
"""The body of the answer to a verb, and whether it is a success."""

_JSON: Final = (("Content-Type", "application/json"),)

_TEXT: Final = (("Content-Type", "text/plain"),)

_TOO_LONG: Final = (
    f"the request is longer than {MOST_QUERY // MIB} MiB: set nodeCacheCapable: true in the"
    " configuration of kube-scheduler"
)

_UNEXPECTED: Final = "vgpu scheduler: unexpected error; its log has the details"

_NOT_FOUND: Final = plain(404, "404 page not found")


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

    def filter_nodes(request: HttpRequest) -> tuple[bytes, bool]:
        query = read_query(request.body, extender.known_pod)
        answer = extender.filter(query)
        return write_filter(answer, query.sent), not answer.error

    def prioritize(request: HttpRequest) -> tuple[bytes, bool]:
        query = read_query(request.body, extender.known_pod)
        return write_scores(query.names, extender.prioritize(query)), True

    def preempt(request: HttpRequest) -> tuple[bytes, bool]:
        return write_victims(preemptor.preempt(read_preemption(request.body))), True

    def bind(request: HttpRequest) -> tuple[bytes, bool]:
        binding = read_binding(request.body)
        ref = PodRef(binding.pod_uid, binding.pod_namespace, binding.pod_name)
        error = extender.bind(ref, binding.node, request.client_left)
        return write_error(error), not error

    def query(
        name: Verb,
        answer: Answer,
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
    log.warning("request to preempt not answered", extra={"reason": error})
    return write_victims({})


def _handler(
    verb: Verb,
    answer: Answer,
    failure: Callable[[str], bytes],
    metrics: SchedulerMetrics,
) -> Handler:
    def handle(request: HttpRequest) -> HttpResponse:
        started = time.monotonic()
        is_success = False
        try:
            body, is_success = answer(request)
        except SourceError as error:
            body = failure(str(error))
        except Exception:
            log.exception("request not answered: unexpected error", extra={"verb": verb.value})
            body = failure(_UNEXPECTED)
        outcome = Outcome.SUCCESS if is_success else Outcome.ERROR
        metrics.note_request(verb, outcome, time.monotonic() - started)
        return HttpResponse(200, _JSON, body)

    return handle


def page_routes(cache: SchedulerCache) -> Routes:
    """The pages."""

    def inspect(request: HttpRequest) -> HttpResponse:
        nodes = cache.inspected(GPUSHARE)
        name = unquote(request.path.removeprefix(INSPECT).removeprefix("/"))
        if not name:
            return HttpResponse(200, _JSON, inspect_page(nodes))
        named = [node for node in nodes if node.node.name == name]
        error = "" if named else f'node "{name}" not found'
        return HttpResponse(200, _JSON, inspect_page(named, error))

    def explain(request: HttpRequest) -> HttpResponse:
        namespace, _, name = request.path.removeprefix(EXPLAIN + "/").partition("/")
        pod = cache.pod(unquote(namespace), unquote(name))
        if pod is None:
            return _NOT_FOUND
        return plain(200, "\n".join(_explained(cache, pod)))

    return {
        INSPECT: inspect,
        f"{INSPECT}/*": inspect,
        f"{EXPLAIN}/*": explain,
        "/version": lambda _: HttpResponse(200, _TEXT, VERSION.encode()),
    }


def _explained(cache: SchedulerCache, pod: Pod) -> Iterator[str]:
    title = f"pod {pod.ref.key}"
    demand = cache.demand_of(pod)
    if isinstance(demand, PlacementRefusal):
        yield f"{title}: {demand.text}"
        return
    scheme, requested = demand
    yield f"{title} ({system_title(scheme.row.name)}) requests {request_text(requested.requests)}"
    if pod.node:
        yield f"it is bound to node {pod.node}"
        return
    rejected = cache.rejected(pod.ref.uid)
    if rejected is not None:
        waits = time.time() - rejected.since
        yield (
            f"no node took it {count(rejected.rejections, 'time')} in {waits:.0f} s,"
            f" of {count(rejected.offered, 'node')} that kube-scheduler offered last"
        )
    quota = cache.quota_of(requested)
    if quota.quota:
        yield f"the quota of namespace {pod.ref.namespace}, with what bound pods use of it:"
        yield from quota_lines(quota.quota, quota.used)
    if quota.refusal is not None:
        yield quota.refusal.text
        return
    explained = cache.explain(scheme, requested)
    nodes = filter(None, map(cache.node, (name for name, _, _ in explained)))
    closed = closed_to(pod.tolerations, nodes)
    refused = {name: refusal for name, _, refusal in explained if refusal is not None}
    fitting = sum(name not in refused and name not in closed for name, _, _ in explained)
    yield f"now {fitting} of {count(len(explained), 'node with GPUs')} take it"
    if refused:
        largest = largest_gpu(scheme, requested, (view for _, view, _ in explained))
        summary = structs.replace(summary_of(RefusedNodes.of(refused)), largest_bytes=largest)
        yield rejection_text(summary, scheme, requested)
    for name, view, refusal in explained:
        why = closed[name].text if name in closed else ""
        shares_cores = scheme.row.shares_cores
        yield from node_lines(name, view, refusal, closed=why, shares_cores=shares_cores)
