"""Descriptors to wait for, each with a value: an epoll, and nothing else.

:mod:`selectors` makes an object for each event; a token is handed over for each one.
"""

import select
from typing import Final, Generic, TypeVar

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
"""What a descriptor waits for. An error or an end is an event for both."""

Value = TypeVar("Value")


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
