"""The gRPC service ``display.GPUDisplay`` on a unix socket, as gpu-manager serves it.

Needs the extra ``vgpu[pod-resources]``. A socket on which another program still answers is
not touched; a stale one is replaced. Only its owner may connect.
"""

import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import msgspec
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import ParseDict

from vgpu.io.unix_socket import SocketError, is_served, require_short
from vgpu.model.reasons import SourceError
from vgpu.rpc import display_pb2 as pb
from vgpucli.topology.messages import DisplayState, Message, graph, usages, version

SOCKET = "/var/run/gpu-manager.sock"
"""gpu-manager's path of the socket."""

SERVICE = "display.GPUDisplay"

_MODE = 0o600
_WORKERS = 2

Answer = pb.GraphResponse | pb.UsageResponse | pb.VersionResponse

_METHODS: dict[str, tuple[Callable[[DisplayState], Message], Callable[[], Answer]]] = {
    "PrintGraph": (graph, pb.GraphResponse),
    "PrintUsages": (usages, pb.UsageResponse),
    "Version": (version, pb.VersionResponse),
}


class DisplayServer:
    """Serves the display on ``path`` between :meth:`start` and :meth:`stop`."""

    def __init__(self, state: Callable[[], DisplayState], path: str = SOCKET) -> None:
        """``state`` is asked at each call, from several threads; it may raise SourceError."""
        self._state = state
        self._path = path
        self._server = grpc.server(ThreadPoolExecutor(_WORKERS, thread_name_prefix="display"))
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._method(make, answer),
                request_deserializer=Empty.FromString,
                response_serializer=_bytes,
            )
            for name, (make, answer) in _METHODS.items()
        }
        service = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._server.add_generic_rpc_handlers((service,))

    def start(self) -> None:
        """Serve in the background. Raises SocketError."""
        _require_free(self._path)
        try:
            self._server.add_insecure_port(f"unix:{self._path}")
            Path(self._path).chmod(_MODE)  # nobody is served before start()
        except (RuntimeError, OSError) as error:
            raise SocketError(self._path, str(error)) from error
        self._server.start()

    def stop(self, grace: float = 1.0) -> None:
        """Take no more calls, end those under way within ``grace`` seconds, remove the socket."""
        self._server.stop(grace).wait()

    def _method(
        self, make: Callable[[DisplayState], Message], answer: Callable[[], Answer]
    ) -> Callable[[Empty, grpc.ServicerContext], Answer]:
        def serve(_request: Empty, context: grpc.ServicerContext) -> Answer:
            try:
                message = make(self._state())
            except SourceError as error:
                context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            return ParseDict(msgspec.to_builtins(message), answer())

        return serve


def _bytes(answer: Answer) -> bytes:
    return answer.SerializeToString()


def _require_free(path: str) -> None:
    """Check the path: gRPC would take it from a server that still runs."""
    require_short(path)
    try:
        mode = Path(path).lstat().st_mode
    except FileNotFoundError:
        if not Path(path).parent.is_dir():
            raise SocketError(path, "its folder does not exist") from None
        return
    except OSError as error:
        raise SocketError(path, error.strerror or str(error)) from error
    if not stat.S_ISSOCK(mode):
        raise SocketError(path, "something that is no socket is in its place")
    try:
        served = is_served(path)
    except OSError as error:
        raise SocketError(path, f"its owner cannot be asked: {error.strerror}") from error
    if served:
        raise SocketError(path, "another server answers there; is gpu-manager running?")
