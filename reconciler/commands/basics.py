"""The common parts of the commands: exit statuses, the audit, metrics as a form of output."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import click

from reconciler.apply.audit import STANDARD, Audit
from reconciler.apply.records import AuditError
from reconciler.config.flags import ReconcilerOptions
from reconciler.cycle import Cycle, PreparedPlan
from reconciler.metrics import ReconcilerMetrics
from reconciler.model import Coverage
from reconciler.policy import Mode
from reconciler.session import NoAudit
from reconciler.webhook import FLAG, NotifyError, Webhook
from vgpu.metrics.render import Format
from vgpu.program import termination
from vgpu.program.failures import wrong_value
from vgpu.program.output import say_document
from vgpu.program.process import build_info

NOTHING, WANTED, PARTLY = 0, 3, 4
"""Exit statuses; 1 is an error, 2 is for wrong flags."""

AUDIT_FILE: Final = "vgpu-audit.jsonl"
AUDIT_HELP: Final = "Append what is done to this file, a line of JSON each; - is standard output."

TEXT, JSON, PROMETHEUS = "text", "json", "prometheus"
"""Forms of output."""


notify_flag = click.option(
    FLAG,
    "notify_url_file",
    default="",
    metavar="FILE",
    help="A file with the URL of a webhook, such as Slack's: one message for each cycle that acted,"
    " and one when the circuit breaker trips.",
)


def notifier(ctx: click.Context, path: str, server: str) -> Callable[[Cycle], None]:
    """The function that sends a cycle's message, if any. Raises click.BadParameter."""
    if not path:
        return lambda _: None
    try:
        return Webhook.from_file(path, server).post
    except NotifyError as error:
        raise wrong_value(ctx, FLAG, str(error)) from error


metrics_flag = click.option(
    "--metrics-file",
    default="",
    metavar="FILE",
    help="Write the metrics of this run to a file, for node_exporter's textfile collector: a"
    " CronJob serves none.",
)


def write_metrics(path: str, text: str) -> None:
    """Replace the file with the metrics, as a whole. Raises click.ClickException."""
    if not path:
        return
    file = Path(path)
    new = file.with_name(f".{file.name}.new")  # the collector reads *.prom
    try:
        new.write_text(text)
        new.replace(file)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        problem = error.strerror or str(error)
        raise click.ClickException(f"--metrics-file {path}: {problem}") from error


@contextmanager
def stopped_by_signals(stopping: threading.Event) -> Iterator[None]:
    """SIGTERM, Ctrl-C and a lost terminal let the running action end and begin no other.

    A second such signal ends at once. SIGUSR1 and SIGUSR2 do nothing; nor does SIGHUP under nohup.
    """
    before = {
        number: handler
        for number in (*termination.ENDING, *termination.IGNORED)
        if (handler := signal.getsignal(number)) != signal.SIG_IGN
    }

    enders = before.keys() - termination.USER_DEFINED

    def restore(numbers: Iterable[signal.Signals]) -> None:
        for number in numbers:
            signal.signal(number, before[number])

    def stop(*_: object) -> None:
        stopping.set()
        restore(enders)

    for number in before:
        signal.signal(number, stop if number in enders else signal.SIG_IGN)
    try:
        yield
    finally:
        restore(before)


@contextmanager
def opened_audit(path: str) -> Iterator[Audit | NoAudit]:
    """The audit, "" for none; a new file without a record is removed at the end.

    Raises click.ClickException if it cannot be written.
    """
    if not path:
        yield NoAudit()
        return
    file = Path(path)
    is_new = path != STANDARD and not file.exists()
    try:
        audit = Audit.open(path)
    except AuditError as error:
        raise click.ClickException(str(error)) from error
    try:
        with audit:
            yield audit
    finally:
        with suppress(OSError):
            if is_new and not file.stat().st_size:
                file.unlink()  # nothing was done


def refuse_blindness(prepared: PreparedPlan) -> None:
    """Raises click.ClickException if not all pods were seen: then an empty plan shows nothing."""
    if Coverage.PODS not in prepared.snapshot.complete:
        raise click.ClickException("not all pods could be seen, so nothing could be judged")


def metrics_text(
    options: ReconcilerOptions, mode: Mode, cycle: Cycle, requests: Mapping[tuple[str, str], int]
) -> str:
    """The reconciler's own metrics after this one cycle."""
    numbers = ReconcilerMetrics(options.scope, mode, requests=lambda: requests, build=build_info())
    numbers.note(cycle)
    return numbers.render().body(Format.TEXT).decode()


def print_metrics(
    options: ReconcilerOptions, mode: Mode, cycle: Cycle, requests: Mapping[tuple[str, str], int]
) -> None:
    """Print the reconciler's own metrics after this one cycle, as text."""
    say_document(metrics_text(options, mode, cycle, requests))
