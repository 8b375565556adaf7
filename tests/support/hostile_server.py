"""Servers on loopback that answer every connection as no honest server does."""

import socket
import threading
from contextlib import contextmanager, suppress

from tests.support.waiting import wait_ended


@contextmanager
def serving_each(answer):
    """A server that calls ``answer(peer, ended)`` for each connection; where it listens.

    ``ended`` is an event that is set when the test has finished.
    """
    ended = threading.Event()
    answering = []

    def serve_one(peer):
        with peer, suppress(OSError):
            peer.recv(65536)
            answer(peer, ended)

    def serve():
        with suppress(OSError):  # closed
            while True:
                peer, _ = listening.accept()
                thread = threading.Thread(target=serve_one, args=(peer,))
                thread.start()
                answering.append(thread)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepting = threading.Thread(target=serve)
        accepting.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            listening.shutdown(socket.SHUT_RDWR)
    wait_ended(accepting, "the server accepts no more")
    for thread in answering:
        wait_ended(thread, "a connection ends")


def answering_all(data):
    """A server that sends these bytes to each client, and hangs up; where it listens."""
    return serving_each(lambda peer, _: peer.sendall(data))
