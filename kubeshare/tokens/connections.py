"""A daemon's sockets: the listeners of tenants' ports, and the connections that came through."""

import ipaddress
import socket
from typing import Final, Self

from kubeshare.tokens.handover_record import ConnectionRecord
from kubeshare.tokens.poller import READ, WRITE
from kubeshare.tokens.tenant_entry import TenantEntry

BACKLOG: Final = 512
"""Maximum number of connections that wait to be accepted, for each port."""


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
        waits: whether it waits for an answer.
        is_blocked: whether it takes no answer at the moment.
    """

    __slots__ = ("entry", "is_blocked", "is_valid", "received", "socket", "unsent", "waits")

    def __init__(self, entry: TenantEntry, connected: socket.socket) -> None:
        self.entry = entry
        self.socket = connected
        self.received = b""
        self.unsent = b""
        self.is_valid = False
        self.waits = False
        self.is_blocked = False

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
        )

    @classmethod
    def restored(
        cls, record: ConnectionRecord, entry: TenantEntry, connected: socket.socket
    ) -> Self:
        """A connection of the last process."""
        connection = cls(entry, connected)
        connection.received, connection.unsent = record.received, record.unsent
        connection.is_valid, connection.waits = record.is_valid, record.waits
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
    """A socket that listens on an address; "" is every one of IPv4 and IPv6. Raises OSError."""
    every = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if every or ":" in host else socket.AF_INET
    listening = socket.create_server(
        (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=every
    )
    listening.setblocking(False)
    return listening
