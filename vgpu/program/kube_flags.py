"""How commands find the API server, or a dump of it, and their messages when they cannot."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from vgpu.model.reasons import Reason, SourceError
from vgpu.program.failures import HintedFailure
from vgpu.program.flags import Duration, is_typed

if TYPE_CHECKING:  # slow to import: only commands that use the API server wait
    from vgpu.apiserver.client import ApiClient

HINTS: Final[Mapping[str, str]] = {
    "Forbidden": "Ask for this permission, or use another --context.",
    "Unauthorized": "The credentials were refused: log in again, or use another --context.",
    "NotFound": "Check the spelling and the --context.",
    "Unreachable": "Check the --context, and whether the server is up.",
    "WrongClock": "Ages cannot be computed: correct the clock or run it elsewhere.",
}
"""Hints for the user, by the reason of a ClusterError."""

_NOT_KUBERNETES: Final = "Check the server of the --context, and the proxies before it."

_API_FLAGS: Final = ("kubeconfig", "context", "request_timeout")
"""The Python names of the flags of :func:`kubeconfig_flags`."""

REQUEST_SECONDS: Final = 30.0
"""Default of --request-timeout for a command that a person waits for, in seconds."""


def kubeconfig_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --kubeconfig, --context and --request-timeout."""
    for option in (
        click.option(
            "--request-timeout",
            type=Duration(),
            metavar="DURATION",
            help="Maximum time to wait for an answer of the API server.  [default: 30s; for"
            " `reconcile run` 1m]",
        ),
        click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig."),
        click.option(
            "--kubeconfig",
            default="",
            metavar="FILE",
            help="How to reach the API server.  [default: $KUBECONFIG, ~/.kube/config, or the"
            " ServiceAccount of the pod]",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def connected(
    kubeconfig: str,
    context: str,
    request_timeout: float | None = None,
    *,
    waits: bool = False,
    gather: float | None = None,
    connections: int | None = None,
) -> Iterator["ApiClient"]:
    """A connection; a failure on it ends the command with status 1 and a hint what to do.

    ``request_timeout`` is in seconds; without it a program that ``waits`` for a busy server has
    the long one of :mod:`vgpu.apiserver.retries`, and any other REQUEST_SECONDS. ``gather`` and
    ``connections`` are as in :class:`vgpu.apiserver.connection.ApiConnection`; None is its default.
    """
    from vgpu.apiserver.client import ApiClient  # noqa: PLC0415  # see above
    from vgpu.apiserver.connection import ClusterError  # noqa: PLC0415  # see above
    from vgpu.apiserver.retries import AGAIN, UNLESS_SILENT  # noqa: PLC0415  # see above

    patience = request_timeout or (0.0 if waits else REQUEST_SECONDS)
    retries = AGAIN if waits else UNLESS_SILENT
    server = ""
    try:
        options: dict[str, Any] = {} if gather is None else {"gather": gather}
        if connections is not None:
            options["connections"] = connections
        with ApiClient.connect(
            kubeconfig, context, patience=patience, retries=retries, **options
        ) as cluster:
            server = cluster.server
            yield cluster
    except ClusterError as error:
        message = str(error) if error.status else error.message
        if server not in message:
            message = f"{server}: {message}"
        is_foreign = error.reason.startswith("HTTP ")
        hint = _NOT_KUBERNETES if is_foreign else HINTS.get(error.reason)
        raise HintedFailure(message, hint or "") from error
    except SourceError as error:
        hint = _NOT_KUBERNETES if error.reason is Reason.MALFORMED else ""
        raise HintedFailure(str(error), hint) from error


def reads_dumps(files: Sequence[str]) -> bool:
    """Whether the objects are those of the files of --from, and of no API server.

    Raises click.UsageError for flags that contradict this.
    """
    ctx = click.get_current_context()
    typed = [f"--{flag.replace('_', '-')}" for flag in _API_FLAGS if is_typed(ctx, flag)]
    if files and typed:
        raise click.UsageError(f"--from asks no cluster: drop {', '.join(typed)}", ctx)
    if files.count("-") > 1:
        raise click.UsageError("--from - can be read once only", ctx)
    return bool(files)


def not_a_dump(problem: str, flag: str = "--from") -> click.ClickException:
    """The error for a file of the flag that is no dump."""
    hint = "It is to be the output of: kubectl get nodes,pods -A -o json"
    return HintedFailure(f"{flag} {problem}", hint)


ReadDump = Callable[[str], tuple[bytes, float]]
"""Reads a file as :func:`read_dump`."""


def reread(paths: Sequence[str]) -> ReadDump:
    """Reads files that are needed several times: standard input, which ends, is kept.

    Raises click.ClickException.
    """
    kept = {path: read_dump(path) for path in paths if path == "-"}

    def read(path: str) -> tuple[bytes, float]:
        return kept[path] if path in kept else read_dump(path)

    return read


def read_dump(path: str, flag: str = "--from") -> tuple[bytes, float]:
    """The file of a flag, ``-`` for standard input, and when it was written, in unix seconds.

    Raises click.ClickException.
    """
    if path == "-":
        if sys.stdin.isatty():
            raise click.UsageError(
                f"{flag} - reads standard input, which is the terminal: pipe a file into it"
            )
        content, written = sys.stdin.buffer.read(), time.time()
    else:
        try:
            file = Path(path)
            content, written = file.read_bytes(), file.stat().st_mtime
        except OSError as error:
            raise click.ClickException(f"{flag} {path}: {error.strerror}") from error
    if not content or content.isspace():
        raise click.ClickException(f"{flag} {path}: it is empty. Has kubectl failed?")
    return content, written
