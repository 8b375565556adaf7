"""The programs that the kit starts. Each has a process group of its own and is ended by its id."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

GRACE_SECONDS: Final = 5.0
"""Maximum time to wait for the end of a program after SIGTERM, in seconds."""

KILLED_SECONDS: Final = 2.0
"""Maximum time to wait after SIGKILL, in seconds: a process in a driver call may not end at all."""

_PDEATHSIG: Final = ("--pdeathsig", "KILL", "--")


class KitError(Exception):
    """Something that a check needs did not work; the message is one line."""


def module(name: str, *arguments: str) -> list[str]:
    """The command of a module of ours."""
    return [sys.executable, "-m", name, *arguments]


class Processes:
    """All programs that run now."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []
        setpriv = shutil.which("setpriv")
        self._dies_with_us = (setpriv, *_PDEATHSIG) if setpriv else ()

    def start(
        self, command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a program with pipes for its input and output; its errors go to ``log``."""
        with log.open("ab") as errors:
            process = subprocess.Popen(  # noqa: S603  # programs that this package names
                [*self._dies_with_us, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(env or {})},
                text=True,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def output(
        self,
        command: Sequence[str],
        log: Path,
        *,
        seconds: float,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """What a program prints.

        Raises:
            KitError: it is missing, failed or took longer; the message has its last line.
        """
        name = " ".join(command[:4])
        begun = log.stat().st_size if log.exists() else 0
        try:
            process = self.start(command, log, env=env)
        except OSError as error:
            raise KitError(f"{name}: {error.strerror}") from error
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise KitError(f"{name} did not end in {seconds:g} s") from error
        finally:
            self.end(process, signal.SIGKILL)
        if process.returncode:
            lines = log.read_bytes()[begun:].decode(errors="replace").strip().splitlines()
            last = lines[-1] if lines else printed.strip()[-200:]
            raise KitError(f"{name} ended with status {process.returncode}: {last}")
        return printed

    def end(self, process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> None:
        """End a program and what it has started; wait for a bounded time."""
        for sent, seconds in ((number, GRACE_SECONDS), (signal.SIGKILL, KILLED_SECONDS)):
            if process.poll() is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILLED_SECONDS if sent == signal.SIGKILL else seconds)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # children that are left
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if process in self._running:
            self._running.remove(process)

    def end_all(self) -> None:
        """End everything that still runs, the newest first."""
        for process in reversed(self._running[:]):
            self.end(process, signal.SIGKILL)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far. Raises OSError if it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
