"""Listening sockets from ``--web.listen-address``, in the notation of Prometheus' exporters."""

import errno
import ipaddress
import socket
from typing import Any

_BACKLOG = 512

_ADVICE = {
    errno.EADDRINUSE: (
        "address already in use; stop the other program or choose another port "
        "(:PORT and [::]:PORT also take 0.0.0.0:PORT)"
    ),
    errno.EADDRNOTAVAIL: "this host does not have that address",
    errno.EACCES: "permission denied; ports below 1024 need a privilege",
}


class ListenError(Exception):
    """An address that cannot be listened on.

    Attributes:
        address: as in the flag.
        problem: what is wrong with it.
        is_in_use: whether another program listens there.
    """

    def __init__(self, address: str, problem: str, *, is_in_use: bool = False) -> None:
        super().__init__(f"--web.listen-address {address!r}: {problem}")
        self.address = address
        self.problem = problem
        self.is_in_use = is_in_use


def parse_address(address: str) -> tuple[str, int]:
    """``host:port`` -> (host, port); the host is empty in ``:port`` and bare in ``[::1]:port``.

    Raises:
        ListenError: it is neither ``:port``, ``host:port`` nor ``[IPv6]:port``.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise ListenError(address, "must end in a port, such as :9394 or [::1]:9394")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ListenError(address, "not an IPv6 address between the brackets") from None
    elif set(host) & set("[]:/ "):
        raise ListenError(address, "must be host:port; write IPv6 in brackets, [::1]:9394")
    return host, int(port)


def listen(address: str, *, shares_port: bool = False) -> socket.socket:
    """A non-blocking listening socket; no host and ``[::]`` mean IPv6 and IPv4 where both exist.

    With ``shares_port`` another process of the same user may listen there, too, if it also does so.

    Raises:
        ListenError: the address is malformed, unknown, in use or not permitted.
    """
    host, port = parse_address(address)
    both = host in ("", "::") and socket.has_dualstack_ipv6()
    family: socket.AddressFamily
    target: tuple[Any, ...]
    try:
        if both:
            family, target = socket.AF_INET6, ("::", port, 0, 0)
        else:
            family, target = _resolve(host or "0.0.0.0", port)
        listener = socket.create_server(
            target,
            family=family,
            backlog=_BACKLOG,
            dualstack_ipv6=both,
            reuse_port=shares_port,
        )
    except socket.gaierror as error:
        raise ListenError(address, f"unknown host: {error.strerror}") from error
    except OSError as error:
        problem = _ADVICE.get(error.errno or 0, error.strerror or str(error))
        in_use = error.errno == errno.EADDRINUSE
        raise ListenError(address, problem, is_in_use=in_use) from error
    listener.setblocking(False)
    return listener


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """The first address of a name, IPv4 before IPv6, as Go's listeners choose it."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, target = min(addresses, key=lambda item: item[0] != socket.AF_INET)
    return family, target


def bound_address(listener: socket.socket) -> str:
    """The address on which a socket really listens, as ``host:port`` or ``[host]:port``."""
    host, port, *_ = listener.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def link_address(bound: str) -> str:
    """A bound address as a client on this host reaches it: a wildcard becomes localhost."""
    host, _, port = bound.rpartition(":")
    return f"localhost:{port}" if host in ("0.0.0.0", "[::]") else bound
