"""``vgpu doctor`` for people: the findings, worst first, with evidence and what to do."""

import textwrap
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.style import Style

from vgpu.model.units import count
from vgpu.program.terminal import BAD, BOLD, DIM, DOUBTFUL, GOOD, PLAIN, Line, write
from vgpucli.doctor.model import Diagnosis, DoctorFinding, Severity

_STYLES: Final = {
    Severity.ERROR: BAD,
    Severity.WARNING: DOUBTFUL,
    Severity.INFO: PLAIN,
    Severity.OK: GOOD,
}

_INDENT: Final = " " * 8


def show(console: Console, diagnosis: Diagnosis) -> None:
    """Print the diagnosis."""
    write(console, _lines(diagnosis, max(80, console.width)))


def _lines(diagnosis: Diagnosis, width: int) -> Iterator[Line]:
    for finding in diagnosis.findings:
        yield from _finding(finding, width)
    errors, warnings = (diagnosis.count(each) for each in (Severity.ERROR, Severity.WARNING))
    yield []
    yield [(f"{count(errors, 'error')}, {count(warnings, 'warning')}", BOLD)]


def _finding(finding: DoctorFinding, width: int) -> Iterator[Line]:
    style = _STYLES[finding.severity]
    if not finding.advice:  # its evidence is all that there is to it
        parts = (finding.about, "; ".join(finding.evidence) or finding.reason.explanation)
        yield from _with_head(finding, ": ".join(filter(None, parts)), width, style)
        return
    about = f" {finding.about}:" if finding.about else ""
    head = f"{finding.reason}:{about} {finding.reason.explanation}"
    yield from _with_head(finding, head, width, style)
    for text in finding.evidence:
        yield from _wrapped(text, width, DIM)
    if finding.advice:
        yield from _wrapped(f"What to do: {finding.advice}.", width, PLAIN)


def _with_head(finding: DoctorFinding, text: str, width: int, style: Style) -> Iterator[Line]:
    first, *rest = _wrapped(text, width, PLAIN)
    yield [(f"{finding.severity:<8}", style), (first[0][0][len(_INDENT) :], PLAIN)]
    yield from rest


def _wrapped(text: str, width: int, style: Style) -> Iterator[Line]:
    lines = textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=_INDENT,
        subsequent_indent=f"{_INDENT}  ",
        break_on_hyphens=False,
    )
    for line in lines or [_INDENT]:
        yield [(line, style)]
