"""The flags of the web server, the same for all programs that serve, and their values."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import click
import msgspec

from vgpu.program.flags import Decorator, env, field
from vgpu.web.connections import MAX_CONNECTIONS, MAX_PER_ADDRESS
from vgpu.web.listen import ListenError, parse_address
from vgpu.web.server import MAX_BODIES, MAX_REQUESTS

LISTEN_FLAG = "--web.listen-address"
PROBE_FLAG = "--web.probe-address"


class WebOptions(msgspec.Struct, frozen=True):
    """The flags of the group, parsed.

    ``listen_flag`` is the first one as errors name it. ``probe_address`` is None where the probes
    are on the listen addresses only.
    """

    listen_address: tuple[str, ...]
    config_file: str | None = None
    max_requests: int = MAX_REQUESTS
    max_connections: int = MAX_CONNECTIONS
    max_connections_per_address: int = MAX_PER_ADDRESS
    listen_flag: str = LISTEN_FLAG
    max_bodies: int = MAX_BODIES
    probe_address: str | None = None

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Self:
        """Those among the parameters of a command, whose names begin with ``web_``."""
        names = {f"web_{name}": name for name in cls.__struct_fields__}
        return cls(**{names[key]: value for key, value in params.items() if key in names})


class ListenAddress(click.ParamType[str]):
    """``host:port``; whether it can be listened on is found at the start."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is; refuses what is no address."""
        try:
            parse_address(str(value))
        except ListenError as error:
            self.fail(f"{error.address!r}: {error.problem}", param, ctx)
        return str(value)


class WebFlags(NamedTuple):
    """The group, in the order of the help."""

    listen_address: Decorator
    config_file: Decorator
    probe_address: Decorator
    max_connections: Decorator
    max_per_address: Decorator


def web_flags(
    address: str,
    *aliases: str,
    max_connections: int = MAX_CONNECTIONS,
    max_per_address: int = MAX_PER_ADDRESS,
) -> WebFlags:
    """The group of a program that serves on ``address``; ``aliases`` are of the first flag.

    ``max_connections`` and ``max_per_address`` are the defaults of their flags.
    """
    return WebFlags(
        _flag(
            LISTEN_FLAG,
            "Address to serve on; repeatable. An empty host is every address.",
            *aliases,
            type=ListenAddress(),
            multiple=True,
            default=(address,),
            show_default=True,
            metavar="ADDRESS",
        ),
        _flag(
            "--web.config.file",
            "TLS, client certificates and basic authentication, in exporter-toolkit's format.",
            type=click.Path(),
            metavar="FILE",
        ),
        _flag(
            PROBE_FLAG,
            "Address that serves the liveness and readiness probes, and nothing else, without TLS"
            " and passwords: for a kubelet that has no client certificate.",
            type=ListenAddress(),
            metavar="ADDRESS",
        ),
        _flag(
            "--web.max-connections",
            "Maximum open connections; beyond it the longest-stalled one is closed.",
            default=max_connections,
            show_default=True,
            type=click.IntRange(min=1),
        ),
        _flag(
            "--web.max-connections-per-address",
            "The same for the connections of one client's address. Raise it for a proxy.",
            default=max_per_address,
            show_default=True,
            type=click.IntRange(min=1),
        ),
    )


def _flag(name: str, help_: str, *aliases: str, **kwargs: Any) -> Decorator:
    return click.option(name, *aliases, field(name), envvar=env(name), help=help_, **kwargs)
