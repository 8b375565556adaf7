"""Streams of the client in C as a relay saw them, segment by segment; and how they are recorded.

    python -m tests.kubeshare.tokens.recorded_streams      writes tests/golden/gemini/recorded-*.txt

A line is the number of a connection, > or < for what its process sent or received, and the bytes.
"""

import selectors
import socket
import tempfile
import threading
from pathlib import Path

from kubeshare.tokens.scheduler import TokenRules
from kubeshare.tokens.server import TokenServer
from tests.kubeshare.tokens.gemini_process import Client, own_address, pod, write
from tests.support.environment import ROOT

FOLDER = ROOT / "tests" / "golden" / "gemini"
KINDS = {"v1.0": (), "v1.1": ("-1",), "split": ("-s",)}
"""Name -> options of the client."""

COMMANDS = (
    "limit",
    "allocate 629145600",
    "allocate 629145600",
    "free 1048576",
    "quota 0 0",
    "quota 12.5 400",
    "quota 0 9000",
    "allocate 1099511627776",
    "free 628097024",
)
"""Their answers do not depend on the time."""


def path_of(kind):
    return FOLDER / f"recorded-{kind}.txt"


class Relay(threading.Thread):
    """Between a client and a port: forwards every segment, and notes it."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.target = own_address(), port
        self.listening = socket.create_server((own_address(), 0))
        self.port = self.listening.getsockname()[1]
        self.lines = []

    def run(self):
        selector = selectors.DefaultSelector()
        selector.register(self.listening, selectors.EVENT_READ)
        number = 0
        while True:
            for key, _ in selector.select():
                if key.fileobj is self.listening:
                    ends = self.listening.accept()[0], socket.create_connection(self.target)
                    for near, far, sign in ((*ends, ">"), (*reversed(ends), "<")):
                        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        selector.register(near, selectors.EVENT_READ, (number, far, sign))
                    number += 1
                    continue
                connection, far, sign = key.data
                segment = key.fileobj.recv(4096)
                if not segment:
                    selector.unregister(key.fileobj)
                    continue
                self.lines.append(f"{connection} {sign} {segment.hex()}\n")
                far.sendall(segment)


def record(options):
    """The lines of one session."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, [pod("a")])
        server = TokenServer(folder, own_address(), TokenRules(), print)
        server.start()
        relay = Relay(50051)
        relay.start()
        with Client(relay.port, *options) as client:
            for command in COMMANDS:
                client.ask(command)
            assert client.end() == 0
        server.stop()
    return relay.lines


def replay(lines, port):
    """Send what was sent, segment by segment; the same lines with what is received now."""
    connections, replayed = {}, []
    for line in lines:
        number, sign, content = line.split()
        if number not in connections:
            connections[number] = socket.create_connection((own_address(), port))
            connections[number].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        segment = bytes.fromhex(content)
        if sign == ">":
            connections[number].sendall(segment)
        else:
            segment = connections[number].recv(len(segment), socket.MSG_WAITALL)
        replayed.append(f"{number} {sign} {segment.hex()}\n")
    for connection in connections.values():
        connection.close()
    return replayed


if __name__ == "__main__":
    for kind, options in KINDS.items():
        path_of(kind).write_text("".join(record(options)))
