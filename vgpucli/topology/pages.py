"""gpu-manager's ``/graph``, ``/usage`` and ``/version``: the display over HTTP.

``WebServer(display.pages.routes(state), ["localhost:5678"])`` serves them as gpu-manager did
(``--query-addr``, ``--query-port``); any other server of ours may carry the same routes. A source
that fails is a 503 with the body of the original's gateway.
"""

from collections.abc import Callable

import msgspec

from vgpu.model.reasons import SourceError
from vgpu.web.message import Handler, HttpRequest, HttpResponse
from vgpucli.topology.messages import DisplayState, Message, graph, usages, version

UNAVAILABLE = 14
"""gRPC's status code, which the gateway writes into the body."""

_PATHS: dict[str, Callable[[DisplayState], Message]] = {
    "/graph": graph,
    "/usage": usages,
    "/version": version,
}


def routes(state: Callable[[], DisplayState]) -> dict[str, Handler]:
    """Path -> handler; ``state`` is asked at each request, on many threads at once.

    It may raise SourceError.
    """
    return {path: _handler(answer, state) for path, answer in _PATHS.items()}


def _handler(
    answer: Callable[[DisplayState], Message], state: Callable[[], DisplayState]
) -> Handler:
    def handle(_request: HttpRequest) -> HttpResponse:
        try:
            return _json(200, answer(state()))
        except SourceError as error:
            message = str(error)
            return _json(503, {"error": message, "code": UNAVAILABLE, "message": message})

    return handle


def _json(status: int, value: object) -> HttpResponse:
    return HttpResponse(status, (("Content-Type", "application/json"),), msgspec.json.encode(value))
