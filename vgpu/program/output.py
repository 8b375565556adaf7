"""Standard output and standard error: the only way by which a command prints, and asks.

Nothing that a tenant or a server wrote reaches the terminal as a control character. Styled lines
are those of :mod:`vgpu.program.terminal`, and logs those of :mod:`vgpu.program.logs`.

A one-shot command asks on standard error before it writes. Only standard input decides whether
there is somebody to ask: standard output may be a pager, a file or a program that reads JSON.
Without a terminal on standard input, silence is no consent.
"""

import io
import re
import shutil
import sys
import textwrap
from typing import Final

import click

from vgpu.model.printable_text import printable, printable_lines


def say(*lines: str, err: bool = False) -> None:
    """Print lines; a line break within one is no printable character."""
    for line in lines or ("",):
        say_text(f"{printable(line)}\n", err=err)


def say_wrapped(*lines: str, err: bool = False) -> None:
    """Print lines; a terminal gets sentences that fit it, and anything else whole lines.

    A line with two blanks between words is a row of a table, and stays whole.
    """
    if not (sys.stderr if err else sys.stdout).isatty():
        say_text("".join(f"{printable(line)}\n" for line in lines), err=err)
        return
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    for line in map(printable, lines):
        text = line.lstrip()
        indent = line[: len(line) - len(text)]
        is_row = re.search(r"\S {2}", text)
        further = f"{indent}  "
        wrapped = textwrap.wrap(
            text, width, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False
        )
        say(*([line] if is_row or not wrapped else wrapped), err=err)


def say_text(text: str, *, err: bool = False) -> None:
    """Print a text as it is, whose line breaks are its own: its parts are printable already."""
    stream = sys.stderr if err else sys.stdout
    if isinstance(stream, io.TextIOWrapper):  # some terminals cannot show every name
        stream.reconfigure(errors="replace")
    click.echo(printable_lines(text), nl=False, err=err)


def say_document(text: str) -> None:
    """Print a text of a format that has no escapes, for another program.

    The program gets each character; a terminal, as always, printable ones only.
    """
    if sys.stdout.isatty():
        say_text(text)
    else:
        click.echo(text.encode(), nl=False)


_NARROWEST: Final = 40
"""Number of columns below which the terminal wraps the lines."""

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
