"""Loads as the checks use them: started, holding their memory, ended or killed."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from deploy.gpu_kit.processes import GRACE_SECONDS, KitError, Processes

PROGRAM: Final = Path(__file__).with_name("load.py")
MIB: Final = 1024 * 1024


class Load(msgspec.Struct, frozen=True):
    """A running load.

    Attributes:
        process: its program.
        mib: memory that it holds beside its context.
        busy: the part of the time in which it computes.
        first_line: what it has printed.
    """

    process: subprocess.Popen[str]
    mib: int
    busy: float
    first_line: Mapping[str, Any]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid


class LoadPlan(msgspec.Struct, frozen=True):
    """A load to start: memory in MiB, the part of the time, and where in each period it lies."""

    mib: int = 0
    busy: float = 0.0
    phase: float = 0.0
    more_mib: int = 0

    def command(self) -> list[str]:
        """The command line."""
        return [
            sys.executable,
            str(PROGRAM),
            f"--mib={self.mib}",
            f"--busy={self.busy}",
            f"--phase={self.phase}",
            f"--more-mib={self.more_mib}",
        ]


class Loads:
    """Starts loads on one GPU."""

    def __init__(self, processes: Processes, gpu: str, log: Path) -> None:
        self._processes = processes
        self._log = log
        self.env = {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_CACHE_DISABLE": "1"}

    def start(
        self, plans: Sequence[LoadPlan], env: Mapping[str, str] | None = None
    ) -> tuple[Load, ...]:
        """Start them side by side; they hold their memory when this returns.

        Raises KitError if one cannot.
        """
        both = {**self.env, **(env or {})}
        started = [self._processes.start(plan.command(), self._log, env=both) for plan in plans]
        return tuple(
            Load(process, plan.mib, plan.busy, self._line(process))
            for plan, process in zip(plans, started, strict=True)
        )

    @contextmanager
    def running(self, *plans: LoadPlan) -> Iterator[tuple[Load, ...]]:
        """The same for the time of a block."""
        loads = self.start(plans)
        try:
            yield loads
        finally:
            for load in loads:
                self.kill(load)

    def finish(self, load: Load) -> None:
        """Let a load end by itself."""
        if load.process.stdin is not None:
            load.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            load.process.wait(GRACE_SECONDS)
        self._processes.end(load.process)

    def kill(self, load: Load) -> None:
        """End a load by SIGKILL."""
        self._processes.end(load.process, signal.SIGKILL)

    def _line(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise KitError("a load ended without a word")
        values: dict[str, Any] = msgspec.json.decode(line)
        if "error" in values:
            raise KitError(f"a load could not start: {values['error']}")
        return values
