"""Binds of several pods that come while the Lease of their node is being written.

The first bind's write of the Lease waits until each other bind has joined the batch behind it, or
has ended. From then on the requests to the API server have one order: those of the first bind, then
the batch's write, then those of each bind of the batch in turn. So a run can be repeated.
"""

import threading

from tests.scheduler.served import binding
from tests.support.waiting import WAIT_SECONDS, wait_ended, wait_until
from tests.support.web_helpers import connect

LEASES = ("node_claims", "write_node_claims")
ORDERED = frozenset((*LEASES, "bind"))

BATCH_WRITE = 3
"""Number of the batch's write of the Lease, from the first bind's: that, and its Binding, come
before it."""

NOBODY = -1
"""No thread: the first bind has written no Lease."""


class OrderedApi:
    """The API server for one process, whose requests a burst orders."""

    def __init__(self, api):
        self.api = api
        self.burst = None

    def __getattr__(self, name):
        request = getattr(self.api, name)
        if self.burst is None or name not in ORDERED:
            return request

        def send(*args):
            self.burst.wait_for_turn(name, args)
            return request(*args)

        return send


class Burst:
    """Binds of these pods to one node at one process, whose API server is an :class:`OrderedApi`.

    ``together`` is called once all have joined; after :meth:`bind`, ``joined`` is the number of
    binds in the batch.
    """

    def __init__(self, process, refs, node="n1", together=lambda: None):
        self.process, self.refs, self.node = process, refs, node
        self._together = together
        self.errors = {}
        self.joined = 0
        self._first, self._is_closed = None, False
        self._connections = [connect(process.server.addresses[0]) for _ in refs]
        self._threads = [
            threading.Thread(target=self._bind, args=each, daemon=True)
            for each in zip(refs, self._connections, strict=True)
        ]
        self._ended = [threading.Event() for _ in refs]

    def bind(self):
        """The text of each pod's answer, "" if it is bound; none if no answer came."""
        self.process.api.burst = self
        try:
            self._threads[0].start()
            assert self._ended[0].wait(WAIT_SECONDS)
            self._first = self._first or NOBODY
            for number, thread in enumerate(self._threads):
                if thread.ident is None:  # nothing was written for the first one
                    thread.start()
                assert self._ended[number].wait(WAIT_SECONDS)
        finally:
            self.process.api.burst = None
            for connection in self._connections:
                connection.close()
            for thread in self._threads:
                if thread.ident is not None:
                    wait_ended(thread, "the bind")
        return [self.errors.get(ref.name) for ref in self.refs]

    def leave(self, number):
        """The client of this bind closes its connection."""
        self._connections[number].close()
        self._ended[number].set()

    def _bind(self, ref, connection):
        try:
            answer = self.process.post("/bind", binding(ref, self.node), connection)
            self.errors[ref.name] = answer["Error"]
        except OSError:
            pass  # the process was killed, or the client has left
        finally:
            self._ended[self.refs.index(ref)].set()

    def wait_for_turn(self, name, args):
        """Called before each request that has an order."""
        group = self.process.program.committer.group
        if name == "bind":
            if threading.get_ident() == self._first and not self._is_closed:
                wait_until(lambda: not group.waiting, "the batch is closed")
                self._is_closed = True
            number = [ref.name for ref in self.refs].index(args[0].name)
            for ended in self._ended[:number]:
                assert ended.wait(WAIT_SECONDS)
        elif self._first is None:
            if name == "write_node_claims":
                self._first = threading.get_ident()
                self._gather()
        elif threading.get_ident() != self._first:  # it may decide again, behind the batch
            wait_until(lambda: self._ended[0].is_set() or group.waiting, "the first bind waits")

    def _gather(self):
        group = self.process.program.committer.group
        for thread, ended in zip(self._threads[1:], self._ended[1:], strict=True):
            thread.start()
            wait_until(
                lambda ended=ended: group.waiting > self.joined or ended.is_set(), "it has joined"
            )
            self.joined = group.waiting
        self._together()
