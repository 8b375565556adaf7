"""A device plugin that does nothing but answer, in this process, for any node of the bed.

    with DevicePlugin(node, "example.com/thing", ["a", "b"]) as plugin:
        plugin.set_health("a", healthy=False)

The kubelet reaches it by a socket in the node's own folder.
"""

import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, Self

import grpc

from tests.support.bed.client import Object
from tests.support.bed.node import Node
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.rpc import deviceplugin_pb2 as pb

FOLDER = "/var/lib/kubelet/device-plugins"

Answer = Callable[[Sequence[str]], Any]
"""Device IDs -> a ContainerAllocateResponse. The kubelet gets what it raises."""

Started = Callable[[Sequence[str]], None]
"""Is called for a start with these device IDs, and raises if it must not be."""


def in_the_environment(ids: Sequence[str]) -> Any:
    """An answer that shows the IDs as THINGS=..."""
    return pb.ContainerAllocateResponse(envs={"THINGS": ",".join(sorted(ids))})


class DevicePlugin:
    """One resource of one node; registered while the block lasts."""

    def __init__(
        self,
        node: Node,
        resource: str,
        ids: Iterable[str],
        answer: Answer = in_the_environment,
        started: Started | None = None,
    ) -> None:
        """Without ``started`` the kubelet does not ask before a start (PreStartContainer)."""
        self.node, self.resource, self._answer, self._started = node, resource, answer, started
        self.allocated: list[tuple[str, ...]] = []
        """The IDs of every Allocate, in order."""
        self._healthy = dict.fromkeys(ids, True)
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None
        self.register()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def register(self) -> None:
        """Serve on a new socket and notify the kubelet, as soon as one listens."""
        self.stop()
        folder = self.node.path(FOLDER)
        kubelet = folder / "kubelet.sock"
        wait_until(lambda: _accepts(str(kubelet)), "the kubelet takes plugins", failures=(OSError,))
        endpoint = f"bed-{secrets.token_hex(4)}.sock"
        self.socket = folder / endpoint
        self._stopping, self._listened = False, threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()
        with grpc.insecure_channel(f"unix:{kubelet}") as channel:
            channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=pb.RegisterRequest.SerializeToString,
                response_deserializer=pb.Empty.FromString,
            )(
                pb.RegisterRequest(
                    version="v1beta1", endpoint=endpoint, resource_name=self.resource
                ),
                timeout=WAIT_SECONDS,
            )
        # Until then the Node may say what was offered before, and pods be refused.
        wait_until(self._listened.is_set, f"{self.resource}: somebody reads the list")

    def stop(self) -> None:
        """Serve no more: to the kubelet a plugin that died."""
        if self._server:
            with self._changed:
                self._stopping = True
                self._changed.notify_all()
            self._server.stop(None).wait()
            self._server = None

    def set_health(self, device: str, *, healthy: bool) -> None:
        """Change a device's health, and notify the kubelet."""
        with self._changed:
            self._healthy[device] = healthy
            self._changed.notify_all()

    def wait_counted(self, capacity: int, allocatable: int | None = None) -> Object:
        """The Node, as soon as it says so; without a number all that there are are allocatable."""
        expected = [str(capacity), str(capacity if allocatable is None else allocatable)]

        def counts(node: Object) -> bool:
            status = node["status"]
            return expected == [status[of].get(self.resource) for of in ("capacity", "allocatable")]

        node = f"/api/v1/nodes/{self.node.name}"
        return self.node.cluster.client.wait_for(node, counts, f"{self.resource} {expected}")

    def _handlers(self) -> grpc.GenericRpcHandler:
        def handler(kind: Callable[..., Any], call: Callable[..., Any], request: Any) -> Any:
            return kind(
                call,
                request_deserializer=request.FromString,
                response_serializer=lambda reply: reply.SerializeToString(),
            )

        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        calls = {
            "GetDevicePluginOptions": handler(unary, self._options, pb.Empty),
            "ListAndWatch": handler(stream, self._list_and_watch, pb.Empty),
            "Allocate": handler(unary, self._allocate, pb.AllocateRequest),
            "PreStartContainer": handler(unary, self._prestart, pb.PreStartContainerRequest),
        }
        return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", calls)

    def _options(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        return pb.DevicePluginOptions(pre_start_required=self._started is not None)

    def _list_and_watch(self, _request: Any, _context: grpc.ServicerContext) -> Iterator[Any]:
        listened = self._listened
        while not self._stopping:
            with self._changed:
                listed = dict(self._healthy)
            yield pb.ListAndWatchResponse(
                devices=[
                    pb.Device(ID=device, health="Healthy" if healthy else "Unhealthy")
                    for device, healthy in listed.items()
                ]
            )
            listened.set()
            with self._changed:
                self._changed.wait_for(lambda sent=listed: self._stopping or sent != self._healthy)

    def _allocate(self, request: Any, _context: grpc.ServicerContext) -> Any:
        asked = [tuple(each.devices_ids) for each in request.container_requests]
        self.allocated += asked
        return pb.AllocateResponse(container_responses=map(self._answer, asked))

    def _prestart(self, request: Any, _context: grpc.ServicerContext) -> Any:
        if self._started is not None:
            self._started(request.devices_ids)
        return pb.PreStartContainerResponse()


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        return True
