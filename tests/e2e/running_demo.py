"""The real `vgpu demo` (or `make demo`) as a process, stopped as a person stops it: by Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.environment import ROOT
from tests.support.waiting import WAIT_SECONDS, wait_until

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
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._cwd,
                env=self._env,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for it and its children alone
            )
        try:
            wait_until(self._serves, "served", seconds=2 * WAIT_SECONDS, context=self.printed)
        except BaseException:
            self.interrupt()
            raise
        self.url = re.search(r"http://[^/\s]+", self.printed())[0]
        return self

    def _serves(self) -> bool:
        assert not self._has_ended(), f"the demo has ended:\n{self.printed()}"
        return "Ctrl-C ends it" in self.printed()

    def _has_ended(self) -> bool:
        return self._process.poll() is not None

    def __exit__(self, *_: object) -> None:
        self.interrupt()

    def interrupt(self) -> int:
        """Ctrl-C, as the terminal gives it to the whole process group; the exit status."""
        if not self._has_ended():
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            wait_until(self._has_ended, "ended by Ctrl-C", context=self.printed)
        except AssertionError:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(WAIT_SECONDS)
            raise
        return self._process.returncode

    def printed(self) -> str:
        """What it has said so far."""
        return self._log.read_text()
