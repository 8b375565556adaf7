"""Standard output and standard error: the only way by which a command prints.

Nothing that a tenant or a server wrote reaches the terminal as a control character. Styled lines
are those of :mod:`vgpu.program.terminal`, and logs those of :mod:`vgpu.program.logs`.
"""

import io
import sys

import click

from vgpu.model.printable_text import printable, printable_lines


def say(*lines: str, err: bool = False) -> None:
    """Print lines; a line break within one is no printable character."""
    for line in lines or ("",):
        say_text(f"{printable(line)}\n", err=err)


def say_text(text: str, *, err: bool = False) -> None:
    """Print a text as it is, whose line breaks are its own: its parts are printable already."""
    stream = sys.stderr if err else sys.stdout
    if isinstance(stream, io.TextIOWrapper):  # some terminals cannot show every name
        stream.reconfigure(errors="replace")
    click.echo(printable_lines(text), nl=False, err=err)


def hand_over(text: str) -> None:
    """Print a text of a format that has no escapes, for another program.

    The program gets each character; a terminal, as always, printable ones only.
    """
    if sys.stdout.isatty():
        say_text(text)
    else:
        click.echo(text.encode(), nl=False)
