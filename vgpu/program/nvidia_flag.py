"""The flag of all programs that names more resources of NVIDIA's own device plugin."""

import re
from typing import Any, Final

import click

from vgpu.program.flags import env, field
from vgpu.schemes.nvidia.resources import is_nvidia_resource, other_names

NVIDIA_RESOURCE: Final = "--nvidia.resource"

_DOMAIN: Final = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
_NAME: Final = r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_RESOURCE: Final = re.compile(f"{_DOMAIN}/{_NAME}")


class _ResourceName(click.ParamType[str]):
    """An extended resource that no sharing system has."""

    name = "resource"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name; refuses what Kubernetes would not take, and what is known already."""
        text = str(value)
        if not _RESOURCE.fullmatch(text):
            self.fail(f"{text!r} is not a resource such as example.com/gpu", param, ctx)
        if is_nvidia_resource(text):
            self.fail(f"{text!r} is known without this flag", param, ctx)
        from vgpu.schemes.registry import registry  # noqa: PLC0415  # slow to import

        for codec in registry().codecs({}):
            if text in codec.resources:
                self.fail(f"{text!r} is a resource of {codec.name}", param, ctx)
        return text


def _in_force(ctx: click.Context, _: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Let the names hold until the command ends."""
    ctx.with_resource(other_names(names))
    return names


nvidia_resource_flag: Final = click.option(
    NVIDIA_RESOURCE,
    field(NVIDIA_RESOURCE),
    type=_ResourceName(),
    multiple=True,
    envvar=env(NVIDIA_RESOURCE),
    callback=_in_force,
    expose_value=False,
    metavar="NAME",
    help="A resource of NVIDIA's own device plugin under another name than nvidia.com/gpu,"
    " nvidia.com/gpu.shared and nvidia.com/mig-…; repeatable.",
)
"""The names hold for the process while its command runs; commands get no parameter."""
