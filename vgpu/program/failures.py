"""What a person reads when a command fails, and its exit status: one form for all commands.

A wrong flag is ``Error: Invalid value for '--every' …`` after the command's usage, with status 2;
an error that the environment caused names the variable. Any other expected failure is one line,
with status 1. Ctrl-C prints nothing and has status 130, as a shell reports it. Only a defect has a
traceback.
"""

import contextlib
import errno
import io
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Final

import click
from click.core import ParameterSource
from click.exceptions import NoArgsIsHelpError

from vgpu.model.printable_text import printable
from vgpu.program.output import say, say_text
from vgpu.program.termination import EXIT_FAILURE

EXIT_INTERRUPTED: Final = 130
"""Exit status after Ctrl-C: 128 and the number of SIGINT."""

STANDARD_OUTPUT: Final = "standard output"

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class HintedFailure(click.ClickException):
    """An error whose second line is a hint of ours; of other errors only a help has line breaks."""

    def __init__(self, problem: str, hint: str) -> None:
        """``hint`` may be empty."""
        super().__init__(f"{printable(problem)}\n{hint}" if hint else printable(problem))


class _NamedOutput(io.FileIO):
    """Standard output whose errors have its name, so that they differ from those of files."""

    def write(self, content: object) -> int:
        """Write. Raises OSError with the name as its file name."""
        try:
            return super().write(content)  # type: ignore[arg-type]  # any buffer, as typeshed has it
        except OSError as error:
            raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from error


def name_standard_output() -> None:
    """Let errors of standard output have its name; a closed stream becomes one without an end."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number, which is this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115  # open as long as the process
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    stream = sys.stdout
    if stream is not sys.__stdout__:
        return  # a test reads it
    raw = _NamedOutput(1, "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        raw if getattr(stream, "write_through", False) else io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", None),
        errors=getattr(stream, "errors", None),
        line_buffering=getattr(stream, "line_buffering", False),
        write_through=getattr(stream, "write_through", False),
    )


def status_of(command: Callable[[], object]) -> int:
    """Run a command and report its failure; returns its exit status. Raises what is a defect."""
    try:
        status = command()
        if sys.stdout is not None:
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        reported = report(error)
        if reported is None:
            raise
        return reported
    return status if isinstance(status, int) else 0


def print_defect(
    kind: type[BaseException], error: BaseException, where: TracebackType | None
) -> None:
    """Print the traceback of a defect, which may quote what a tenant wrote: ``sys.excepthook``."""
    with contextlib.suppress(OSError):  # nobody can read standard error
        say_text("".join(traceback.format_exception(kind, error, where)), err=True)


def print_thread_defect(defect: threading.ExceptHookArgs) -> None:
    """The same for a thread: ``threading.excepthook``."""
    if defect.exc_value is not None:
        print_defect(defect.exc_type, defect.exc_value, defect.exc_traceback)


def report(error: BaseException) -> int | None:
    """Report an expected failure; returns its exit status, None for a defect."""
    with contextlib.suppress(OSError):  # nobody can read standard error
        return _report(error)
    return EXIT_FAILURE


def _report(error: BaseException) -> int | None:
    if isinstance(error, click.ClickException):
        if isinstance(error, click.BadParameter):
            error.param_hint = _with_variable(error)
        if not isinstance(error, HintedFailure | NoArgsIsHelpError):  # their line breaks are ours
            vars(error)["message"] = printable(error.message)
        text = io.StringIO()
        error.show(text)
        say_text(text.getvalue(), err=True)
        return error.exit_code
    origin = (error.__cause__ or error.__context__) if isinstance(error, click.Abort) else error
    if isinstance(origin, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    message = _message(error)
    if message is None:
        return None
    if message:
        say(message, err=True)
    return EXIT_FAILURE


def _message(error: BaseException) -> str | None:
    """What is printed; None for a defect."""
    if isinstance(error, click.Abort):
        return "Aborted!"
    if not isinstance(error, OSError):
        return None
    if error.filename == STANDARD_OUTPUT:
        _abandon_output()
        if error.errno == errno.EPIPE:  # a reader that has enough is no failure to report
            return ""
        return f"Error: {STANDARD_OUTPUT}: {error.strerror}"
    if error.errno in _FULL:
        return f"Error: cannot write {error.filename or 'a temporary file'}: {error.strerror}"
    return None


def _abandon_output() -> None:
    """Let what is still buffered go nowhere: Python writes it at its end, and would fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _with_variable(error: click.BadParameter) -> str:
    """The flag as click names it, and the environment variable if it is the source."""
    hint = error.param_hint
    if hint is None and error.param is not None:
        hint = error.param.get_error_hint(error.ctx)
    shown = hint if isinstance(hint, str) else " / ".join(hint or ())
    variable = _variable(error.ctx, error.param)
    return f"{shown} (from {variable})" if variable else shown


def _variable(ctx: click.Context | None, param: click.Parameter | None) -> str:
    """The environment variable that has set a flag; "" if none has."""
    if ctx is None or param is None or param.name is None:
        return ""
    if ctx.get_parameter_source(param.name) is not ParameterSource.ENVIRONMENT:
        return ""
    named = (param.envvar,) if isinstance(param.envvar, str) else tuple(param.envvar or ())
    automatic = f"{ctx.auto_envvar_prefix}_{param.name.upper()}"
    return next((name for name in named if os.environ.get(name)), automatic)


def wrong_value(ctx: click.Context, flag: str, problem: str) -> click.BadParameter:
    """The error for the value of a flag of this command, such as ``--every``."""
    for param in ctx.command.params:
        if flag in (*param.opts, *param.secondary_opts):
            return click.BadParameter(problem, ctx, param, f"'{flag}'")
    return click.BadParameter(problem, ctx, param_hint=f"'{flag}'")
