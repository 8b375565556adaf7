"""A kubelet's side of the device-plugin API, as far as discovery and health need it."""

import threading
from concurrent import futures
from pathlib import Path
from typing import Any, Self

import grpc

from vgpu.rpc import deviceplugin_pb2 as pb


class Kubelet:
    """Serves ``kubelet.sock`` in a folder; takes every registration, and reads its devices."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._channels: list[Any] = []
        self._devices: dict[str, dict[str, str]] = {}
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, pb.RegisterRequest.FromString, lambda answer: answer.SerializeToString()
        )
        service = grpc.method_handlers_generic_handler(
            "v1beta1.Registration", {"Register": handler}
        )
        self._server.add_generic_rpc_handlers((service,))

    def devices(self) -> dict[str, dict[str, str]]:
        """Resource -> device ID -> health, as the plugin reported it last."""
        with self._lock:
            return dict(self._devices)

    def __enter__(self) -> Self:
        self._server.add_insecure_port(f"unix:{self._folder / 'kubelet.sock'}")
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            channel.close()
        self._server.stop(None)

    def _register(self, request: Any, _context: Any) -> Any:
        channel = grpc.insecure_channel(f"unix:{self._folder / request.endpoint}")
        self._channels.append(channel)
        reader = threading.Thread(
            target=self._read, args=(request.resource_name, channel), daemon=True
        )
        reader.start()
        return pb.Empty()

    def _read(self, resource: str, channel: Any) -> None:
        call = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=pb.ListAndWatchResponse.FromString,
        )
        try:
            for message in call(pb.Empty(), wait_for_ready=True):
                with self._lock:
                    self._devices[resource] = {each.ID: each.health for each in message.devices}
        except (grpc.RpcError, ValueError):  # the plugin or the channel has ended
            return
