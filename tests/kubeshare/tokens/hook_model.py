"""A process of a pod as Gemini's hook makes it speak, from its source; for tests of a daemon.

It shares nothing with the daemon. Each behaviour has the lines of the source that cause it: v1.0 is
tag v1.0 (cf19941), v1.0-ks branch v1.0-kubeshare (953052b), v1.1 branch v1.1-kubeshare (638391e),
head is master (abe1f88), all of github.com/NTHU-LSALAB/Gemini; files are under ``src/``, and a line
without a file is of ``hook.cpp``.

A HookProcess is one process; its calls block as those of the hook do, and each runs on the caller's
thread. What would kill or end the real process is a KilledError (SIGPIPE) or an
ExitedError (its status).
Not modelled: the hook's own lost wake-up (v1.0:488 before :400), by which a process waits for ever.
"""

import errno
import socket
import struct
import threading
import time
from dataclasses import dataclass

QUOTA, MEM_LIMIT, MEM_UPDATE = range(3)  # comm.h:29
REQUEST_BYTES, ANSWER_BYTES = 80, 40  # comm.h:30-31
ATTEMPTS = 5  # v1.0:151, v1.0-ks:167, v1.1:176, head:178
BETWEEN_CONNECTS = 10.0
"""Seconds between attempts to connect, also after the last one (v1.0:152,226; comm.cpp:131)."""

MEMORY_TIMEOUT = 10.0
"""Seconds to wait for an answer about memory (v1.0:295,323; v1.1:424,453)."""

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class KilledError(Exception):
    """SIGPIPE: send() on a socket whose peer is gone, without MSG_NOSIGNAL (v1.0:258, v1.1:379)."""


class ExitedError(Exception):
    """The hook ends the application (v1.0:229,298,326,377; v1.1:350,427,456,507)."""


@dataclass(frozen=True)
class Traits:
    """How a version differs.

    Attributes:
        one_socket: one connection for the life (v1.0:245, v1.0-ks:301); else one for each message,
            never closed, in a variable by device that all threads share (v1.1:366, head:312).
        zeroed: the buffer of a token's answer is zeroed (v1.0-ks:432, v1.1:500); v1.0 and head
            leave it as the stack had it. That of a memory answer is never zeroed.
        swapped: the overuse is passed as an array, so that the burst arrives in its place, and then
            what the register had: the predicted idle window in ms (v1.1:501,596; head:448).
        obeys: the quota of the answer counts; head takes 6,000 ms (head:457-458).
        first_tokens: how many tokens the first intercepted call asks for, with burst 0: one a
            port (v1.0:706, v1.1:845, head:803). v1.1 with one port asks twice: an attempt to
            connect reads the ports again and appends one more (v1.1:307-313,324).
    """

    one_socket: bool
    zeroed: bool
    swapped: bool
    obeys: bool
    first_tokens: int


VERSIONS = {
    "v1.0": Traits(True, False, False, True, 1),
    "v1.0-ks": Traits(True, True, False, True, 1),
    "v1.1": Traits(False, True, True, True, 2),
    "head": Traits(False, False, True, False, 1),
}
CONNECTS_EACH_TIME = [name for name, traits in VERSIONS.items() if not traits.one_socket]


def request(name, id_, type_, *payload):
    """80 bytes: u64 length, name, NUL, i32 id, i32 type, payload (comm.cpp:26-62)."""
    encoded = name.encode()
    message = struct.pack("<Q", len(encoded)) + encoded + b"\0" + struct.pack("<ii", id_, type_)
    if type_ == QUOTA:
        message += struct.pack("<dd", *payload)  # comm.cpp:50-53
    elif type_ == MEM_UPDATE:
        message += struct.pack("<Qi", *payload)  # comm.cpp:55-58
    return message.ljust(REQUEST_BYTES, b"\0")[:REQUEST_BYTES]


class HookProcess:
    """One process of a pod; a context manager that ends it.

    Args:
        address: (host, port) of its pod manager.
        name: POD_NAME (comm.cpp:34).
        version: a key of VERSIONS.
        sleep: takes the place of sleep(10) between attempts to connect.
        timeout: of an answer about memory, in seconds; or that of each attempt.
        garbage: the 40 bytes that were on the stack, for versions that do not zero them.

    Attributes:
        sockets: all that it has opened; the newest one is that of all threads.
        allocations: sizes that were booked; cuMemFree of others is not reported (v1.0:509).
        real: bytes that the driver has allocated, whatever was booked.
        sent: how many messages it has sent, with those that it has sent again.
    """

    def __init__(
        self,
        address,
        name="ns/a",
        version="v1.0",
        *,
        sleep=time.sleep,
        timeout=MEMORY_TIMEOUT,
        garbage=bytes(ANSWER_BYTES),
    ):
        self.address, self.name, self.traits = address, name, VERSIONS[version]
        self.sleep, self.timeout, self.garbage = sleep, timeout, garbage
        self.sockets, self.allocations = [], []
        self.real = self.sent = 0
        self._next_id = 0  # one counter for the process, over all types (comm.cpp:29,62)
        self._messages = threading.Lock()  # comm_mutex (v1.0:149,249)
        self._has_begun = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    # ------------------------------------------------------------ the wire

    def _connect(self):
        """Five attempts, 10 s apart, then exit(errno) (v1.0:224-229, comm.cpp:124-133)."""
        status = 0
        for _ in range(ATTEMPTS):
            connection = socket.socket()
            try:
                connection.connect(self.address)
            except OSError as error:
                connection.close()
                status = error.errno
                self.sleep(BETWEEN_CONNECTS)
                continue
            self.sockets.append(connection)
            return
        raise ExitedError(status)

    def _communicate(self, message, timeout):
        """What recv() left in the buffer (v1.0:244-266, v1.1:365-393).

        The socket is read from the shared variable at each send and each recv, so a thread of 1.1
        may send on one that another has opened, and wait on one on which nobody has asked.
        """
        if not self.traits.one_socket:
            self._connect()  # outside of the mutex (v1.1:366 before :370)
        with self._messages:
            if not self.sockets:
                self._connect()
            status = 0
            for seconds in timeout if isinstance(timeout, tuple) else (timeout,) * ATTEMPTS:
                self.sockets[-1].settimeout(seconds)  # SO_RCVTIMEO; a token has none (v1.0:252,374)
                try:  # without a pause (v1.0:262)
                    self.sent += 1
                    self.sockets[-1].sendall(message)
                except BrokenPipeError:
                    raise KilledError from None
                except OSError as error:
                    status = error.errno
                    continue
                try:
                    return self.sockets[-1].recv(ANSWER_BYTES)  # 0 bytes are success (v1.0:259)
                except TimeoutError:  # the same bytes again, on the same socket (v1.0:256-262)
                    status = errno.EAGAIN
                except OSError as error:  # ECONNRESET: sent again, which is SIGPIPE
                    status = error.errno
            raise ExitedError(status)

    def _ask(self, type_, *payload, timeout):
        message = request(self.name, self._next_id, type_, *payload)
        self._next_id += 1
        answer = self._communicate(message, timeout)
        is_zeroed = type_ == QUOTA and self.traits.zeroed
        before = bytes(ANSWER_BYTES) if is_zeroed else self.garbage
        return answer + before[len(answer) :]  # its id is not compared (comm.cpp:111-120)

    # ------------------------------------------------------------ what it asks

    def begin(self):
        """The first intercepted call asks for tokens, whatever the call is (v1.0:706)."""
        if not self._has_begun:
            self._has_begun = True
            for _ in range(self.traits.first_tokens):
                self._token(0.0, 0.0, 0.0)

    def _token(self, overuse_ms, burst_ms, window_ms):
        """get_token_from_scheduler(), which has no timeout (v1.0:374, v1.1:504)."""
        times = (burst_ms, window_ms) if self.traits.swapped else (overuse_ms, burst_ms)
        (quota,) = struct.unpack_from("<d", self._ask(QUOTA, *times, timeout=None), 4)
        return quota if self.traits.obeys else 6000.0

    def token(self, burst_ms=0.0, window_ms=0.0, overuse_ms=0.0):
        """A launch that needs a token (v1.0:457-484); the quota in ms."""
        self.begin()
        return self._token(overuse_ms, burst_ms, window_ms)

    def memory_info(self):
        """cuMemGetInfo: free and total, as the daemon answers (v1.0:803-809, :285)."""
        self.begin()
        used, total = struct.unpack_from("<QQ", self._ask(MEM_LIMIT, timeout=self.timeout), 4)
        return (total - used) % 2**64, total  # size_t wraps (v1.0:304)

    def allocate(self, size):
        """cuMemAlloc: 0 or OUT_OF_MEMORY (v1.0:527-554).

        Asks the limit, compares with what is free, allocates, and reports that. What is refused
        after the allocation stays allocated and is in no table: nothing frees it before the
        process ends.
        """
        free, _ = self.memory_info()
        if size > free:
            return OUT_OF_MEMORY  # nothing was allocated (v1.0:533, v1.1:669)
        self.real += size
        answer = self._ask(MEM_UPDATE, size, 1, timeout=self.timeout)
        if not struct.unpack_from("<i", answer, 4)[0]:
            return OUT_OF_MEMORY  # it is allocated, and never freed (v1.0:544-546, v1.1:681-683)
        self.allocations.append(size)
        return 0

    def free(self, size):
        """cuMemFree of what was booked: reported first, verdict not looked at (v1.0:507-517)."""
        self.allocations.remove(size)
        self._ask(MEM_UPDATE, size, 0, timeout=self.timeout)
        self.real -= size

    def end(self):
        """However it ends, the kernel closes all its sockets."""
        for connection in self.sockets:
            connection.close()
        self.sockets.clear()
