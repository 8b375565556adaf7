"""The flags that name who measures what pods use, and their checks."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from vgpu.program.flags import Decorator, composed
from vgpucli.flags import ACCESS, access_flags

if TYPE_CHECKING:
    from vgpucli.measured_use import Measured


def measure_flags(which: str) -> Decorator:
    """--prometheus, --exporter, and what such a server may require; ``which`` begins their help."""
    return composed(
        click.option(
            "--prometheus",
            metavar="URL",
            help=f"{which} from a Prometheus that scrapes the exporters, such as"
            " http://localhost:9090.",
        ),
        click.option(
            "--exporter",
            "exporters",
            multiple=True,
            metavar="URL",
            help=f"{which} from the exporter of the node, such as http://gpu-7:9394. Repeatable.",
        ),
        access_flags("an https --prometheus or --exporter"),
    )


def measuring(
    prometheus: str | None,
    exporters: Sequence[str],
    access: Mapping[str, str | None],
    *,
    limits: bool = False,
) -> "Callable[[str], Measured] | None":
    """A function that reads what a pod uses, by its UID, or with "" all pods.

    With ``limits`` also whether the containers are limited. None if no flag names a server. Raises
    click.UsageError; the function raises click.ClickException.
    """
    if prometheus and exporters:
        raise click.UsageError("--prometheus and --exporter: choose one")
    if not (prometheus or exporters):
        if any(access.values()):
            names = ", ".join(f"--{name.replace('_', '-')}" for name in ACCESS)
            raise click.UsageError(f"{names} need --prometheus or --exporter")
        return None
    from vgpu.sources.http_access import ClientOptions  # noqa: PLC0415
    from vgpucli.measured_use import sources  # noqa: PLC0415  # only these flags need it

    return sources(prometheus, exporters, ClientOptions(**access), limits=limits)
