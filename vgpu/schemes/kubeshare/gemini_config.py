"""KubeShare's files about one GPU: who may use how much of it, and through which ports.

``/kubeshare/scheduler/config/<GPU UUID>``: the number of pods, then a line for each,
``<namespace>/<pod> <request> <limit> <memory>``, as KubeShare 1 writes and Gemini reads it;
request and limit are fractions of the GPU as decimals, memory is bytes. KubeShare 2 writes limit
before request. A request is never above its limit, so a file in that order is refused as soon as
the two differ, rather than read with the columns crossed.

``/kubeshare/scheduler/podmanagerport/<GPU UUID>``: the number of ports, then a line for each,
``<namespace>/<pod> <port>``. Source: KubeShare branch release-1.0, ``pkg/configclient`` and
``pkg/devicemanager/config.go``.

Gemini's messages have 80 bytes, in which a name of more than 47 cuts off what follows, and one of
more than 63 overruns a buffer in the client pod. Our controllers give such a pod a key in place of
its name, here and in its environment: 32 hexadecimal digits.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import WHOLE_DEVICE_MILLI, count, milli

CONFIG_LIMIT = 256 * 1024
"""Maximum size in bytes: KubeShare has at most 511 pods on a GPU, and a line at most 400 bytes."""

MAX_NAME_BYTES: Final = 47
"""Maximum length of a name with which all of a message of Gemini's hook is sent."""

_KEY_DIGITS: Final = 32

NAME_KEY: Final = rf"[0-9a-f]{{{_KEY_DIGITS}}}"
"""A pattern: the key of a pod whose name is too long."""

_POD = re.compile(rf"[a-z0-9](?:[-a-z0-9]{{0,61}}[a-z0-9])?/[a-z0-9][-a-z0-9.]{{0,252}}|{NAME_KEY}")
_DECIMAL = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,18})?")
_BYTES = re.compile(r"[0-9]{1,18}")


class SharedPod(msgspec.Struct, frozen=True, gc=False, order=True):
    """One pod's part of a GPU: thousandths of the GPU, and bytes.

    A pod that has a key in place of its name has no namespace, and the key as ``pod``.
    """

    namespace: str
    pod: str
    request_milli: int
    limit_milli: int
    memory_bytes: int

    @property
    def name(self) -> str:
        """Its name as Gemini has it."""
        return joined_name(self.namespace, self.pod)


def joined_name(namespace: str, pod: str) -> str:
    """``namespace/pod``, or a key, which has no namespace."""
    return f"{namespace}/{pod}" if namespace else pod


def split_name(name: str) -> tuple[str, str]:
    """The namespace and the pod; a key has no namespace."""
    namespace, slash, pod = name.partition("/")
    return (namespace, pod) if slash else ("", name)


def client_name(namespace: str, pod: str) -> str:
    """The name by which Gemini knows a pod: its own, or a key that is computed from it."""
    name = f"{namespace}/{pod}"
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:_KEY_DIGITS]


def parse_config(content: bytes, object_name: str = "config") -> tuple[SharedPod, ...]:
    """The pods of one GPU, in the file's order.

    Raises SourceError MALFORMED, whose detail begins with the line's number.
    """
    lines = content.decode("ascii", "replace").split("\n")
    if lines[-1] == "":
        del lines[-1]
    first = lines[0] if lines else ""
    if not first.isdigit() or not first.isascii() or len(first) > 4:
        raise SourceError(Reason.MALFORMED, object_name, "line 1: not the number of pods")
    if int(first) != len(lines) - 1:
        lines_below = count(len(lines) - 1, "line")
        detail = f"line 1: {count(int(first), 'pod')} announced, but {lines_below} below"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    pods: dict[tuple[str, str], SharedPod] = {}
    for number, line in enumerate(lines[1:], start=2):
        pod = _parse_line(line, f"line {number}", object_name)
        if (pod.namespace, pod.pod) in pods:
            detail = f"line {number}: a pod that was named before"
            raise SourceError(Reason.MALFORMED, object_name, detail)
        pods[pod.namespace, pod.pod] = pod
    return tuple(pods.values())


def _parse_line(line: str, where: str, object_name: str) -> SharedPod:
    """One pod's line. Raises SourceError MALFORMED, whose detail begins with ``where``."""
    columns = line.split(" ")
    shapes = (_POD, _DECIMAL, _DECIMAL, _BYTES)
    if len(columns) != len(shapes):
        raise SourceError(Reason.MALFORMED, object_name, f"{where}: {len(columns)} columns, not 4")
    for column, shape in zip(columns, shapes, strict=True):
        if not shape.fullmatch(column):
            raise SourceError(Reason.MALFORMED, object_name, f"{where}: {column[:64]!r}")
    name, request, limit, memory = columns
    shared = SharedPod(*split_name(name), milli(request), milli(limit), int(memory))
    if shared.limit_milli > WHOLE_DEVICE_MILLI:
        raise SourceError(Reason.MALFORMED, object_name, f"{where}: a limit above the whole GPU")
    if shared.request_milli > shared.limit_milli:
        detail = f"{where}: request {request} above limit {limit}; columns of KubeShare 2?"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    return shared


def format_config(pods: Iterable[SharedPod]) -> bytes:
    """The file for these pods, in their order, with six decimals as KubeShare writes them."""
    lines = [f"{_format_line(pod)}\n" for pod in pods]
    return "".join([f"{len(lines)}\n", *lines]).encode()


def _format_line(pod: SharedPod) -> str:
    """The line of one pod, without its end."""
    request, limit = _decimal(pod.request_milli), _decimal(pod.limit_milli)
    return f"{pod.name} {request} {limit} {pod.memory_bytes}"


def _decimal(thousandths: int) -> str:
    return f"{thousandths // 1000}.{thousandths % 1000:03}000"


MANAGER_PORTS: Final = range(50051, 50562)
"""Ports of pod managers, one a client pod: 50050 and the index in a bitmap of 512, 0 unused."""

_MOST_PORTS: Final = len(MANAGER_PORTS)
_CLIENT_PORT = re.compile(
    rf"([a-z0-9][-a-z0-9]{{0,62}}/[a-z0-9][-a-z0-9.]{{0,252}}|{NAME_KEY}) ([0-9]{{1,5}})"
)
_MOST_PORT: Final = 65535


class ClientPort(msgspec.Struct, frozen=True, gc=False, order=True):
    """Where a client pod of a GPU finds its pod manager; named as in :class:`SharedPod`."""

    namespace: str
    pod: str
    port: int

    @property
    def name(self) -> str:
        """Its name as Gemini has it."""
        return joined_name(self.namespace, self.pod)


def format_ports(ports: Iterable[ClientPort]) -> bytes:
    """The file of a GPU's ports: their number, then a line for each."""
    lines = [f"{client.name} {client.port}\n" for client in ports]
    return "".join([f"{len(lines)}\n", *lines]).encode()


def parse_ports(content: bytes, object_name: str = "ports") -> tuple[ClientPort, ...]:
    """The file of a GPU's ports. Raises SourceError MALFORMED, naming the line."""
    first, *lines = content.decode("ascii", "replace").split("\n", _MOST_PORTS + 2)
    if lines and lines[-1] == "":
        del lines[-1]
    if first != str(len(lines)):
        detail = f"line 1: {first[:16]!r} ports announced, {count(len(lines), 'line')} behind it"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    return tuple(
        _client_port(line, f"line {number}", object_name)
        for number, line in enumerate(lines, start=2)
    )


def _client_port(text: str, where: str, object_name: str) -> ClientPort:
    matched = _CLIENT_PORT.fullmatch(text)
    if matched is None or int(matched[2]) > _MOST_PORT:
        raise SourceError(Reason.MALFORMED, object_name, f"{where}: {text[:64]!r}")
    return ClientPort(*split_name(matched[1]), int(matched[2]))
