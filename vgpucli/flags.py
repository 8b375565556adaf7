"""Flags of several commands: the units of memory, and the access to servers."""

from typing import Final

import click

from vgpu.program.flags import AUTO, Decorator, MemoryUnit, composed

unit_flags: Final = composed(
    click.option(
        "--volcano.memory-factor",
        "volcano_factor",
        type=click.IntRange(1, 1 << 20),
        default=1,
        show_default=True,
        envvar="VGPU_VOLCANO_MEMORY_FACTOR",
        metavar="MIB",
        help="What one unit of volcano.sh/vgpu-memory means: the plugin's gpu-memory-factor.",
    ),
    click.option(
        "--gpushare.memory-unit",
        "gpushare_unit",
        type=MemoryUnit(auto=True),
        default=AUTO,
        show_default=True,
        envvar="VGPU_GPUSHARE_MEMORY_UNIT",
        metavar="UNIT",
        help="What one unit of aliyun.com/gpu-mem means: GiB, MiB, or so many of them (256MiB);"
        " auto chooses by the size of the GPUs and prints its choice.",
    ),
)
"""What one unit of each sharing system's memory means: volcano_factor and gpushare_unit."""

ACCESS: Final = ("ca_file", "cert", "key", "username", "password_file")
"""The parameters of :func:`access_flags`: the fields of the HTTP client's options."""


def access_flags(server: str) -> Decorator:
    """The flags of what a server may require: ``server`` is the one with TLS, for people."""
    file = click.Path()
    return composed(
        click.option("--ca-file", type=file, metavar="FILE", help=f"CA of {server}."),
        click.option("--cert", type=file, metavar="FILE", help="Client certificate, if it asks."),
        click.option("--key", type=file, metavar="FILE", help="Its key, if not in --cert."),
        click.option("--username", metavar="NAME", help="For basic authentication."),
        click.option("--password-file", type=file, metavar="FILE", help="Its password."),
    )
