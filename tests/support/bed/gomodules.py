"""What is made of the pinned Go modules in ``go/``, and how.

A module's go.mod names its programs (its ``tool`` lines) and every version; its go.sum pins every
byte. So the same Go makes the same bytes of any clean checkout, and a hash of what goes in can name
what comes out.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

GO_ENVIRONMENT = {
    "CGO_ENABLED": "0",  # static: a program runs on any root filesystem
    "GOARCH": "",
    "GOFLAGS": "",
    "GOOS": "",
    "GOTOOLCHAIN": "local",  # the Go that is here, never one that it would fetch
    "GOWORK": "off",
}
GO_BUILD = ("build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false")
TAIL_LINES = 20

Report = Callable[[int], None]
"""Gets the number of packages compiled so far, once a second."""


class ToolsMissing(Exception):  # noqa: N818 - a state of this machine, not a fault
    """Why there are no tools and what to do about it: one line, and then perhaps a log's end."""


@dataclass(frozen=True)
class Recipe:
    """What is made of one module: ``programs``, or ``kept``, folders of the Go module it pins."""

    folder: Path
    """Its go.mod, go.sum and own code."""
    pins: str
    """The path of the Go module that it is about."""
    programs: tuple[str, ...] = ()
    multicall: str = ""
    """The one binary that is each of the programs when called by its name, if there is one."""
    stamps: tuple[str, ...] = ()
    """``package.variable=value`` for the linker; ``{version}`` is that of ``pins``."""
    tags: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.folder.name}-files" if self.kept else self.folder.name

    @property
    def version(self) -> str:
        return pinned_version(self.folder, self.pins)

    def digest(self) -> str:
        """A hash of all that goes in, except for the Go that builds it."""
        settings = (self.programs, self.multicall, self.stamps, self.tags, self.kept)
        content = hashlib.sha256(repr((settings, GO_BUILD, GO_ENVIRONMENT)).encode())
        for file in sorted(self.folder.rglob("*")):
            if file.suffix in {".go", ".mod", ".sum"}:
                content.update(f"\0{file.relative_to(self.folder)}\0".encode() + file.read_bytes())
        return content.hexdigest()[:16]


def pinned_version(folder: Path, module: str) -> str:
    """The version of a Go module that the go.mod in ``folder`` requires."""
    return _in_go_mod(folder, rf"(?:require |\t){re.escape(module)} (v\S+)")


@dataclass(frozen=True)
class Go:
    """The Go of this machine."""

    program: str
    version: str
    """Such as ``go1.26.8-linux-amd64``."""

    def make(self, recipe: Recipe, into: Path, log: Path, report: Report) -> None:
        """Write what the recipe makes into an empty folder.

        Raises:
            ToolsMissing: this Go is too old, or has failed.
        """
        needed = _in_go_mod(recipe.folder, r"go (\S+)$")
        if _numbers(self.version) < _numbers(needed):
            raise ToolsMissing(
                f"the cluster tools need Go {needed} or newer and {self.program} is {self.version}:"
                " install a newer one (https://go.dev/dl) and put it first in PATH"
            )
        if recipe.kept:
            self._copy_files(recipe, into, log, report)
        else:
            self._build_programs(recipe, into, log, report)

    def _build_programs(self, recipe: Recipe, into: Path, log: Path, report: Report) -> None:
        stamps = (f"-X {stamp.format(version=recipe.version)}" for stamp in recipe.stamps)
        flags = (f"-tags={','.join(recipe.tags)}", f"-ldflags={' '.join(('-s -w', *stamps))}")
        self._run(recipe, (*GO_BUILD, *flags, "-o", f"{into}/", "tool"), log, report)
        if recipe.multicall:
            for program in recipe.programs:
                (into / program).symlink_to(recipe.multicall)

    def _copy_files(self, recipe: Recipe, into: Path, log: Path, report: Report) -> None:
        if f"{recipe.pins} {recipe.version} h1:" not in (recipe.folder / "go.sum").read_text():
            # go would trust what it is sent and write the sum down
            raise ToolsMissing(f"{recipe.folder / 'go.sum'} does not pin {recipe.pins}")
        downloaded = self._run(recipe, ("mod", "download", "-json", recipe.pins), log, report)
        source = Path(json.loads(downloaded)["Dir"])
        for kept in recipe.kept:
            for file in (source / kept).rglob("*"):
                if file.is_file():
                    target = into / file.relative_to(source)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, target)  # as ours: Go's own folders are read-only

    def _run(self, recipe: Recipe, arguments: tuple[str, ...], log: Path, report: Report) -> str:
        """What go prints, run in the module's folder."""
        with (
            tempfile.TemporaryFile("w+") as output,
            log.open("w") as errors,
            subprocess.Popen(
                (self.program, *arguments),
                cwd=recipe.folder,
                env={**os.environ, **GO_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                close_fds=False,  # the lock of the cache is held as long as go runs, even alone
            ) as process,
        ):
            try:
                while process.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=1)
                    report(_packages(log))
            finally:
                process.kill()
            output.seek(0)
            printed = output.read()
        if process.returncode:
            with log.open(errors="replace") as lines:
                last = "".join(deque(lines, maxlen=TAIL_LINES)) or printed
            raise ToolsMissing(
                f"go cannot make {recipe.label} (status {process.returncode}); the end of {log}:\n"
                f"{last}".rstrip()
            )
        return printed


def find_go() -> Go | None:
    """The Go in PATH, if there is one that runs."""
    program = shutil.which("go")
    if not program:
        return None
    environment = {**os.environ, **GO_ENVIRONMENT}
    version = subprocess.run(
        (program, "version"), capture_output=True, text=True, env=environment, check=False
    )
    words = version.stdout.split()  # go version go1.26.8 linux/amd64
    if version.returncode or len(words) < 4:
        return None
    return Go(program, "-".join(words[2:]).replace("/", "-"))


def _in_go_mod(folder: Path, line: str) -> str:
    found = re.search(f"^{line}", (folder / "go.mod").read_text(), re.MULTILINE)
    if not found:
        raise ValueError(f"{folder / 'go.mod'} has no line like {line!r}")
    return found[1]


def _numbers(version: str) -> tuple[int, ...]:
    """``go1.26.8-linux-amd64`` and ``1.26.0`` as what can be compared."""
    found = re.search(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in found[0].split(".")) if found else ()


def _packages(log: Path) -> int:
    """``go build -v`` prints the path of each package that it compiles."""
    with log.open(errors="replace") as lines:
        return sum(not line.startswith(("go: ", "#", "\t")) for line in lines)
