"""How commands find the API server, or a dump of it, and their messages when they cannot."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from vgpu.reasons import SourceError

if TYPE_CHECKING:  # slow to import: only commands that use the API server wait
    from vgpu.kube.client import ApiClient

HINTS: Final[Mapping[str, str]] = {
    "Forbidden": "Ask for this permission, or use another --context.",
    "Unauthorized": "The credentials were refused: log in again, or use another --context.",
    "NotFound": "Check the spelling and the --context.",
    "Unreachable": "Check the --context, and whether the server is up.",
    "WrongClock": "Ages cannot be computed: correct the clock or run it elsewhere.",
}
"""Hints for the user, by the reason of a ClusterError."""


def kubeconfig_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --kubeconfig and --context."""
    for option in (
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
    kubeconfig: str, context: str, *, gather: float | None = None
) -> Iterator["ApiClient"]:
    """A connection; a failure on it ends the command with status 1 and a hint what to do.

    ``gather`` is as in :class:`vgpu.kube.connection.ApiConnection`; None is its default.
    """
    from vgpu.kube.client import ApiClient  # noqa: PLC0415  # see above
    from vgpu.kube.connection import ClusterError  # noqa: PLC0415  # see above

    try:
        options = {} if gather is None else {"gather": gather}
        with ApiClient.connect(kubeconfig, context, **options) as cluster:
            yield cluster
    except ClusterError as error:
        message = str(error) if error.status else error.message
        hint = HINTS.get(error.reason)
        raise click.ClickException(f"{message}\n{hint}" if hint else message) from error
    except SourceError as error:
        raise click.ClickException(f"{error}\nThat is no answer of Kubernetes.") from error


def read_dump(path: str) -> tuple[bytes, float]:
    """The file of ``--from``, ``-`` for standard input, and when it was written, in unix seconds.

    Raises click.ClickException.
    """
    if path == "-":
        if sys.stdin.isatty():
            raise click.UsageError(
                "--from - reads standard input, which is the terminal: pipe a dump into it"
            )
        content, written = sys.stdin.buffer.read(), time.time()
    else:
        try:
            file = Path(path)
            content, written = file.read_bytes(), file.stat().st_mtime
        except OSError as error:
            raise click.ClickException(f"--from {path}: {error.strerror}") from error
    if not content.strip():
        raise click.ClickException(f"--from {path}: it is empty. Has kubectl failed?")
    return content, written
