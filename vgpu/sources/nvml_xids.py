"""Counts XID errors, from one thread that waits while another samples and re-initialises.

A double-bit ECC event, where it is asked for, is counted as the XID that goes with it.

Promises: counts survive driver generations; waiting never raises, never spins and never holds a
lock in a driver call; the driver is not shut down under a waiter that still answers.
"""

import ctypes
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from vgpu.model.facts import XidCount
from vgpu.model.xids import described
from vgpu.sources.nvml_calls import CallError, Code, NvmlDriver

log = logging.getLogger(__name__)

XID_CRITICAL_ERROR = 0x8  # nvmlEventTypeXidCriticalError
DOUBLE_BIT_ECC_ERROR = 0x2  # nvmlEventTypeDoubleBitEccError
XID_OF_DOUBLE_BIT = 48
SLICE_SECONDS = 2.0
"""Maximum time of one wait inside the driver, in seconds, where none is set. A re-initialisation
waits as long for it."""

UNKNOWN_DEVICE = ""


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


class _Events:
    """The events of one driver generation; a lost GPU cannot be asked for its UUID any more."""

    def __init__(self, gpus: Sequence[tuple[str, Any]]) -> None:
        self.gpus = gpus
        self.uuids: Mapping[int | None, str] = {_address(handle): uuid for uuid, handle in gpus}
        self.registered = False
        self.set: Any = None


class XidWatch:
    """``attach`` and ``detach`` belong to the sampling thread, ``wait`` to another one."""

    def __init__(self, driver: NvmlDriver, also: int = 0, longest: float | None = None) -> None:
        """Make a watch for XIDs; ``also`` are the bits of further events, for GPUs that have them.

        The driver reports a double-bit error in both ways: one error then counts twice. One wait
        inside the driver takes at most ``longest`` seconds, SLICE_SECONDS if it is not set.
        """
        self._driver = driver
        self._longest = longest
        self._also = also
        self._lock = threading.Lock()  # held for assignments only
        self._events: _Events | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._closed = threading.Event()
        self._counts: dict[tuple[str, int], XidCount] = {}
        self.heard: frozenset[str] = frozenset()
        """The GPUs that the present event set hears."""

    def attach(self, gpus: Sequence[tuple[str, Any]]) -> None:
        """Watch these (UUID, handle) from the next ``wait`` on."""
        with self._lock:
            self._events = _Events(gpus)

    def detach(self) -> None:
        """Release the driver, after a short wait for the waiter to leave it."""
        with self._lock:
            events, self._events = self._events, None
            self.heard = frozenset()
        longest = max(2 * SLICE_SECONDS, 1.2 * (self._longest or 0.0))
        if events is None or not self._idle.wait(longest) or events.set is None:
            return
        self._call_quietly("nvmlEventSetFree", events.set)

    def close(self) -> None:
        """Detach and end all waits."""
        self._closed.set()
        self.detach()

    def counts(self) -> tuple[XidCount, ...]:
        """All XIDs so far."""
        with self._lock:
            return tuple(self._counts.values())

    def wait(self, timeout: float) -> None:
        """Wait for one event, for at most ``timeout`` or the longest wait, and count it."""
        seconds = min(timeout, self._longest or SLICE_SECONDS)
        end = time.monotonic() + seconds
        with self._lock:
            events = self._events
            if events is not None:
                self._idle.clear()
        if events is not None:
            try:
                if self._receive(events, seconds):
                    return
            finally:
                self._idle.set()
        # No driver, no events, or an answer before its time: sleep instead of asking again.
        if (left := end - time.monotonic()) > 0:
            self._closed.wait(left)

    def _receive(self, events: _Events, seconds: float) -> bool:
        """Whether an event came."""
        if not events.registered:
            events.registered = True
            events.set, heard = self._register(events.gpus)
            with self._lock:
                if events is self._events:  # not detached meanwhile
                    self.heard = heard
        if events.set is None:
            return False
        try:
            event = self._driver.event(events.set, int(seconds * 1000))
        except CallError as error:
            log.debug("driver call failed", extra={"err": error})
            return False
        if event is None:
            return False
        uuid = events.uuids.get(_address(event.device), UNKNOWN_DEVICE)
        if event.eventType == XID_CRITICAL_ERROR:
            self._count(uuid, event.eventData)
        elif event.eventType == DOUBLE_BIT_ECC_ERROR:
            self._count(uuid, XID_OF_DOUBLE_BIT)
        return True

    def _count(self, uuid: str, xid: int) -> None:
        with self._lock:
            before = self._counts.get((uuid, xid))
            count = 1 if before is None else before.count + 1
            self._counts[uuid, xid] = XidCount(uuid, xid, count, time.time())
        log.warning("XID error", extra={"gpu": uuid or "unknown", "reason": described(xid)})

    def _register(self, gpus: Sequence[tuple[str, Any]]) -> tuple[Any, frozenset[str]]:
        """An event set and the UUIDs of its GPUs, which are all that can be; None without a set."""
        try:
            events = self._driver.call("nvmlEventSetCreate")
        except CallError as error:
            log.warning("XID errors not counted", extra={"err": error})
            return None, frozenset()
        heard: set[str] = set()
        for place, (uuid, handle) in enumerate(gpus):
            try:
                types = XID_CRITICAL_ERROR | self._further(handle)
                self._driver.call("nvmlDeviceRegisterEvents", handle, types, events)
                heard.add(uuid)
            except CallError as error:
                log.warning("XID errors not counted", extra={"gpu": uuid, "err": error})
                if error.code == Code.UNKNOWN:  # leaves the set undefined, see nvml.h
                    self._call_quietly("nvmlEventSetFree", events)
                    return self._register((*gpus[:place], *gpus[place + 1 :]))
        if not heard:
            self._call_quietly("nvmlEventSetFree", events)
            return None, frozenset()
        return events, frozenset(heard)

    def _further(self, handle: Any) -> int:
        """The further events that the GPU supports: registering another one fails."""
        if not self._also:
            return 0
        try:
            supported: int = self._driver.call("nvmlDeviceGetSupportedEventTypes", handle)
        except CallError as error:
            log.debug("driver call failed", extra={"err": error})
            return 0
        return supported & self._also

    def _call_quietly(self, name: str, *args: Any) -> None:
        try:
            self._driver.call(name, *args)
        except CallError as error:
            log.debug("driver call failed", extra={"err": error})
