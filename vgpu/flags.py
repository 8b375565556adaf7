"""Flags of the long-running programs: each also an environment variable, and durations.

``--web.listen-address`` is also ``VGPU_WEB_LISTEN_ADDRESS``; a repeatable flag takes a
space-separated list there.
"""

from typing import Any, Final

import click
from click.core import ParameterSource

from vgpu.durations import parse_duration
from vgpu.units import GIB, MIB

MEMORY_UNITS: Final = {"MiB": MIB, "GiB": GIB}
"""What one unit of aliyun.com/gpu-mem can mean."""

_DAY: Final = 86400.0


class Duration(click.ParamType[float]):
    """Seconds, more than none and less than a day's."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """To seconds; refuses what is not positive."""
        if isinstance(value, float):
            return value
        text = str(value)
        try:
            seconds = parse_duration(text)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < _DAY:
            self.fail(f"{text!r} is not a duration such as 15s, 500ms or 1m30s", param, ctx)
        return seconds


def field(flag: str) -> str:
    """The Python name of a flag: --web.listen-address is web_listen_address."""
    return flag.lstrip("-").replace(".", "_").replace("-", "_")


def env(flag: str) -> str:
    """The environment variable of a flag."""
    return "VGPU_" + field(flag).upper()


def is_typed(ctx: click.Context, name: str, *, or_set: bool = False) -> bool:
    """Whether a flag, by its Python name, was typed; with ``or_set`` the environment counts too."""
    source = ctx.get_parameter_source(name)
    environment = or_set and source is ParameterSource.ENVIRONMENT
    return source is ParameterSource.COMMANDLINE or environment
