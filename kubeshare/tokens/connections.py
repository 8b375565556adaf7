"""A daemon's sockets: listeners of tenants' ports, the connections through them, and the epoll.

The poller is an epoll with a value for each descriptor, and nothing else: :mod:`selectors` makes an
object for each event, and there is one for each token switch.
"""

import contextlib
import ipaddress
import select
import socket
import struct
from typing import Final, Generic, Self, TypeVar

from kubeshare.tenant_identity import TenantEntry
from kubeshare.tokens.descriptors import at_the_top
from kubeshare.tokens.takeover_record import ConnectionRecord

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
"""What a descriptor waits for. An error or an end is an event for both."""

_RESET: Final = struct.pack("ii", 1, 0)
"""Nothing lingers (``struct linger``)."""

Value = TypeVar("Value")


# ---------------------------------------------------------------- the poller


class DescriptorPoller(Generic[Value]):
    """For one thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._values: dict[int, Value] = {}

    def add(self, fd: int, value: Value, events: int = READ) -> None:
        """Wait for a descriptor, too."""
        self._epoll.register(fd, events)
        self._values[fd] = value

    def change(self, fd: int, events: int) -> None:
        """Wait for other events of a descriptor."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """No longer wait for a descriptor, before it is closed."""
        self._epoll.unregister(fd)
        del self._values[fd]

    def wait(self, seconds: float | None) -> list[tuple[Value, int]]:
        """The values of the descriptors with an event, and their events; none after this time.

        A value may have been removed since, while the ones before it were handled.
        """
        values = self._values
        return [(values[fd], events) for fd, events in self._epoll.poll(seconds)]

    def close(self) -> None:
        """End."""
        self._epoll.close()


BACKLOG: Final = 512
"""Maximum number of connections that wait to be accepted, for each port."""


# ---------------------------------------------------------------- sockets


class Listener:
    """The socket of a tenant's port."""

    def __init__(self, entry: TenantEntry, listening: socket.socket) -> None:
        self.entry = entry
        self.socket = listening


class Connection:
    """A process of a tenant.

    Attributes:
        received: what has come of messages that were not handled yet.
        unsent: what was not sent of answers.
        is_valid: whether it has sent a valid message.
        last: the last message.
        waits: whether it waits for an answer.
        is_blocked: whether it takes no answer at the moment.
    """

    __slots__ = ("entry", "is_blocked", "is_valid", "last", "received", "socket", "unsent", "waits")

    def __init__(self, entry: TenantEntry, connected: socket.socket) -> None:
        self.entry = entry
        self.socket = connected
        self.received = b""
        self.unsent = b""
        self.last = b""
        self.is_valid = False
        self.waits = False
        self.is_blocked = False

    def reset_at_close(self) -> None:
        """Have the peer know that the connection was closed, however this process ends.

        Gemini's hook takes an orderly end for an answer. That of version 1.0, which has no other
        connection, goes on with what its stack had as a quota, some processes for ever; after a
        reset it ends, and its container starts again. That of 1.1 asks through a new connection
        after an orderly end, and ends after a reset. (v1.0 ``src/hook.cpp:256-262``, ``:380``.)
        """
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    @property
    def events(self) -> int:
        """What it waits for."""
        return READ | WRITE if self.is_blocked else READ

    def record(self) -> ConnectionRecord:
        """Its state for the next process."""
        return ConnectionRecord(
            self.entry.uuid,
            self.entry.name,
            self.received,
            self.unsent,
            self.is_valid,
            self.waits,
            self.last,
        )

    @classmethod
    def restored(
        cls, record: ConnectionRecord, entry: TenantEntry, connected: socket.socket
    ) -> Self:
        """A connection of the last process."""
        connection = cls(entry, connected)
        connection.received, connection.unsent = record.received, record.unsent
        connection.is_valid, connection.waits = record.is_valid, record.waits
        connection.last = record.last
        connection.is_blocked = bool(record.unsent)
        return connection


def plain_address(host: str) -> str:
    """An address of a peer as files have it: IPv4 without IPv6's prefix, no zone."""
    address = host.partition("%")[0]
    return address.removeprefix("::ffff:") if "." in address else address


def host_address(text: str) -> str:
    """An address to listen on; "" is every address. Raises ValueError."""
    is_bracketed = text.startswith("[") and text.endswith("]")
    return str(ipaddress.ip_address(text[1:-1] if is_bracketed else text)) if text else ""


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on an address; "" is every one of IPv4 and IPv6. Raises OSError.

    It is among the highest descriptors.
    """
    every = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if every or ":" in host else socket.AF_INET
    listening = socket.create_server(
        (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=every
    )
    listening.setblocking(False)
    return at_the_top(listening)
