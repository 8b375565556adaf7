"""The flags of resources under other names. Their help needs no registry: it is slow to import."""

import re
from collections.abc import Callable
from typing import Any, Final

import click

from vgpu.program.flags import Decorator, composed, env, field
from vgpu.program.nvidia_flag import nvidia_resource_flag
from vgpu.schemes.resource_names import (
    ORIGINAL_NAMES,
    NamesSource,
    named_twice,
    roles,
    typed_role,
)
from vgpu.schemes.system_titles import system_title

_RESOURCE: Final = re.compile(
    r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
)


class _NamedRole(click.ParamType[tuple[str, str]]):
    """A role of a system's resources and its name, ``count=nvidia.com/vgpu``."""

    name = "role"

    def __init__(self, system: str) -> None:
        self._roles = {typed_role(role): role for role in roles(system)}

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """The role, by the field of :class:`ResourceNames`, and the name."""
        if isinstance(value, tuple):
            return value
        typed, _, resource = str(value).partition("=")
        if typed not in self._roles:
            self.fail(f"{value!r} does not begin with {' or '.join(self._roles)} and =", param, ctx)
        if not _RESOURCE.fullmatch(resource):
            self.fail(f"{resource!r} is not a resource such as example.com/gpu", param, ctx)
        return self._roles[typed], resource


def _callback(system: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def put_in_force(ctx: click.Context, param: click.Parameter, given: Any) -> None:
        if not given:
            return
        from vgpu.schemes.registry import registry, renamed  # noqa: PLC0415  # slow to import

        names = {system: registry().names[system].renamed(dict(given))}
        twice = named_twice({**registry().names, **names})
        if twice:
            name, first, second = twice
            raise click.BadParameter(f"{name} is both {first} and {second}", ctx, param)
        ctx.with_resource(renamed(names, NamesSource.FLAG))

    return put_in_force


def _flag(system: str) -> Decorator:
    name = f"--{system}.resource"
    known = ", ".join(
        f"{typed_role(role)} ({getattr(ORIGINAL_NAMES[system], role)})" for role in roles(system)
    )
    return click.option(
        name,
        field(name),
        type=_NamedRole(system),
        multiple=True,
        envvar=env(name),
        callback=_callback(system),
        expose_value=False,
        metavar="ROLE=NAME",
        help=f"A resource of {system_title(system)} under another name than the original's; the"
        f" roles are {known}. Repeatable.",
    )


renamed_resource_flags: Final = composed(*map(_flag, ORIGINAL_NAMES))
"""The flags of the systems whose operators may rename resources; commands get no parameter."""

resource_flags: Final = composed(nvidia_resource_flag, renamed_resource_flags)
"""The same, and that of NVIDIA's own device plugin."""
