"""The real `vgpu demo` (or `make demo`) as a process, stopped as a person stops it: by Ctrl-C."""

import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.bed.processes import Daemon
from tests.support.environment import ROOT
from tests.support.waiting import WAIT_SECONDS

COMMAND = (sys.executable, "-m", "vgpu", "demo")
LISTEN = "--web.listen-address=127.0.0.1:0"


class RunningDemo:
    """``command`` until the block ends; ``folder`` takes its temporary files and its log."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str] = (*COMMAND, LISTEN),
        cwd: Path = ROOT,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self._command, self._cwd = command, cwd
        self._log = folder / "demo.log"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._env = {**env, "TMPDIR": str(self.temporary)}
        self.url = ""

    def __enter__(self) -> Self:
        """Returns when the first look has been printed."""
        self._process = Daemon("demo", self._command, self._log, env=self._env, cwd=self._cwd)
        try:
            self._process.wait_until(self._serves, "serves", seconds=2 * WAIT_SECONDS)
        except BaseException:
            self.interrupt()
            raise
        self.url = re.search(r"(http://[^/\s]+)/metrics", self.printed())[1]
        return self

    def _serves(self) -> bool:
        return "Ctrl-C ends it" in self.printed()

    def __exit__(self, *_: object) -> None:
        self.interrupt()

    def interrupt(self) -> int:
        """Ctrl-C, as the terminal gives it to the whole process group; the exit status."""
        if self._process.running:
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            return self._process.wait()
        except AssertionError:
            self._process.kill()
            raise

    @property
    def fleet(self) -> str:
        """The address of the fleet page, with its key, which works once."""
        return re.search(r"http://\S+/\?key=\S+", self.printed())[0]

    def printed(self) -> str:
        """What it has printed so far."""
        return self._process.log()
