"""Plans from a dump of kubectl, for `plan` and `report`, and an earlier plan to compare with."""

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec

from reconciler.config.flags import ReconcilerOptions
from reconciler.cycle import Cycles, PreparedPlan
from reconciler.model import Scope
from reconciler.observe.dump import DumpObserver
from reconciler.report.document import PlanDocument, plan_document
from vgpu.kube.dump import joined
from vgpu.model.durations import parse_duration
from vgpu.model.reasons import SourceError
from vgpu.program.flags import Decorator, composed
from vgpu.program.kube_flags import not_a_dump, read_dump, reads_dumps

_SECONDS: Final = re.compile(r"\d{1,11}", re.ASCII)


class Moment(click.ParamType[float]):
    """Unix seconds, written as RFC 3339 has times, or as such seconds.

    With ``ago`` also as a duration before now, such as 24h; then a bare number is such a duration.
    """

    name = "time"

    def __init__(self, *, ago: bool = False) -> None:
        self._ago = ago

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """To unix seconds."""
        text = str(value)
        if self._ago:
            try:
                return time.time() - parse_duration(text)
            except ValueError:
                pass
        elif _SECONDS.fullmatch(text):
            return float(text)
        try:
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            durations = " or a duration such as 24h" if self._ago else ""
            self.fail(f"{text!r} is not a time such as 2026-11-21T03:00:00Z{durations}", param, ctx)


dump_flags: Final[Decorator] = composed(
    click.option(
        "--from",
        "dumps",
        multiple=True,
        metavar="FILE",
        allow_from_autoenv=False,
        help="Read 'kubectl get nodes,pods -A -o json --show-managed-fields' from a file, or from -"
        " for standard input, and ask no API server. SharePods and ConfigMaps in it are used."
        " Without --show-managed-fields ages are estimated from conditions and starts. Repeatable.",
    ),
    click.option(
        "--at",
        "taken",
        type=Moment(),
        metavar="TIME",
        allow_from_autoenv=False,
        help="When the dump was taken, such as 2026-11-21T03:00:00Z.  [default: when its file was"
        " written]",
    ),
)
"""The flags of a plan from a dump."""


def is_from_dump(
    ctx: click.Context, options: ReconcilerOptions, dumps: Sequence[str], taken: float | None
) -> bool:
    """Whether the plan is from a dump. Raises click.UsageError for flags that contradict it."""
    if taken is not None and not dumps:
        raise click.UsageError("--at is of a dump: it needs --from", ctx)
    is_dump = reads_dumps(dumps)
    if is_dump and options.scope is Scope.NODE:
        raise click.UsageError("--from asks no cluster: drop --scope node", ctx)
    return is_dump


def prepared_from_dump(
    options: ReconcilerOptions, paths: Sequence[str], taken: float | None
) -> PreparedPlan:
    """The plan of the objects in these files. Raises click.ClickException."""
    files = [read_dump(path) for path in paths]
    now = min(time.time(), *(written for _, written in files)) if taken is None else taken
    try:
        content = joined([(path, one) for path, (one, _) in zip(paths, files, strict=True)])
    except SourceError as error:
        raise not_a_dump(str(error)) from error
    return _prepared(options, " and ".join(paths), content, now)


def earlier_plan(options: ReconcilerOptions, path: str) -> PlanDocument:
    """The plan in a file of `plan -o json`, or of the dump in it. Raises click.ClickException."""
    content, written = read_dump(path)
    try:
        return msgspec.json.decode(content, type=PlanDocument)
    except msgspec.DecodeError:
        prepared = _prepared(options, path, content, min(written, time.time()), flag="--diff")
        return plan_document(prepared.plan)


def _prepared(
    options: ReconcilerOptions, path: str, content: bytes, now: float, flag: str = "--from"
) -> PreparedPlan:
    observer = DumpObserver(content, path, options.units)
    try:
        return Cycles(observer, options.settings.policy, clock=lambda: now).make()
    except SourceError as error:
        raise not_a_dump(str(error), flag) from error
