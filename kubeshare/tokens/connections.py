"""A daemon's sockets: tenants' ports, the connections through them, and their epolls.

The poller is an epoll with a value for each descriptor, and nothing else: :mod:`selectors` makes an
object for each event, and there is one for each token switch. A port has an epoll of its own, so
that the kernel has a queue for each: what comes to one is not behind what came to another one.
"""

import contextlib
import ipaddress
import select
import socket
import struct
from typing import Final, Generic, Self, TypeVar

from kubeshare.tenant_identity import TenantEntry
from kubeshare.tokens.descriptors import at_the_top
from kubeshare.tokens.frames import REQUEST_BYTES
from kubeshare.tokens.takeover_record import ConnectionRecord

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
END: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
"""What a descriptor waits for: bytes, room for bytes, the end of the peer."""

_LINGER: Final = {False: struct.pack("ii", 0, 0), True: struct.pack("ii", 1, 0)}
"""Whether a close resets the connection: nothing lingers (``struct linger``)."""

Value = TypeVar("Value")


# ---------------------------------------------------------------- the poller


class DescriptorPoller(Generic[Value]):
    """For one thread. It may itself be in another one, where it is ready if one of its own is."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._values: dict[int, Value] = {}
        self.fileno = self._epoll.fileno

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

    def wait(self, seconds: float | None, most: int = -1) -> list[tuple[Value, int]]:
        """The values of the descriptors with an event, and their events; none after this time.

        ``most`` of them at most, others the next time: each gets its turn. A value may have been
        removed since, while the ones before it were handled.
        """
        values = self._values
        return [(values[fd], events) for fd, events in self._epoll.poll(seconds, most)]

    def close(self) -> None:
        """End."""
        self._epoll.close()


BACKLOG: Final = 512
"""Maximum number of connections that wait to be accepted, for each port."""


# ---------------------------------------------------------------- sockets


class Port:
    """A tenant's port: the socket that listens there, and the connections through it.

    Attributes:
        entry: its tenant.
        listening: its socket; None when no file has the port any more.
        poller: waits for all of them.
        connections: number of its connections.
        debt: what it has spent of the next rounds.
        pending: events that wait for the next round; without a connection, of the port itself.
    """

    __slots__ = ("connections", "debt", "entry", "listening", "pending", "poller")

    def __init__(self, entry: TenantEntry, listening: socket.socket | None) -> None:
        self.entry = entry
        self.listening = listening
        self.poller = DescriptorPoller[Connection | None]()
        self.connections = 0
        self.debt = 0
        self.pending: list[tuple[Connection | None, int]] = []

    def close(self) -> None:
        """Close its socket; its connections stay."""
        if self.listening is not None:
            self.listening.close()
            self.listening = None


class Connection:
    """A process of a tenant.

    Attributes:
        received: what has come of a message.
        unsent: what was not sent of answers.
        is_valid: whether it has sent a valid message.
        last: the last message.
        waits: whether it waits for an answer.
        is_paused: whether it has sent more meanwhile, which is read when it is answered.
        is_blocked: whether it takes no answer at the moment.
        resets: whether a close resets it, as far as this process has set that.
    """

    __slots__ = (
        "entry",
        "is_blocked",
        "is_paused",
        "is_valid",
        "last",
        "port",
        "received",
        "resets",
        "socket",
        "unsent",
        "waits",
    )

    def __init__(self, port: Port, entry: TenantEntry, connected: socket.socket) -> None:
        self.port = port
        self.entry = entry
        self.socket = connected
        self.received = b""
        self.unsent = b""
        self.last = b""
        self.is_valid = False
        self.waits = False
        self.is_paused = False
        self.is_blocked = False
        self.resets = False

    @property
    def events(self) -> int:
        """What it waits for."""
        return END | (0 if self.is_paused else READ) | (WRITE if self.is_blocked else 0)

    def wait_for(self, *, more: bool, room: bool) -> None:
        """Wait for more from the peer, and for room to send; always for its end."""
        if more == self.is_paused or room != self.is_blocked:
            self.is_paused, self.is_blocked = not more, room
            self.port.poller.change(self.socket.fileno(), self.events)

    def reset_at_close(self, resets: bool = True) -> None:
        """Have the peer know that the connection was closed, however this process ends.

        Gemini's hook takes an orderly end for an answer. That of version 1.0, which has no other
        connection, goes on with what its stack had as a quota, some processes for ever; after a
        reset it ends, and its container starts again. That of 1.1 asks through a new connection
        after an orderly end, and ends after a reset. (v1.0 ``src/hook.cpp:256-262``, ``:380``.)
        """
        self.resets = resets
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER[resets])

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
        cls, record: ConnectionRecord, port: Port, entry: TenantEntry, connected: socket.socket
    ) -> Self:
        """A connection of the last process.

        An older one had read whole messages of a connection that waits: those that were sent again.
        """
        connection = cls(port, entry, connected)
        whole = len(record.received) // REQUEST_BYTES * REQUEST_BYTES
        connection.received, connection.unsent = record.received[whole:], record.unsent
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
