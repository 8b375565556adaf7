"""Clients that ask and never read: `python -m tests.support.deaf_clients HOST:PORT PATH SOURCE …`.

From each address SOURCE one connection with a small receive buffer and 60 pipelined requests. One
that is closed comes again at once. Each time that all have asked, ended ones too, a line shows how
often a connection was made. Ends with its standard input.
"""

import contextlib
import select
import socket
import sys

PIPELINED = 60
ENDED = select.POLLRDHUP | select.POLLHUP | select.POLLERR


def ask(server: tuple[str, int], path: str, source: str) -> socket.socket:
    """A connection that has sent its requests, or as many as the server's buffer takes."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.bind((source, 0))
    sock.connect(server)
    sock.setblocking(False)
    with contextlib.suppress(OSError):  # closed already: seen by the poll
        sock.send(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode() * PIPELINED)
    return sock


def main() -> None:
    """Ask until standard input ends."""
    address, path, *sources = sys.argv[1:]
    host, _, port = address.rpartition(":")
    server = host, int(port)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    clients: dict[int, tuple[socket.socket, str]] = {}
    todo, made, printed = sources, 0, 0
    while True:
        for source in todo:
            sock = ask(server, path, source)
            clients[sock.fileno()] = sock, source
            poll.register(sock, ENDED)
            made += 1
        if made >= printed + len(sources):
            printed = made
            print(made, flush=True)
        todo = []
        for number, _ in poll.poll():
            if number == 0:
                return
            poll.unregister(number)
            sock, source = clients.pop(number)
            sock.close()
            todo.append(source)


if __name__ == "__main__":
    main()
