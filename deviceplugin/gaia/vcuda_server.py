"""The sockets on which gpu-manager's library registers the container that it is loaded in.

Each pod has a socket, ``vcuda.sock`` in the pod's own folder: the socket identifies the pod, not
data of its tenant. Promises: one pod's calls, however many, cost no more than a few looks a second
at that pod; a library that dials at any time finds a socket, or none before the pod has any share;
nothing in a request becomes part of a path.

One event loop on one thread serves all sockets (a ``grpc.Server`` for each pod would be a thread
for each that wakes up every second), and another thread looks at the pods.
"""

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import grpc
import grpc.aio
import msgspec

from deviceplugin.gaia.limits_writer import PodFiles
from vgpu.io.unix_socket import SocketError, require_short
from vgpu.model.reasons import SourceError
from vgpu.rpc import vcuda_pb2 as pb

log = logging.getLogger(__name__)

SERVICE: Final = "vcuda.VCUDAService"

PATIENCE_SECONDS: Final = 20.0
"""Maximum time that a call waits for its container, in seconds; a container whose call fails
ends."""

PAUSE_SECONDS: Final = 0.1
"""Interval between two looks at one pod, in seconds."""

_ANSWER_SECONDS: Final = 10.0
"""Maximum time to wait for work on the loop, in seconds; far more than it takes."""

_MODE: Final = 0o666
"""Mode of the sockets: the containers of its pod, which can reach it, may connect as any user."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 8192),
    ("grpc.max_allowed_incoming_connections", 128),  # processes of a pod that start at once
    ("grpc.max_concurrent_streams", 128),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 30_000),  # the library's client asks once and goes
    ("grpc.so_reuseport", 0),
)
_MOST_CALLS: Final = 512
_MOST_TEXT: Final = 64

_ID: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")

T = TypeVar("T")
Asks = Callable[[str, frozenset[str]], PodFiles]
"""Looks at a pod, see :meth:`deviceplugin.gaia.limits_writer.LimitsWriter.pod_files`."""


class VcudaRefusal(Exception):  # noqa: N818  # it is an answer, not a failure of ours
    """Why a call is refused.

    Attributes:
        code: the status code of gRPC.
    """

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class ContainerQuery(msgspec.Struct, frozen=True):
    """Which container a call is about: by its ID, or else by its name."""

    container: str
    by_name: bool


def query_of(request: pb.VDeviceRequest, uid: str) -> ContainerQuery:
    """The query of a call on the pod's socket. Raises VcudaRefusal if it cannot be of that pod."""
    if request.pod_uid != uid:
        text = f"this is the socket of pod {uid}, not of {request.pod_uid[:_MOST_TEXT]!r}"
        raise VcudaRefusal(grpc.StatusCode.PERMISSION_DENIED, text)
    by_name = bool(request.container_name)  # gpu-manager also looks at the name first
    container = request.container_name if by_name else request.container_id
    if not (_NAME if by_name else _ID).fullmatch(container):
        text = f"no container is called {container[:_MOST_TEXT]!r}"
        raise VcudaRefusal(grpc.StatusCode.INVALID_ARGUMENT, text)
    return ContainerQuery(container, by_name)


def is_answered(asks: ContainerQuery, find_files: PodFiles) -> bool:
    """Whether the container's files are there; False while they may still come. Raises
    VcudaRefusal.
    """
    if asks.container in (find_files.by_name if asks.by_name else find_files.served):
        return True
    if asks.by_name:  # any waiting container may be it, or the look began before the call
        coming = bool(find_files.waiting) or asks.container in find_files.served.values()
    else:
        coming = asks.container in find_files.waiting
    if coming:
        return False
    text = f"{asks.container} is no running container of this pod that has a share of a GPU"
    raise VcudaRefusal(grpc.StatusCode.NOT_FOUND, text)


class _Pod:
    """One pod's calls. Used by the loop's thread alone."""

    def __init__(self, uid: str, find_files: Asks, workers: ThreadPoolExecutor) -> None:
        self.uid = uid
        self._look = find_files
        self._workers = workers
        self._by_name: frozenset[str] = frozenset()  # containers with files under their name
        self._asked: set[str] = set()  # containers that get such files with the next look
        self._looking: asyncio.Task[None] | None = None
        self._begun_at = float("-inf")
        self._result: PodFiles | VcudaRefusal = PodFiles()

    async def register(
        self, request: pb.VDeviceRequest, context: grpc.aio.ServicerContext
    ) -> pb.VDeviceResponse:
        """The only call of the service."""
        try:
            asks = query_of(request, self.uid)
            await self._served(asks)
        except VcudaRefusal as refusal:
            told = {"uid": self.uid, "detail": str(refusal)}
            log.debug("a container could not be registered", extra=told)
            await context.abort(refusal.code, str(refusal))
        return pb.VDeviceResponse()

    async def _served(self, asks: ContainerQuery) -> None:
        """Wait until the container's files are written. Raises VcudaRefusal."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_SECONDS
        while not is_answered(asks, await self._fresh(asks)):
            if loop.time() >= until:
                text = f"the kubelet's data does not identify container {asks.container}"
                raise VcudaRefusal(grpc.StatusCode.UNAVAILABLE, text)

    async def _fresh(self, asks: ContainerQuery) -> PodFiles:
        """The result of a look that begins after now; all calls that wait share it.

        Raises VcudaRefusal.
        """
        asked_at = asyncio.get_running_loop().time()
        if asks.by_name:
            self._asked.add(asks.container)
        while self._begun_at < asked_at:
            if self._looking is None:
                self._looking = asyncio.create_task(self._look_again())
            await asyncio.shield(self._looking)  # other clients wait for it when one leaves
        if isinstance(self._result, VcudaRefusal):
            raise self._result
        return self._result

    async def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._begun_at + PAUSE_SECONDS - loop.time()))
        begun_at = loop.time()
        names = self._by_name | self._asked
        self._asked.clear()
        try:
            find_files = await loop.run_in_executor(self._workers, self._look, self.uid, names)
        except (SourceError, OSError) as error:
            self._result = VcudaRefusal(grpc.StatusCode.UNAVAILABLE, str(error))
        except Exception:
            log.exception("unexpected error while registering a container")
            self._result = VcudaRefusal(grpc.StatusCode.INTERNAL, "a defect in the device plugin")
        else:
            self._result = find_files
            self._by_name = find_files.by_name
        finally:
            self._begun_at = begun_at
            self._looking = None


class VcudaServers:
    """The sockets of all pods. Any thread may use it."""

    def __init__(self, find_files: Asks) -> None:
        """``find_files`` is called on a thread of its own; it may raise SourceError and OSError."""
        self._look = find_files
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="vcuda", daemon=True)
        self._workers = ThreadPoolExecutor(1, thread_name_prefix="vcuda-look")
        self._changing = threading.Lock()
        self._serving: dict[str, tuple[Path, grpc.aio.Server]] = {}

    def start(self) -> None:
        """Begin; there is no socket yet."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; the files stay, since they may be the next plugin's by now."""
        with self._changing:
            for _, server in self._serving.values():
                self._do(server.stop(None))
            self._serving.clear()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ANSWER_SECONDS)
        self._workers.shutdown(cancel_futures=True)

    def open(self, uid: str, path: str) -> None:
        """Serve the pod on this socket, in place of any old one; the pod has a folder.

        Nothing changes for a pod that is served there already. Raises OSError.
        """
        try:
            require_short(path)
        except SocketError as error:
            raise OSError(str(error)) from error
        with self._changing:
            before = self._serving.get(uid)
            if before and before[0] == Path(path) and before[0].is_socket():
                return
            fresh = _beside(Path(path))
            fresh.unlink(missing_ok=True)
            server = self._do(self._serve(uid, fresh))
            try:
                fresh.chmod(_MODE)
                fresh.rename(path)  # a client that dials finds the old socket or this one
            except OSError:
                self._do(server.stop(None))
                raise
            self._serving[uid] = (Path(path), server)
            if before:
                self._do(before[1].stop(None))

    def close(self, uid: str) -> None:
        """Stop serving the pod. Raises OSError."""
        with self._changing:
            path, server = self._serving.pop(uid, (None, None))
            if path and server:
                path.unlink(missing_ok=True)
                self._do(server.stop(None))

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _do(self, work: Coroutine[object, object, T]) -> T:
        """The work's result. Raises what the work raises, and TimeoutError, which is an OSError."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_ANSWER_SECONDS)

    async def _serve(self, uid: str, path: Path) -> grpc.aio.Server:
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_MOST_CALLS)
        method = grpc.unary_unary_rpc_method_handler(
            _Pod(uid, self._look, self._workers).register,
            request_deserializer=pb.VDeviceRequest.FromString,
            response_serializer=_bytes,
        )
        handlers = grpc.method_handlers_generic_handler(SERVICE, {"RegisterVDevice": method})
        server.add_generic_rpc_handlers((handlers,))
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise OSError(str(error)) from error
        await server.start()
        return server


def _bytes(answer: pb.VDeviceResponse) -> bytes:
    return answer.SerializeToString()


def _beside(path: Path) -> Path:
    """Another name in the same folder, no longer than this one: sockets' paths are short."""
    return path.with_name(f".{path.name[1:-1]}~")
