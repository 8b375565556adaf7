"""The state that a daemon hands over to the next one, as values. Pure.

Connections are numbered; their sockets follow the record in this order. Times are microseconds of
the monotonic clock, which all processes of a node share.
"""

from collections.abc import Mapping
from typing import Final, Self

import msgspec

from kubeshare.tenant_identity import TenantEntry, TenantIdentity
from kubeshare.tokens.frames import (
    LimitRequest,
    MalformedMessage,
    QuotaRequest,
    Request,
    UpdateRequest,
)
from kubeshare.tokens.scheduler import TokenState
from kubeshare.tokens.tally import Tally, no_lags, no_token_switches, no_waits
from vgpu.schemes.kubeshare.gemini_config import ClientPort, SharedPod

VERSION: Final = 2
"""The version of the record. A daemon that gets another one takes nothing over."""


_TYPE_NAMES: Final = {
    QuotaRequest: "token",
    LimitRequest: "memory_limit",
    UpdateRequest: "memory_update",
}
"""The types of messages, as a label of metrics."""


class TenantCounts(msgspec.Struct):
    """What is counted of a tenant; times in microseconds.

    ``used`` is what its processes report of the tokens that it has returned, ``held`` the time from
    the grant of each token until it came back or was taken.
    """

    grants: int = 0
    granted: int = 0
    used: int = 0
    overused: int = 0
    unreturned: int = 0
    refused: int = 0
    other_names: int = 0
    other_addresses: int = 0
    unknown: int = 0
    malformed: dict[MalformedMessage, int] = {}
    waits: Tally = msgspec.field(default_factory=no_waits)
    messages: dict[str, int] = {}
    replaced: int = 0
    repeated: int = 0
    held: int = 0

    def count_malformed(self, kind: MalformedMessage) -> None:
        """Count a message that is wrong."""
        self.malformed[kind] = self.malformed.get(kind, 0) + 1

    def count_message(self, request: Request) -> None:
        """Count a message by its type."""
        name = _TYPE_NAMES[type(request)]
        try:
            self.messages[name] += 1
        except KeyError:
            self.messages[name] = 1

    def copy(self) -> Self:
        """What is counted until now."""
        waits = msgspec.structs.replace(self.waits, counts=[*self.waits.counts])
        return msgspec.structs.replace(
            self, malformed=dict(self.malformed), messages=dict(self.messages), waits=waits
        )


class PodTokenRecord(msgspec.Struct, frozen=True):
    """The token of a pod.

    Attributes:
        begin: when it began; None if it was returned.
        end: when its quota ends.
        waiting: the numbers of the messages that wait for the next one, by connection.
    """

    begin: int | None
    end: int
    waiting: Mapping[int, int]


class PodRecord(msgspec.Struct, frozen=True):
    """A pod.

    Attributes:
        entry: what the files have of it.
        is_listed: whether they still have it.
        connections: their numbers, with the address of each.
        token: its token.
        booked: bytes by connection, the oldest first.
        opened: how many connections it has ever opened.
        asked_at: when it asked for the token that it waits for.
        counts: what is counted.
        first_ids: the first id of each connection that has sent a message; an older daemon has
            kept none.
        unattributed: bytes whose connection was closed before its process ended.
    """

    entry: TenantEntry
    is_listed: bool
    connections: Mapping[int, str]
    token: PodTokenRecord
    booked: Mapping[int, int]
    opened: int
    asked_at: int
    counts: TenantCounts
    first_ids: Mapping[int, int] | None = None
    unattributed: int = 0

    @property
    def keeps_connections(self) -> bool:
        """Whether its hook sends several messages through one connection, as Gemini 1.0 does.

        A token is the answer to one message at least. It is all that an older daemon shows.
        """
        return self.first_ids is None and self.counts.grants > self.opened


class FilesRecord(msgspec.Struct, frozen=True):
    """What the files had when they could be used last, by GPU."""

    shares: Mapping[str, tuple[SharedPod, ...]] = {}
    ports: Mapping[str, tuple[ClientPort, ...]] = {}
    tenants: Mapping[str, tuple[TenantIdentity, ...]] = {}


class HeldRecord(msgspec.Struct, frozen=True):
    """A message that waits until the files name its tenant's share or address."""

    since: int
    pod: str
    request: Request


class GpuRecord(msgspec.Struct, frozen=True):
    """The tenants of a GPU; ``held`` is by connection, ``token_at`` when the token has a timer."""

    state: TokenState
    token_at: int | None
    pods: tuple[PodRecord, ...]
    held: Mapping[int, HeldRecord]


class ConnectionRecord(msgspec.Struct, frozen=True):
    """A connection with its tenant.

    Attributes:
        uuid, pod: its tenant.
        received: what has come of messages that were not handled yet.
        unsent: what was not sent of answers.
        is_valid: whether it has sent a valid message.
        waits: whether it waits for an answer.
        last: the last message; empty if it was handled by an older daemon.
    """

    uuid: str
    pod: str
    received: bytes
    unsent: bytes
    is_valid: bool
    waits: bool
    last: bytes = b""


class ListenerRecord(msgspec.Struct, frozen=True):
    """A port with its tenant."""

    port: int
    uuid: str
    pod: str


class DaemonRecord(msgspec.Struct, frozen=True):
    """All that is handed over.

    Three groups of sockets follow: the one to which the next process connects, those of
    ``listeners``, and those of ``connections``.
    """

    version: int
    listeners: tuple[ListenerRecord, ...]
    connections: tuple[ConnectionRecord, ...]
    gpus: Mapping[str, GpuRecord]
    files: FilesRecord
    refused_connections: int
    config_errors: int
    lags: Tally = msgspec.field(default_factory=no_lags)
    token_switches: Tally = msgspec.field(name="handovers", default_factory=no_token_switches)


class RecordError(ValueError):
    """A record that cannot be used."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(DaemonRecord)


class _Versioned(msgspec.Struct):
    version: int


def encode_record(record: DaemonRecord) -> bytes:
    """The bytes of a record."""
    return _ENCODER.encode(record)


def decode_record(content: bytes) -> DaemonRecord:
    """The record of these bytes. Raises RecordError."""
    try:
        version = msgspec.msgpack.decode(content, type=_Versioned).version
        if version != VERSION:
            raise RecordError(f"its state has version {version}, and {VERSION} is expected")
        return _DECODER.decode(content)
    except msgspec.MsgspecError as error:
        raise RecordError(f"its state cannot be read: {error}") from error
