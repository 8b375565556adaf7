"""The kubelet's gRPC service ``v1beta1.DevicePlugin`` for one resource, on a unix socket.

Promises: containers that wait for their PreStartContainer delay neither Allocate nor the list; only
the socket's owner may call; a list is sent only when it has changed.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import msgspec

from deviceplugin.kubelet import responses
from deviceplugin.ports import Allocator
from deviceplugin.reasons import FINAL, BindRefusal, BindRefused
from vgpu.io.unix_socket import SocketError, require_short
from vgpu.model.plugin_messages import CHECK_FAILED
from vgpu.rpc import deviceplugin_pb2 as pb

log = logging.getLogger(__name__)

SERVICE: Final = "v1beta1.DevicePlugin"

PRESTARTS: Final = 128
"""Maximum number of containers that wait at the same time; the kubelet retries the others."""

WATCHERS: Final = 8
"""Maximum number of readers of the list; the kubelet is one."""

_OTHERS: Final = 8
"""Threads for other calls; the kubelet admits one pod at a time, so it sends one Allocate at a
time."""

THREADS: Final = PRESTARTS + WATCHERS + _OTHERS
"""Maximum number of threads; the pool starts a thread only when it needs one."""

_MODE: Final = 0o600

_MOST_BYTES: Final = 1500
"""Maximum size in UTF-8 of a refusal's text. It is sent in a header, each byte as up to three; gRPC
takes 8 KiB."""

_FOR_A_NEW_POD: Final = FINAL | {
    BindRefusal.NO_CLAIM,
    BindRefusal.NO_ROOM,
    BindRefusal.UNKNOWN_DEVICE,
    BindRefusal.UNHEALTHY_DEVICE,
}

_Answer = TypeVar("_Answer")


class ListReaders(msgspec.Struct, frozen=True):
    """The readers of the list: their number now, whether it was ever read, since when.

    ``since`` is in monotonic seconds.
    """

    count: int
    was_read: bool
    since: float


class Endpoint:
    """Serves one resource between :meth:`start` and :meth:`stop`."""

    def __init__(
        self,
        resource: str,
        path: str,
        allocator: Allocator,
        offered: bytes,
        *,
        binding: bool,
        cdi: bool,
    ) -> None:
        """``offered`` is the encoded list; ``binding``: whether to ask for PreStartContainer.

        ``cdi``: how answers carry their name, see :mod:`deviceplugin.kubelet.responses`.
        """
        self.resource = resource
        self.path = path
        self._allocator = allocator
        self._binding = binding
        self._cdi = cdi
        self._offered = offered
        self._changed = threading.Condition()
        self._readers = ListReaders(0, False, time.monotonic())
        self._stopping = False
        self._prestarts = threading.BoundedSemaphore(PRESTARTS)
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix=resource.rpartition("/")[2])
        self._server = grpc.server(threads)
        self._server.add_generic_rpc_handlers((self._handlers(),))

    def start(self) -> None:
        """Serve in the background. Raises SocketError."""
        require_short(self.path)
        try:
            self._server.add_insecure_port(f"unix:{self.path}")
            Path(self.path).chmod(_MODE)  # no client is served before start()
        except (RuntimeError, OSError) as error:
            raise SocketError(self.path, str(error)) from error
        self._server.start()

    def offer(self, offered: bytes) -> None:
        """Send this list from now on."""
        with self._changed:
            if offered != self._offered:
                self._offered = offered
                self._changed.notify_all()

    def stop(self, grace: float = 1.0) -> threading.Event:
        """Take no more calls, end the lists, and other calls under way within ``grace`` seconds.

        The socket is gone when the event is set.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        return self._server.stop(grace)

    @property
    def readers(self) -> ListReaders:
        """The readers of the list."""
        return self._readers

    # ------------------------------------------------------------ the calls

    def _handlers(self) -> grpc.GenericRpcHandler:
        unary = grpc.unary_unary_rpc_method_handler
        calls: Mapping[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetDevicePluginOptions": unary(
                self._options, pb.Empty.FromString, pb.DevicePluginOptions.SerializeToString
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._list_and_watch, pb.Empty.FromString
            ),
            "Allocate": unary(
                self._allocate, pb.AllocateRequest.FromString, pb.AllocateResponse.SerializeToString
            ),
            "PreStartContainer": unary(
                self._prestart,
                pb.PreStartContainerRequest.FromString,
                pb.PreStartContainerResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, calls)

    def _options(
        self, _request: pb.Empty, _context: grpc.ServicerContext
    ) -> pb.DevicePluginOptions:
        return options(binding=self._binding)

    def _list_and_watch(self, _request: pb.Empty, context: grpc.ServicerContext) -> Iterator[bytes]:
        if not self._readers_changed(1):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHERS} read the list already")
        if not context.add_callback(lambda: self._readers_changed(-1)):
            self._readers_changed(-1)
            return
        sent: bytes | None = None
        while (offered := self._next(sent, context)) is not None:
            yield offered
            sent = offered

    def _next(self, sent: bytes | None, context: grpc.ServicerContext) -> bytes | None:
        """Wait for a list other than the one that was sent; None if the lists have ended."""

        def due() -> bool:
            return self._stopping or not context.is_active() or self._offered is not sent

        with self._changed:
            self._changed.wait_for(due)
            return None if self._stopping or not context.is_active() else self._offered

    def _readers_changed(self, by: int) -> bool:
        """Count one reader more or less; False if there are too many."""
        with self._changed:
            readers = self._readers.count + by
            if readers > WATCHERS:
                return False
            self._readers = ListReaders(readers, True, time.monotonic())
            self._changed.notify_all()
            return True

    def _allocate(
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        def answered() -> pb.AllocateResponse:
            named = [
                self._allocator.allocate(self.resource, frozenset(each.devices_ids))
                for each in request.container_requests
            ]
            return pb.AllocateResponse(
                container_responses=[
                    responses.answer(name, edits, cdi=self._cdi) for name, edits in named
                ]
            )

        return self._guarded(answered, context, allocate_text)

    def _prestart(
        self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> pb.PreStartContainerResponse:
        def answered() -> pb.PreStartContainerResponse:
            self._allocator.prestart(self.resource, frozenset(request.devices_ids))
            return pb.PreStartContainerResponse()

        if not self._prestarts.acquire(blocking=False):
            text = f"{PRESTARTS} containers wait for their devices already"
            context.abort(grpc.StatusCode.UNAVAILABLE, text)
        try:
            return self._guarded(answered, context, prestart_text)
        finally:
            self._prestarts.release()

    def _guarded(
        self,
        call: Callable[[], _Answer],
        context: grpc.ServicerContext,
        text: Callable[[BindRefused], str],
    ) -> _Answer:
        """The call's answer, or its refusal as a status."""
        try:
            answer = call()
        except BindRefused as error:
            context.abort(status_of(error), text(error))
        except Exception:
            log.exception("a call of the kubelet failed", extra={"resource": self.resource})
            context.abort(grpc.StatusCode.INTERNAL, BindRefusal.INTERNAL.explanation)
        return answer


def options(*, binding: bool) -> pb.DevicePluginOptions:
    """The calls that the kubelet is to make for a resource besides Allocate."""
    return pb.DevicePluginOptions(pre_start_required=binding)


def status_of(error: BindRefused) -> grpc.StatusCode:
    """The status code; UNAVAILABLE if waiting may resolve the refusal."""
    lasting = error.final or error.why is BindRefusal.NO_CANDIDATE
    return grpc.StatusCode.FAILED_PRECONDITION if lasting else grpc.StatusCode.UNAVAILABLE


def allocate_text(error: BindRefused) -> str:
    """The refusal and its reason code, as the pod's status shows them."""
    text = str(error).encode(errors="replace")[:_MOST_BYTES].decode(errors="ignore")
    return f"{text} ({error.why})"


def prestart_text(error: BindRefused) -> str:
    """The same text, marked for the reconciler if only a new pod can ask again."""
    mark = f"{CHECK_FAILED}: " if error.why in _FOR_A_NEW_POD else ""
    return mark + allocate_text(error)
