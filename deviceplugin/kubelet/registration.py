"""One call of the kubelet's ``v1beta1.Registration``, and how it ended."""

from pathlib import Path
from typing import Final

import grpc

from deviceplugin.kubelet.server import options
from vgpu.io.unix_socket import is_served
from vgpu.model.reasons import Explained
from vgpu.rpc import deviceplugin_pb2 as pb
from vgpu.sources.files import printable

KUBELET_SOCKET: Final = "kubelet.sock"
"""Name of the kubelet's socket in the folder of all plugins' sockets."""

VERSION: Final = "v1beta1"

_METHOD: Final = "/v1beta1.Registration/Register"

_DEADLINE_SECONDS: Final = 12.0
"""Maximum time to wait for the kubelet's answer, in seconds. The kubelet connects to the plugin
before it answers, and gives up after 10."""

_OPTIONS: Final = (
    # Otherwise a channel inherits the pause after another channel's failed connect.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

_NOT_SUPPORTED: Final = "not supported by kubelet"
"""Part of the kubelet's error for an API version that it does not support."""


class RegistrationOutcome(Explained):
    """The result of a registration, at once or later: the label ``result``."""

    REGISTERED = "registered", "the kubelet took it"
    UNREACHABLE = "unreachable", "the kubelet's socket exists, but no server answers on it"
    UNSUPPORTED = "unsupported", "the kubelet does not speak v1beta1 of the device-plugin API"
    REFUSED = "refused", "the kubelet answered with another error"
    NOT_SERVED = "not_served", "the plugin's own socket could not be made"
    NOT_READ = "not_read", "the kubelet took it, and does not read the list of devices"
    REMOVED = "removed", "the plugin's own socket was removed"


class Unregistered(Exception):  # noqa: N818  # a state as much as an error
    """The kubelet does not know the resource, or no longer knows it.

    Attributes:
        outcome: the reason code.
        detail: the message of the system or the kubelet.
    """

    def __init__(self, outcome: RegistrationOutcome, detail: str) -> None:
        super().__init__(f"{outcome.explanation}: {detail}")
        self.outcome = outcome
        self.detail = detail


def register(folder: Path, endpoint: str, resource: str, *, binding: bool) -> None:
    """Register the resource with the socket ``endpoint`` of the kubelet's folder, by one call.

    Raises Unregistered: UNREACHABLE, UNSUPPORTED, REFUSED.
    """
    request = pb.RegisterRequest(
        version=VERSION,
        endpoint=endpoint,
        resource_name=resource,
        options=options(binding=binding),
    )
    with grpc.insecure_channel(f"unix:{folder / KUBELET_SOCKET}", options=_OPTIONS) as channel:
        call = channel.unary_unary(
            _METHOD,
            request_serializer=pb.RegisterRequest.SerializeToString,
            response_deserializer=pb.Empty.FromString,
        )
        try:
            call(request, timeout=_DEADLINE_SECONDS)
        except grpc.RpcError as error:
            detail = f"{error.code().name}: {error.details() or ''}"
            raise Unregistered(_outcome(error), detail) from error


def require_kubelet(folder: Path) -> None:
    """Raises Unregistered UNREACHABLE if no process serves the kubelet's socket.

    This detects a socket that a killed kubelet has left behind, before we make a socket.
    """
    path = str(folder / KUBELET_SOCKET)
    try:
        served = is_served(path)
    except OSError as error:
        detail = f"{printable(path)}: {error}"
        raise Unregistered(RegistrationOutcome.UNREACHABLE, detail) from error
    if not served:
        raise Unregistered(
            RegistrationOutcome.UNREACHABLE, f"{printable(path)}: connection refused"
        )


def _outcome(error: grpc.RpcError) -> RegistrationOutcome:
    code = error.code()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return RegistrationOutcome.UNREACHABLE
    if code is grpc.StatusCode.UNIMPLEMENTED or _NOT_SUPPORTED in (error.details() or ""):
        return RegistrationOutcome.UNSUPPORTED
    return RegistrationOutcome.REFUSED
