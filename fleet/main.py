"""`vgpu fleet`: the page about all shared GPUs of a cluster, for people; read-only."""

import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final

import click

from vgpu.model.documentation import page
from vgpu.model.units import MIB
from vgpu.program.flags import Duration
from vgpu.program.host import CannotServe, ProgramHost, program_flags
from vgpu.program.kube_flags import connected, kubeconfig_flags, reads_dumps
from vgpu.program.output import say
from vgpu.program.resource_flags import resource_flags
from vgpu.program.web_flags import LISTEN_FLAG, WebOptions
from vgpu.web.listen import parse_address
from vgpucli.flags import ACCESS, unit_flags
from vgpucli.measure_flags import measure_flags, measuring

if TYPE_CHECKING:
    from fleet.snapshot import FleetSnapshot

DEFAULT_ADDRESS: Final = "127.0.0.1:9404"

EPILOG: Final = f"""\
\b
Examples:
  vgpu fleet                            the cluster of the kubeconfig
  vgpu fleet --from dump.json           a dump of kubectl
  vgpu fleet --prometheus http://localhost:9090
                                        and what the pods use, and used before
  vgpu fleet --web.listen-address 127.0.0.1:0
                                        on any free port

\b
The address that it prints has a key, which works once, in one browser. What the page shows, and
what it reads: {page("fleet")}.
"""


@click.command("fleet", epilog=EPILOG, context_settings={"max_content_width": 100})
@click.option(
    "--from",
    "files",
    multiple=True,
    metavar="FILE",
    help="Read 'kubectl get … -A -o json' from a file, or from - for standard input, and ask no API"
    " server. Repeatable.",
)
@click.option(
    "--interval",
    type=Duration(),
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="Time between two reads of the API server.",
)
@click.option(
    "--team-key",
    default="team",
    show_default=True,
    metavar="KEY",
    help="The label, or else the annotation, that has the team: of the pod, or else of its"
    " Namespace.",
)
@measure_flags("What pods use, with each read:")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@unit_flags
@resource_flags
@kubeconfig_flags
@program_flags(DEFAULT_ADDRESS)
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Show all shared GPUs of a cluster on a page: what is wrong, who waits and why, what is free.

    The page is for a browser on this machine; on other addresses it is for all who may see
    everything, with TLS and passwords or client certificates (--web.config.file). It reads the API
    server again and again, and changes nothing.
    """
    far = _far_address(WebOptions.of(ctx.params))
    is_dump = reads_dumps(flags["files"])
    with ExitStack() as stack:
        host = stack.enter_context(ProgramHost.from_flags(ctx.params))
        every = 0.0 if is_dump else flags["interval"]
        if far and not host.knows_its_clients:
            raise CannotServe(
                f"{LISTEN_FLAG} {far!r}: other machines reach it, so --web.config.file has to"
                " require TLS, and passwords or client certificates; for this machine alone:"
                f" {DEFAULT_ADDRESS}"
            )
        from fleet.door import Door  # noqa: PLC0415
        from fleet.service import page_service  # noqa: PLC0415  # slow to import

        door = Door()
        make = _maker(stack, flags, is_dump=is_dump)
        guarded = (lambda handler: handler) if far else door.guarded
        host.start(stack.enter_context(page_service(make, every, guarded)))
        address = host.urls[0] if far else door.address(*host.urls)
        say(f"The page{'' if far else ', for one browser on this machine'}: {address}")
        if flags["opens"]:
            webbrowser.open(address if far else stack.enter_context(_opening_file(address)))
        host.wait()
    ctx.exit(host.leave())


@contextmanager
def _opening_file(address: str) -> Iterator[str]:
    """The URL of a file, for this user alone, that leads to the address with its key."""
    from fleet.door import opening_page  # noqa: PLC0415

    with NamedTemporaryFile("w", prefix="vgpu-fleet-", suffix=".html", encoding="utf-8") as file:
        file.write(opening_page(address))
        file.flush()
        yield Path(file.name).as_uri()


def _far_address(web: WebOptions) -> str:
    """The first address that other machines reach, "" if there is none."""
    near = ("127.0.0.1", "localhost", "::1")
    return next((each for each in web.listen_address if parse_address(each)[0] not in near), "")


def flags_to_copy(flags: dict[str, Any]) -> tuple[str, ...]:
    """The flags with which other commands read the same cluster or files, in the same units."""
    unit, factor = flags["gpushare_unit"], flags["volcano_factor"]
    given = {
        "--kubeconfig": flags["kubeconfig"],
        "--context": flags["context"],
        "--gpushare.memory-unit": f"{unit // MIB}MiB" if isinstance(unit, int) else "",
        "--volcano.memory-factor": "" if factor == 1 else str(factor),
    }
    words = [("--from", file) for file in flags["files"]]
    words += [(flag, value) for flag, value in given.items() if value]
    return tuple(word for pair in words for word in pair)


def _maker(
    stack: ExitStack, flags: dict[str, Any], *, is_dump: bool
) -> "Callable[[], FleetSnapshot]":
    """A function that reads and answers. Raises click.ClickException."""
    from fleet.history import History  # noqa: PLC0415
    from fleet.measured import tolerant  # noqa: PLC0415
    from fleet.read import of_cluster, of_files  # noqa: PLC0415
    from fleet.snapshot import snapshot  # noqa: PLC0415
    from vgpu.inventory import Units  # noqa: PLC0415
    from vgpu.sources.http_access import ClientOptions  # noqa: PLC0415

    access = {each: flags[each] for each in ACCESS}
    prometheus = flags["prometheus"]
    measure = measuring(prometheus, flags["exporters"], access, limits=True)
    measured = None if measure is None else tolerant(measure, prometheus or "")
    history = History(prometheus, ClientOptions(**access)) if prometheus else None
    units, team_key = Units(flags["volcano_factor"], flags["gpushare_unit"]), flags["team_key"]
    copied = flags_to_copy(flags)
    if is_dump:
        files = flags["files"]
        return lambda: snapshot(
            of_files(files, units, team_key), units, measured and measured(), history, copied
        )
    cluster = stack.enter_context(
        connected(flags["kubeconfig"], flags["context"], flags["request_timeout"])
    )
    return lambda: snapshot(
        of_cluster(cluster, units, team_key), units, measured and measured(), history, copied
    )
