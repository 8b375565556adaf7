"""Streams of Gemini's real hook, as they were recorded with Gemini's own daemons beside it.

A line of ``tests/golden/gemini`` is the number of a connection, > or < for what the hook sent or
received, and the bytes. ``hook-*`` are sessions with gem-pmgr. ``late-*`` are those of a daemon
that stood still: the hook sent a message again, and only what it sent is kept. Lines with # name
the version, the calls of the process, and the source of each message.
"""

import socket

from tests.kubeshare.tokens.gemini_process import own_address
from tests.support.environment import ROOT

FOLDER = ROOT / "tests" / "golden" / "gemini"
VERSIONS = ("v1.0", "v1.0-kubeshare", "v1.1-kubeshare", "master")
QUOTA = 0


def lines(kind, version):
    """Connection, direction and bytes of each message."""
    for line in (FOLDER / f"{kind}-{version}.txt").read_text().splitlines():
        if not line.startswith("#"):
            number, sign, content = line.split()
            yield number, sign, bytes.fromhex(content)


def type_of(request):
    """QUOTA, MEM_LIMIT or MEM_UPDATE, of the pod ns/a."""
    return int.from_bytes(request[17:21], "little")


class Replay:
    """Connections to a port; a context manager that closes them."""

    def __init__(self, port, step=None):
        self.port, self.step, self.connections = port, step, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for connection in self.connections.values():
            connection.close()

    def of(self, number):
        """The connection of a number, opened at its first message."""
        if number not in self.connections:
            connected = socket.create_connection((own_address(), self.port), timeout=60)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections[number] = connected
        return self.connections[number]

    def send(self, number, request):
        """As one segment, or in segments of ``step`` bytes."""
        step = self.step or len(request)
        for begin in range(0, len(request), step):
            self.of(number).sendall(request[begin : begin + step])

    def receive(self, number):
        """One answer."""
        return self.of(number).recv(40, socket.MSG_WAITALL)
