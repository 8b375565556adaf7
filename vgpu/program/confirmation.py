"""The question of a one-shot command before it writes: asked on standard error.

Only standard input decides whether there is somebody to ask: standard output may be a pager, a file
or a program that reads JSON. Without a terminal on standard input, silence is no consent.
"""

import sys
from typing import Final

import click

from vgpu.model.printable_text import printable
from vgpu.program.output import say, say_text

ANSWERS: Final = {"y": True, "yes": True, "n": False, "no": False, "": False}
"""The accepted answers; the empty one is no."""

NO_TERMINAL: Final = (
    "cannot ask for confirmation: standard input is not a terminal, so nothing was done; pass --yes"
)


yes_flag = click.option(
    "-y",
    "--yes",
    is_flag=True,
    allow_from_autoenv=False,
    help="Do not ask. Needed where standard input is not a terminal.",
)


def expect_terminal() -> None:
    """Raises click.UsageError (status 2) if nobody can be asked."""
    if not sys.stdin.isatty():
        raise click.UsageError(NO_TERMINAL, click.get_current_context(silent=True))


def is_confirmed(question: str) -> bool:
    """Whether the user answers yes.

    What standard output has so far is written before, since it is what the question is about.
    Raises click.UsageError as :func:`expect_terminal`, and click.Abort at the end of the input.
    """
    expect_terminal()
    sys.stdout.flush()
    while True:
        say_text(f"{printable(question)} [y/N]: ", err=True)
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError:
            line = "?"
        if not line:
            say(err=True)
            raise click.Abort
        answer = ANSWERS.get(line.strip().lower())
        if answer is not None:
            return answer
        say("Error: answer y or n", err=True)
