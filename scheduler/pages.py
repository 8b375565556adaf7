"""The pages of the scheduler for people: why a pod is pending, and gpushare's inspect."""

import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from scheduler.cache.scheduler_cache import SchedulerCache
from scheduler.filter.refusals import (
    RefusedNodes,
    node_lines,
    quota_lines,
    rejection_text,
    request_text,
    summary_of,
)
from scheduler.gpushare_inspect import inspect_page
from vgpu.kube.closed_nodes import closed_to
from vgpu.model.objects import Pod
from vgpu.model.units import count
from vgpu.placement.result import PlacementRefusal
from vgpu.web.message import HttpRequest, HttpResponse, plain
from vgpu.web.routes import Routes

INSPECT: Final = "/gpushare-scheduler/inspect"
EXPLAIN: Final = "/explain"

VERSION: Final = "0.1.0"
"""The answer of gpushare's extender to ``/version``."""

GPUSHARE: Final = "gpushare"
"""The sharing system of the inspect page."""

_JSON: Final = (("Content-Type", "application/json"),)
_TEXT: Final = (("Content-Type", "text/plain"),)

_NOT_FOUND: Final = plain(404, "404 page not found")


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
    title = f"pod {pod.ref.namespace}/{pod.ref.name}"
    demand = cache.demand_of(pod)
    if isinstance(demand, PlacementRefusal):
        yield f"{title}: {demand.text}"
        return
    scheme, requested = demand
    yield f"{title} ({scheme.row.name}) requests {request_text(requested.requests)}"
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
        yield rejection_text(summary_of(RefusedNodes.of(refused)), requested)
    for name, view, refusal in explained:
        why = closed[name].text if name in closed else ""
        shares_cores = scheme.row.shares_cores
        yield from node_lines(name, view, refusal, closed=why, shares_cores=shares_cores)
