"""The flag ``--version`` of every program, and `vgpu version`."""

import platform

import click

from vgpu import __version__
from vgpu.program.output import say


def version_text() -> str:
    """What ``--version`` prints."""
    return f"vgpu {__version__} (python {platform.python_version()}, {platform.machine()})"


def print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Print the version and end."""
    if value and not ctx.resilient_parsing:
        say(version_text())
        ctx.exit()


version_option = click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Print the version and exit.",
)


@click.command("version", epilog="Example: vgpu version | cut -d' ' -f2")
def command() -> None:
    """Print the version and exit, as --version does."""
    say(version_text())
