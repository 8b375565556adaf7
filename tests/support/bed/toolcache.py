"""Where what recipes make is kept: one folder for each, whole or not at all.

A folder's name has the hash of what went in and the Go that built it, so that nothing is ever
renewed in place. It is made beside its place, under a lock that all callers share, and renamed into
it when it is whole.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tests.support.bed.gomodules import Go, Recipe, ToolsMissing

UNFINISHED = ".unfinished-"
QUIET_SECONDS = 60.0
"""How often a build that nobody watches says that it is alive."""


class Progress:
    """What one step of a build says: one line, renewed in place where the stream is a terminal."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title, self._stream = title, stream
        self._started = self._said = time.monotonic()

    def __call__(self, packages: int) -> None:
        """Tell how far it is, but elsewhere than on a terminal only now and then."""
        line = f"{packages} packages compiled, {self.elapsed()}"
        if self._stream.isatty():
            print(f"\r\033[K{self._title}: {line}", end="", file=self._stream, flush=True)
        elif time.monotonic() - self._said >= QUIET_SECONDS:
            self.say(line)

    def say(self, text: str) -> None:
        start = "\r\033[K" if self._stream.isatty() else ""
        print(f"{start}{self._title}: {text}", file=self._stream, flush=True)
        self._said = time.monotonic()

    def elapsed(self) -> str:
        """As ``3m10s``."""
        minutes, seconds = divmod(round(time.monotonic() - self._started), 60)
        return f"{minutes}m{seconds:02}s"


@dataclass(frozen=True)
class Cache:
    """A folder of made folders, and the Go that adds to it."""

    folder: Path
    go: Go | None

    def find(self, recipe: Recipe) -> Path | None:
        """The folder that the recipe has made, if it has.

        Files are the same whatever Go fetched them; programs are of the Go that is here, or
        without one of any.
        """
        by = self.go.version if self.go and recipe.programs else "*"
        return max(self.folder.glob(f"{recipe.label}-{recipe.digest()}-{by}"), default=None)

    def make(self, recipe: Recipe, progress: Progress) -> Path:
        """The folder, made now unless another caller has just done so.

        Raises:
            ToolsMissing: there is no Go, it is too old, or it has failed.
        """
        if not self.go:
            raise ToolsMissing(
                "building the cluster tools needs Go (https://go.dev/dl), and there is none in PATH"
            )
        with self._lock(progress):
            if made := self.find(recipe):
                progress.say(f"ready, made by another, in {made}")
                return made
            self._remove(self.folder.glob(f"{UNFINISHED}*"))  # of builds that were killed
            log = self.folder / f"{recipe.label}.log"
            place = self.folder / f"{recipe.label}-{recipe.digest()}-{self.go.version}"
            with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=self.folder) as temporary:
                unfinished = Path(temporary, "made")
                unfinished.mkdir()
                progress.say(f"making {recipe.pins} {recipe.version}, log in {log}")
                self.go.make(recipe, unfinished, log, progress)
                unfinished.rename(place)
            progress.say(f"ready after {progress.elapsed()}, in {place}")
            return place

    def prune(self, recipes: Collection[Recipe], progress: Progress) -> list[Path]:
        """Delete what none of the recipes makes; the folders that are gone."""
        with self._lock(progress):
            current = {self.find(recipe) for recipe in recipes}
            old = [path for path in self.folder.iterdir() if path.is_dir() and path not in current]
            self._remove(old)
            return old

    @contextlib.contextmanager
    def _lock(self, progress: Progress) -> Iterator[None]:
        """Be the only one to change the folder, as long as go runs, which inherits the lock."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            os.set_inheritable(lock.fileno(), True)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.say("waiting for another build")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _remove(self, folders: Iterable[Path]) -> None:
        for folder in folders:
            shutil.rmtree(folder)
