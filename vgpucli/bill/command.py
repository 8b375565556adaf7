"""`vgpu bill`: the flags of the bill and of `vgpu bill close`."""

import csv
import datetime as dt
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from vgpu.model.documentation import page
from vgpu.model.printable_text import printable
from vgpu.program.output import say_document, say_text
from vgpucli.bill.days import bounds, days_between, is_day
from vgpucli.bill.measurement import Method, PartRule
from vgpucli.flags import access_flags

KEYS: Final = ("namespace", "team", "owner", "model")
FORMATS: Final = ("table", "json", "csv", "focus")

EPILOG = f"""\
\b
Examples:
  vgpu bill --prices prices.yaml --from 2026-11-01 --to 2026-12-01
  vgpu bill --prices prices.yaml --from 2026-11-01 --to 2026-12-01 --by team -o json
  vgpu bill --prices prices.yaml --from 2026-11-01 --to 2026-12-01 -o focus > november.csv
  vgpu bill close --prometheus http://localhost:9090
  vgpu bill rules --prices prices.yaml > vgpu-prices.yaml

\b
Used, held idle, unsold and not measured make the hours of each GPU. How a GPU is divided, and an
example to compute by hand: {page("bill")}.

\b
Status: 0, also if days are not closed, which a note names; 1 if a file cannot be read; 2 for
wrong flags.
"""


class DayParameter(click.ParamType[str]):
    """A date as YYYY-MM-DD."""

    name = "day"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text itself."""
        if not is_day(value):
            self.fail(f"{value!r} is no day as 2026-11-01 is", param, ctx)
        return value


class ZoneParameter(click.ParamType[ZoneInfo]):
    """The name of a time zone."""

    name = "timezone"

    def convert(
        self, value: str | ZoneInfo, param: click.Parameter | None, ctx: click.Context | None
    ) -> ZoneInfo:
        """The zone."""
        if isinstance(value, ZoneInfo):
            return value
        try:
            return ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            self.fail(f"{value!r} is no time zone as Europe/Berlin is", param, ctx)


_folder = click.option(
    "--days",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default="bill",
    show_default=True,
    metavar="DIR",
    help="The folder of the closed days.",
)
_zone = click.option(
    "--timezone",
    "zone",
    type=ZoneParameter(),
    default="UTC",
    show_default=True,
    metavar="NAME",
    help="The time zone in which days begin, such as Europe/Berlin.",
)


@click.group(
    "bill",
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"max_content_width": 100},
)
@_folder
@_zone
@click.option("--prices", type=click.Path(), metavar="FILE", help="The price table.")
@click.option("--from", "first", type=DayParameter(), metavar="DAY", help="The first day.")
@click.option(
    "--to", "until", type=DayParameter(), metavar="DAY", help="The first day that is not included."
)
@click.option(
    "--by",
    type=click.Choice(KEYS),
    default="namespace",
    show_default=True,
    help="Lines of the bill.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="csv and focus have a line for each part of each share and day; focus is FOCUS 1.2.",
)
@click.pass_context
def command(
    ctx: click.Context,
    *,
    folder: Path,
    zone: ZoneInfo,
    prices: str | None,
    first: str | None,
    until: str | None,
    by: str,
    output: str,
) -> None:
    """Add up what shared GPUs cost, from days that 'vgpu bill close' has closed."""
    if ctx.invoked_subcommand is not None:
        return
    given = {"--prices": prices, "--from": first, "--to": until}
    missing = [flag for flag, value in given.items() if value is None]
    if missing or prices is None or first is None or until is None:
        raise click.UsageError(f"{' and '.join(missing)} missing")
    if until <= first:
        raise click.UsageError(f"--to {until} is not after --from {first}")
    _bill(Question(folder, zone, prices, (first, until), by), output)


class Question(NamedTuple):
    """What the bill is of."""

    folder: Path
    zone: ZoneInfo
    prices: str
    days: tuple[str, str]
    by: str


def _bill(question: Question, output: str) -> None:
    from vgpucli.bill import focus, summary, table  # noqa: PLC0415  # not for close and --help
    from vgpucli.bill.day_file import BadDay  # noqa: PLC0415
    from vgpucli.bill.document import document  # noqa: PLC0415
    from vgpucli.bill.prices import BadPrices, read_prices  # noqa: PLC0415
    from vgpucli.bill.read import Period, period_charges  # noqa: PLC0415
    from vgpucli.document_output import print_document  # noqa: PLC0415

    folder, zone, prices, days, by = question
    period = Period()
    try:
        priced = read_prices(prices)
        charges = period_charges(folder, days_between(*days), priced, zone, period)
        if output in ("csv", "focus"):
            context = focus.Context(priced, zone, period.heads)
            columns = focus.COLUMNS if output == "focus" else focus.PLAIN_COLUMNS
            for text in _csv([*columns], (focus.row(each, columns, context) for each in charges)):
                say_document(text)
            for note in table.notes(priced, period):
                say_text(f"{note}\n", err=True)
            return
        lines = summary.lines(charges, by)
    except (BadPrices, BadDay) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{printable(str(folder))}: {error.strerror}") from error
    if output == "json":
        print_document(document(lines, by, priced, period, (*days, zone.key)), output)
        return
    shown = table.text_lines(lines, by, priced, period, days)
    say_text("".join(f"{line}\n" for line in shown))


def _csv(columns: list[str], rows: Iterator[dict[str, str | None]]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\r\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(row)
        if buffer.tell() > 1 << 16:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


CLOSE_EPILOG = """\
\b
Examples:
  vgpu bill close --prometheus http://localhost:9090
  vgpu bill close --prometheus http://localhost:9090 --from 2026-11-01
  vgpu bill close --prometheus http://localhost:9090 --correct 2026-11-03

\b
A day can be closed an hour after its end. A file is written once, with mode 0600, and never
changed: what is found out later stands in the file of a later day, as a correction. A day on which
no device was measured is closed when a later day is. A day of which samples may be missing in an
answer is not closed, and no later one.

\b
Status: 0 if all days that have ended are closed; 1 if not; 2 for wrong flags.
"""


@command.command("close", epilog=CLOSE_EPILOG, context_settings={"max_content_width": 100})
@_folder
@_zone
@click.option(
    "--prometheus",
    required=True,
    metavar="URL",
    help="A Prometheus that scrapes the exporters, such as http://localhost:9090.",
)
@access_flags("an https --prometheus")
@click.option(
    "--from",
    "first",
    type=DayParameter(),
    metavar="DAY",
    help="The first day, if none is closed yet; else no other than the day after the last closed"
    " one.  [default: that day, or the last one that has ended]",
)
@click.option(
    "--correct",
    "corrected",
    multiple=True,
    type=DayParameter(),
    metavar="DAY",
    help="Measure a closed day again; the difference stands in the file that is written now."
    " Repeatable.",
)
@click.option(
    "--rule",
    type=click.Choice([rule.value for rule in PartRule]),
    default=PartRule.SUM.value,
    show_default=True,
    help="How memory and cores make the part of a GPU.",
)
@click.option(
    "--memory-weight",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Weight of memory with rule sum; that of cores is the rest.",
)
@click.option(
    "--kube-labels",
    multiple=True,
    metavar="LABEL",
    help="Keep this label of nodes for the price table, from kube_node_labels of"
    " kube-state-metrics. Repeatable.",
)
@click.option(
    "--allow-empty",
    is_flag=True,
    help="Close a day on which no device was measured at once: the cluster had none.",
)
def close(
    *,
    folder: Path,
    zone: ZoneInfo,
    prometheus: str,
    first: str | None,
    corrected: tuple[str, ...],
    rule: str,
    memory_weight: float,
    kube_labels: tuple[str, ...],
    allow_empty: bool,
    **access: str | None,
) -> None:
    """Measure the days that have ended and write a file for each."""
    from vgpu.io.writer_lock import WriterLockHeld, writer_lock  # noqa: PLC0415
    from vgpu.sources.http_access import BadOption, ClientOptions  # noqa: PLC0415
    from vgpucli.bill.day_file import LOCK, BadDay  # noqa: PLC0415
    from vgpucli.bill.day_writer import DayWriter  # noqa: PLC0415
    from vgpucli.bill.prometheus import BillSource  # noqa: PLC0415
    from vgpucli.top.source import Unanswered  # noqa: PLC0415

    try:
        source = BillSource(prometheus, ClientOptions(**access))
    except BadOption as error:
        raise click.UsageError(str(error)) from error
    method = Method(PartRule(rule), memory_weight)
    now = dt.datetime.now(dt.UTC).timestamp()
    writer = DayWriter(folder, zone, method, source, kube_labels, allow_empty=allow_empty)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with writer_lock(str(folder / LOCK)):
            days = writer.due(now, first)
            writer.check_corrections(corrected, days)
            if not days:
                say_text("No day to close.\n")
            for day, path in writer.close_all(days, now, corrected):
                begin, end = bounds(day, zone)
                say_text(f"{day}: closed, {(end - begin) // 3600} hours, {printable(str(path))}\n")
                while writer.notes:
                    say_text(f"note: {writer.notes.pop(0)}\n", err=True)
    except WriterLockHeld as error:
        raise click.ClickException(
            f"{printable(str(folder))}: another 'vgpu bill close' is closing its days"
        ) from error
    except Unanswered as error:
        raise click.ClickException(f"{source.name}: {error}") from error
    except (BadDay, ValueError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        name = printable(str(error.filename or folder))
        raise click.ClickException(f"{name}: {error.strerror}") from error


RULES_EPILOG = """\
\b
Examples:
  vgpu bill rules --prices prices.yaml > /etc/prometheus/rules/vgpu-prices.yaml

\b
With these rules the recording rules of vgpu have series of cost, which the dashboard Teams shows.
Whoever can read the series knows the prices.

\b
Status: 0; 1 if the price table cannot be used or has prices by node_labels; 2 for wrong flags.
"""


@command.command("rules", epilog=RULES_EPILOG, context_settings={"max_content_width": 100})
@click.option("--prices", type=click.Path(), required=True, metavar="FILE", help="The price table.")
@_zone
def rules(*, prices: str, zone: ZoneInfo) -> None:
    """Print the price table as recording rules of Prometheus."""
    from vgpucli.bill.price_rules import price_rules  # noqa: PLC0415
    from vgpucli.bill.prices import BadPrices, read_prices  # noqa: PLC0415

    try:
        table = read_prices(prices)
    except BadPrices as error:
        raise click.ClickException(str(error)) from error
    try:
        text = price_rules(table, zone)
    except BadPrices as error:
        raise click.ClickException(f"{printable(prices)}: {error}") from error
    say_document(text)
