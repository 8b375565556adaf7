"""Keeps a replica with --single from running beside any other replica.

A replica with --single decides in memory, so that another one would allocate its GPUs again. All
replicas stand for election for one Lease. Between replicas with Leases of nodes it does not matter
which one is the holder: the Lease shows that one of them runs. With --single only the holder
answers. A replica ends if it finds a holder that is alive and must not run beside it.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from vgpu.apiserver.leader_election import LeaderElector, Leases

log = logging.getLogger(__name__)

LEASE: Final = "vgpu-scheduler"
"""The name of the Lease."""

SINGLE: Final = "single-"
WITH_LEASES: Final = "leases-"
"""Prefixes of the holder's identity; the host's name follows."""

HANDOVER_SECONDS: Final = 6.0
"""Time for which a replica with --single that has taken the Lease of another one waits for others
to see that, in seconds: they read it every two seconds."""

CHECK_SECONDS: Final = 0.5
"""Interval between two checks, in seconds."""


class ReplicaPresence:
    """This replica among the others, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        leases: Leases,
        namespace: str,
        hostname: str,
        fail: Callable[[str], object],
        *,
        is_single: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``fail`` ends the program; ``clock`` returns seconds that never go back."""
        prefix = SINGLE if is_single else WITH_LEASES
        self._elector = LeaderElector(leases, namespace, LEASE, prefix + hostname)
        self._lease = f"{namespace}/{LEASE}"
        self._is_single = is_single
        self._fail = fail
        self._clock = clock
        self._has_met_another = False
        self._led_since: float | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def start(self) -> None:
        """Stand for election."""
        self._elector.start()
        self._thread.start()

    def stop(self) -> None:
        """Release the Lease; call this when no request is under way any more."""
        self._ending.set()
        self._elector.stop()

    def complaint(self) -> str:
        """Why no request can be answered; "" if no other replica forbids it."""
        holder, leads = self._elector.holder, self._elector.leads()
        if self._is_single:
            is_alone = leads and self._is_handed_over()
            what = f"Lease {self._lease} does not show yet that no other replica runs"
            return "" if is_alone else what
        if holder.startswith(SINGLE) or not (leads or holder):
            return f"Lease {self._lease} does not show yet that no replica with --single runs"
        return ""

    def _is_handed_over(self) -> bool:
        since = self._led_since
        waited = since is not None and self._clock() - since > HANDOVER_SECONDS
        return waited or not self._has_met_another

    def _run(self) -> None:
        while not self._ending.wait(CHECK_SECONDS):
            try:
                self.check()
            except Exception:
                log.exception("other replicas not checked: unexpected error")

    def check(self) -> None:
        """End the program if another replica runs that must not be there."""
        if self._elector.leads():
            if self._led_since is None:
                self._led_since = self._clock()
            return
        self._led_since = None
        if self._elector.holder not in ("", self._elector.identity):
            self._has_met_another = True
        rival = self._elector.rival
        if rival and (self._is_single or rival.startswith(SINGLE)):
            log.error(
                "replica ends: another one renews the Lease",
                extra={
                    "lease": self._lease,
                    "holder": rival,
                    "reason": "a replica with --single runs alone: stop the other one first",
                },
            )
            self._ending.set()
            self._fail("another replica runs")
