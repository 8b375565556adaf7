"""The commands that a user of the demo can try in another terminal."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vgpu.program.output import say
from vgpucli.demo.repair import audit_of
from vgpucli.demo.schedule import NAMESPACE, PODS_IN_GIB

_WAITING: Final = f"{NAMESPACE}/{list(PODS_IN_GIB)[-1]}"
"""The pod that waits."""


def show_more(kubeconfig: str) -> None:
    """Print the commands."""
    lines = [(f"{_ourselves()} {words}", why) for words, why in _commands(audit_of(kubeconfig))]
    width = max(len(line) for line, why in lines if why)
    say("  To try more, type in another terminal the two lines with export, and then:")
    for line, why in lines:
        say(f"    {line:<{width}}   # {why}" if why else f"    {line}")
    say()


def _commands(audit: str) -> Iterator[tuple[str, str]]:
    """The words of each command, and the question that it answers, if they do not say it."""
    yield "inspect", "who holds what"
    yield f"explain pod {_WAITING}", "why it waits"
    yield f"fit --pod {_WAITING} --pods 1 --defragment", "what to move, so that it fits"
    yield "doctor", "what is wrong with the installation"
    yield f"reconcile restore {audit} --audit {audit}.restored --yes", ""
    yield "reconcile plan", "what would be repaired again"


def _ourselves() -> str:
    """The command line that calls this program, for the user to repeat."""
    called = Path(sys.argv[0])
    if called.name != "__main__.py":
        return shlex.quote(called.name)
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return f"{shlex.quote(str(python))} -m vgpu"
