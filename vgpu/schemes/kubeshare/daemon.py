"""How KubeShare 1's device manager reports to a node's daemon who may use which GPU.

The daemon connects to TCP port 9797, names its owner and which GPUs it has, then ``heartbeat!``
every 15 s. The manager answers with one line whenever the client pods of a GPU change, and the
daemon writes it as two files named after the GPU's UUID: Gemini's config
(:mod:`vgpu.schemes.kubeshare.gemini_config`) and the ports of the pod managers. Source: KubeShare
branch release-1.0, ``pkg/configclient`` and ``pkg/devicemanager/config.go``. Our controllers do not
serve the connection: they use the ports, and the files' formats.
"""

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import msgspec

from vgpu.model.allocation import Device
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.kubeshare import gemini_config
from vgpu.schemes.kubeshare.gemini_config import NAME_KEY, SharedPod, joined_name, split_name
from vgpu.schemes.kubeshare.node import format_gpu_info, parse_gpu_info
from vgpu.schemes.kubeshare.text import is_uuid

PORT: Final = 9797
HEARTBEAT: Final = "heartbeat!\n"
HEARTBEAT_SECONDS: Final = 15
SILENCE_SECONDS: Final = 60
"""Maximum time without a heartbeat before a node is not ready, in seconds."""

CONFIG_FOLDER: Final = "/kubeshare/scheduler/config"
PORTS_FOLDER: Final = "/kubeshare/scheduler/podmanagerport"

MANAGER_PORTS: Final = range(50051, 50562)
"""Ports of pod managers, one a client pod: 50050 and its index in a bitmap of 512, except 0."""

SCHEDULER_PORTS_BEGIN: Final = 49901
"""Ports of Gemini's schedulers, one a GPU, from here on."""

_MOST_PODS: Final = len(MANAGER_PORTS)
_POD_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_CLIENT_PORT = re.compile(
    rf"([a-z0-9][-a-z0-9]{{0,62}}/[a-z0-9][-a-z0-9.]{{0,252}}|{NAME_KEY}) ([0-9]{{1,5}})"
)
_MOST_PORT: Final = 65535


class ErrorCode(IntEnum):
    """The device manager's answer to a SharePod that requests a virtual GPU."""

    OK = 0
    WAIT_FOR_HOLDER = 1
    RESOURCE_EXCEEDED = 2
    NO_PORT = 3
    OTHER = 255

    @property
    def message(self) -> str:
        """The text in its log and events."""
        return _WORDS[self]


_WORDS: Final = {
    ErrorCode.OK: "",
    ErrorCode.WAIT_FOR_HOLDER: "waiting for dummy Pod",
    ErrorCode.RESOURCE_EXCEEDED: "Resource exceed!",
    ErrorCode.NO_PORT: "Pod manager port pool is full!!!!!",
    ErrorCode.OTHER: "Unknown Error",
}


class Hello(msgspec.Struct, frozen=True):
    """What a daemon reports first: its own pod's name, which the manager looks up, and its GPUs."""

    pod: str
    devices: tuple[Device, ...]


class ClientPort(msgspec.Struct, frozen=True, gc=False, order=True):
    """Where a client pod of a GPU finds its pod manager; named as in :class:`SharedPod`."""

    namespace: str
    pod: str
    port: int

    @property
    def name(self) -> str:
        """Its name as Gemini has it."""
        return joined_name(self.namespace, self.pod)


class GpuTenants(msgspec.Struct, frozen=True):
    """The client pods of one GPU; none once its virtual GPU is gone."""

    uuid: str
    pods: tuple[SharedPod, ...] = ()
    ports: tuple[ClientPort, ...] = ()


def format_hello(hello: Hello) -> str:
    """The daemon's first two lines. Raises ClaimError for a GPU without UUID or memory."""
    return f"hostname:{hello.pod}\n{format_gpu_info(hello.devices, hello.pod)}\n"


def parse_hello(text: str, object_name: str = "daemon") -> Hello:
    """The daemon's first two lines. Raises SourceError MALFORMED, for GPUs a ClaimError."""
    lines = text.split("\n", 3)
    if len(lines) != 3 or lines[2]:
        raise SourceError(Reason.MALFORMED, object_name, "not two whole lines")
    key, _, pod = lines[0].partition(":")
    if key != "hostname" or not _POD_NAME.fullmatch(pod):
        raise SourceError(Reason.MALFORMED, object_name, f"line 1: {lines[0][:64]!r}")
    return Hello(pod, parse_gpu_info(lines[1], object_name))


def format_tenants(gpu: GpuTenants) -> str:
    """The manager's line."""
    pods = "".join(f"{gemini_config.format_line(pod)}," for pod in gpu.pods)
    ports = "".join(f"{_port_line(client)}," for client in gpu.ports)
    return f"{gpu.uuid}:{pods}:{ports}\n"


def parse_tenants(line: str, object_name: str = "manager") -> GpuTenants:
    """The manager's line. Raises SourceError MALFORMED."""
    parts = line.removesuffix("\n").split(":", 3)
    if not line.endswith("\n") or len(parts) != 3 or not is_uuid(parts[0]):
        detail = "not <UUID>:<tenants>:<ports> and the end of a line"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    uuid, pods, ports = parts
    return GpuTenants(
        uuid,
        tuple(
            gemini_config.parse_line(text, f"pod {number}", object_name)
            for number, text in enumerate(_entries(pods, object_name), start=1)
        ),
        tuple(
            _client_port(text, f"port {number}", object_name)
            for number, text in enumerate(_entries(ports, object_name), start=1)
        ),
    )


def _entries(text: str, object_name: str) -> list[str]:
    """The entries of a text, each of which ends in a comma."""
    entries = text.split(",", _MOST_PODS)
    if entries.pop():
        detail = f"an entry without a comma, or more than {_MOST_PODS}"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    return entries


def format_ports(ports: Iterable[ClientPort]) -> bytes:
    """The file of a GPU's ports: their number, then a line for each."""
    lines = [f"{_port_line(client)}\n" for client in ports]
    return "".join([f"{len(lines)}\n", *lines]).encode()


def parse_ports(content: bytes, object_name: str = "ports") -> tuple[ClientPort, ...]:
    """The file of a GPU's ports. Raises SourceError MALFORMED, naming the line."""
    first, *lines = content.decode("ascii", "replace").split("\n", _MOST_PODS + 2)
    if lines and lines[-1] == "":
        del lines[-1]
    if first != str(len(lines)):
        detail = f"line 1: {first[:16]!r} ports announced, {len(lines)} lines follow"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    return tuple(
        _client_port(line, f"line {number}", object_name)
        for number, line in enumerate(lines, start=2)
    )


def _port_line(client: ClientPort) -> str:
    return f"{client.name} {client.port}"


def _client_port(text: str, where: str, object_name: str) -> ClientPort:
    matched = _CLIENT_PORT.fullmatch(text)
    if matched is None or int(matched[2]) > _MOST_PORT:
        raise SourceError(Reason.MALFORMED, object_name, f"{where}: {text[:64]!r}")
    return ClientPort(*split_name(matched[1]), int(matched[2]))
