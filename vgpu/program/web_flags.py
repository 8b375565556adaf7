"""The flags of the HTTP server's bounds, the same for all programs that serve."""

from collections.abc import Callable
from typing import Any, Final

import click

from vgpu.program.flags import env, field
from vgpu.web.connections import MAX_CONNECTIONS, MAX_PER_ADDRESS


def _flag(name: str, default: int, help_: str) -> Callable[[Any], Any]:
    return click.option(
        name,
        field(name),
        default=default,
        show_default=True,
        envvar=env(name),
        type=click.IntRange(min=1),
        help=help_,
    )


max_connections: Final = _flag(
    "--web.max-connections",
    MAX_CONNECTIONS,
    "Open connections at a time. One more takes the place of one that waits for its client.",
)
max_per_address: Final = _flag(
    "--web.max-connections-per-address",
    MAX_PER_ADDRESS,
    "The same for the connections of one client's address. Raise it for a proxy.",
)
