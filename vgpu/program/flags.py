"""Flags of the long-running programs: each also an environment variable; durations and units.

``--web.listen-address`` is also ``VGPU_WEB_LISTEN_ADDRESS``; a repeatable flag takes a
space-separated list there.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import click
from click.core import ParameterSource

from vgpu.model.durations import parse_duration
from vgpu.model.units import GIB, MIB
from vgpu.program import logs

AUTO: Final = "auto"

Decorator = Callable[[Any], Any]
"""Adds flags to a command."""

_DAY: Final = 86400.0
_UNIT: Final = re.compile(r"([1-9][0-9]{0,6})(MiB|GiB)")


class Duration(click.ParamType[float]):
    """Seconds, more than 0 and less than a day."""

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


class ChoiceOf(click.Choice[str]):
    """One of the names that ``names`` returns at each use."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names
        super().__init__(tuple(names()))

    @property
    def choices(self) -> tuple[str, ...]:
        """The names, now."""
        return tuple(self._names())

    @choices.setter
    def choices(self, _: tuple[str, ...]) -> None:
        """Click's own initializer sets them: they are asked for instead."""


class MemoryUnit(click.ParamType[int | None]):
    """Bytes of one unit of aliyun.com/gpu-mem; with ``auto`` also that word, which is None."""

    name = "unit"

    def __init__(self, *, auto: bool = False) -> None:
        self._auto = auto

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """To bytes; refuses what is no amount."""
        if isinstance(value, int):
            return value
        text = str(value)
        if self._auto and text == AUTO:
            return None
        match = _UNIT.fullmatch(text if text[:1].isdigit() else f"1{text}")
        if match is None:
            words = "auto, GiB, MiB" if self._auto else "GiB, MiB"
            self.fail(f"{text!r} is not {words} or a number of them such as 256MiB", param, ctx)
        return int(match[1]) * (GIB if match[2] == "GiB" else MIB)


def field(flag: str) -> str:
    """The Python name of a flag: --web.listen-address is web_listen_address."""
    return flag.lstrip("-").replace(".", "_").replace("-", "_")


def env(flag: str) -> str:
    """The environment variable of a flag."""
    return "VGPU_" + field(flag).upper()


def composed(*decorators: Decorator) -> Decorator:
    """All flags, in the order of the help."""

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def log_flags(level: str) -> tuple[Decorator, Decorator]:
    """--log.level, ``level`` by default, and --log.format."""
    return (
        click.option(
            "--log.level",
            field("--log.level"),
            type=click.Choice(logs.LEVELS),
            default=level,
            show_default=True,
            envvar=env("--log.level"),
            help="Least severe log line, on standard error.",
        ),
        click.option(
            "--log.format",
            field("--log.format"),
            type=click.Choice(logs.FORMATS),
            default=logs.FORMATS[0],
            show_default=True,
            envvar=env("--log.format"),
            help="Form of the log.",
        ),
    )


def is_typed(ctx: click.Context, name: str, *, or_set: bool = False) -> bool:
    """Whether a flag, by its Python name, was typed; with ``or_set`` the environment counts too."""
    source = ctx.get_parameter_source(name)
    environment = or_set and source is ParameterSource.ENVIRONMENT
    return source is ParameterSource.COMMANDLINE or environment
