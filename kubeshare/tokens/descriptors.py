"""Which descriptors the daemon uses for what.

    from the lowest one on    files, pages, takeover, connections
    the highest ones          listening sockets

Connections leave some for the pages, by which the kubelet and Prometheus see the daemon, and are
divided by port, so that no pod can take those of another one. When a port is added, the others may
have more than their part is now: Gemini 1.1's are closed down to it, and 1.0 keeps its own. So all
of them together have a maximum, too.

When a process ends without closing anything, Linux closes its highest descriptors first:
``close_files`` (``fs/file.c``) goes upwards, and the last work added for a task runs first
(``kernel/task_work.c``). A process with Gemini 1.1 that waits reads the end of its connection and
opens the next one at once. If the port still listens, this one is reset when the port is closed,
and the process sends again: SIGPIPE (Gemini v1.1-kubeshare ``src/hook.cpp:377-389``). If the port
refuses it, the process tries again after 10 s (``:345-350``).
"""

import fcntl
import resource
import socket
from typing import Final

MAX_DESCRIPTORS: Final = 128 * 1024
"""Maximum number of descriptors that the daemon uses. The kernel has a table of this length."""

_LISTENERS: Final = 1024
"""Number of the highest descriptors, for listening sockets; Gemini has 511 ports."""

_RESERVED: Final = 256
"""Number of descriptors for files, pages (128 connections at most) and a takeover."""


def raise_limit() -> None:
    """Raise the limit of open files as far as it may and is of use."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = MAX_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, MAX_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def limit() -> int:
    """The limit of open files, as far as it is of use."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)


def listeners_from() -> int:
    """The first of the descriptors for listening sockets."""
    return limit() - min(_LISTENERS, limit() // 4)


def for_connections() -> int:
    """How many descriptors all connections and epolls of ports may have together."""
    lowest = listeners_from()
    return lowest - min(_RESERVED, lowest // 2)


def for_each_port(ports: int) -> int:
    """How many connections each of so many ports may have."""
    return max(1, for_connections() // max(1, ports) - 1)  # one is its epoll


def at_the_top(listening: socket.socket) -> socket.socket:
    """The same socket among the highest descriptors, if one is free there."""
    try:
        high = fcntl.fcntl(listening.fileno(), fcntl.F_DUPFD_CLOEXEC, listeners_from())
    except OSError:
        return listening
    listening.close()
    raised = socket.socket(fileno=high)
    raised.setblocking(False)
    return raised
