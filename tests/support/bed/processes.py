"""Programs that run beside the tests: each dies with this process, however that ends.

    with Daemon("etcd", [binary, "--data-dir", ...], folder / "etcd.log") as etcd:
        etcd.wait_until(answers, "etcd answers")

The kernel does the killing (``PR_SET_PDEATHSIG``, set by setpriv), so neither a crash nor
``kill -9`` leaves one behind. It counts from the *thread* that started the program: start them
from the main thread. A session of its own keeps Ctrl-C from a program; only pytest gets it and
tears down in order.
"""

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import IO, Self, TypeVar

from tests.support.waiting import WAIT_SECONDS, wait_until

T = TypeVar("T")

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""All that a program gets to see: etcd takes every ETCD_* for a flag, all of them a proxy."""


def output(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    text: str | None = None,
) -> str:
    """What a command prints; ``text`` or else ``stdin`` is its input.

    Raises:
        subprocess.CalledProcessError: with its ``stderr``.
    """
    given = {"stdin": stdin} if text is None else {"input": text}
    try:
        return subprocess.run(
            [*DIES_WITH_US, *command],
            **given,
            env={**ENVIRONMENT, **(env or {})},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise


def child_of(pid: int) -> int | None:
    """The only child of a process that forks once (nsenter, unshare), as soon as it has one."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None
    return None


class Daemon:
    """A running program with a log."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        enter: Sequence[str] = (),
        cwd: Path = Path("/"),
    ) -> None:
        """Start it, with ``env`` beside the clean environment.

        ``enter`` is a command that runs another in a child (nsenter): signals go to that child.
        """
        self.name, self.log_file, self._enters = name, log, bool(enter)
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [*DIES_WITH_US, *enter, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**ENVIRONMENT, **(env or {})},
                cwd=cwd,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The program's own pid, as this process sees it."""
        if not self._enters:
            return self._process.pid
        return self.wait_until(lambda: child_of(self._process.pid), "was entered")

    def log(self, lines: int = 0) -> str:
        """What it has said, or the last ``lines`` of it."""
        said = self.log_file.read_text(errors="replace")
        return "\n".join(said.splitlines()[-lines:]) if lines else said

    def story(self, lines: int) -> str:
        """Whether it runs, or how it has ended, and the last ``lines`` that it has said."""
        code = self._process.poll()
        state = "runs" if code is None else f"ended with {code}"
        return f"{self.name} {state}:\n{self.log(lines)}"

    def wait_until(
        self,
        condition: Callable[[], T],
        what: str,
        *,
        seconds: float = WAIT_SECONDS,
        failures: tuple[type[Exception], ...] = (OSError,),
    ) -> T:
        """The first true answer of ``condition``, asked only while the program runs."""

        def asked() -> T:
            if not self.running:
                raise AssertionError(self.story(30))
            return condition()

        return wait_until(
            asked,
            f"{self.name}: {what}",
            seconds=seconds,
            failures=failures,
            context=lambda: self.log(30),
        )

    def signal(self, number: Signals) -> None:
        """Send it a signal, if it still runs."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, seconds: float = WAIT_SECONDS) -> int:
        """Its exit status, negative for a signal.

        Raises:
            AssertionError: with the end of its log, when it still runs after ``seconds``.
        """
        wait_until(
            lambda: not self.running,
            f"{self.name}: ended",
            seconds=seconds,
            context=lambda: self.log(30),
        )
        return self._process.returncode

    def stop(self, number: Signals = SIGTERM) -> int:
        """Ask it to end by a signal, and wait; its exit status.

        Raises:
            AssertionError: it did not, and was killed.
        """
        self.signal(number)
        try:
            return self.wait()
        except AssertionError as error:
            self.kill()
            error.add_note(f"{self.name} ignored {number.name}")
            raise

    def kill(self) -> None:
        """End it at once, with what it started in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, SIGKILL)
        self._process.wait(WAIT_SECONDS)
