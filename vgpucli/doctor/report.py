"""The report of `vgpu doctor`, for people or as a document, and its exit status.

For people: the findings, worst first, with evidence and what to do. With ``-o json``: a document
with stable fields; within a version fields are only added. Times are RFC 3339 in UTC.
docs/doctor.md describes it.
"""

import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from rich.console import Console
from rich.style import Style

from vgpu.model.folding import examples_text, folded, masked
from vgpu.model.units import count
from vgpu.program.terminal import (
    BAD,
    BOLD,
    DIM,
    DOUBTFUL,
    GOOD,
    PLAIN,
    Line,
    standard_output,
    text_width,
    write,
)
from vgpucli.doctor.model import Diagnosis, DoctorFinding, Severity
from vgpucli.document_output import print_document

API_VERSION: Final = "vgpu.dev/v1alpha1"


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    """The base of all parts."""


class FindingDocument(_Document, frozen=True):
    """A finding; ``about`` is "" if it is about the cluster or the node as a whole."""

    severity: str
    check: str
    reason: str
    explanation: str
    about: str
    evidence: list[str]
    advice: str


class DiagnosisDocument(_Document, frozen=True):
    """The document; ``counts`` has the number of findings by severity."""

    api_version: str
    kind: str
    as_of: datetime
    counts: dict[str, int]
    findings: list[FindingDocument]


def document(diagnosis: Diagnosis) -> DiagnosisDocument:
    """The diagnosis as a document."""
    return DiagnosisDocument(
        API_VERSION,
        "Diagnosis",
        datetime.fromtimestamp(diagnosis.as_of, UTC),
        {severity.value: diagnosis.count(severity) for severity in Severity},
        [
            FindingDocument(
                each.severity.value,
                each.check.value,
                each.reason.value,
                each.reason.explanation,
                each.about,
                list(each.evidence),
                each.advice,
            )
            for each in diagnosis.findings
        ],
    )


_STYLES: Final = {
    Severity.ERROR: BAD,
    Severity.WARNING: DOUBTFUL,
    Severity.INFO: PLAIN,
    Severity.OK: GOOD,
}

_INDENT: Final = " " * 8


def show(console: Console, diagnosis: Diagnosis) -> None:
    """Print the diagnosis."""
    write(console, _lines(diagnosis, text_width(console)))


def _lines(diagnosis: Diagnosis, width: int) -> Iterator[Line]:
    for equal in folded(diagnosis.findings, _likeness):
        yield from _finding(_joined(equal), width)
    errors, warnings = (diagnosis.count(each) for each in (Severity.ERROR, Severity.WARNING))
    yield []
    yield [(f"{count(errors, 'error')}, {count(warnings, 'warning')}", BOLD)]


def _likeness(finding: DoctorFinding) -> tuple[str, ...]:
    texts = (masked(text, finding.about) for text in finding.evidence)
    return finding.severity, finding.check, finding.reason, finding.advice, *texts


def _joined(equal: Sequence[DoctorFinding]) -> DoctorFinding:
    """Findings that differ in what they are about alone, as one."""
    first, *others = equal
    if not others:
        return first
    about = f"{len(equal)} times, of {examples_text(each.about for each in equal)}"
    return msgspec.structs.replace(first, about=about)


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


EXIT_ERRORS: Final = 3
"""Exit status if a finding is an error."""


def report(diagnosis: Diagnosis, output: str) -> int:
    """Print the diagnosis as ``text`` or ``json``; returns the exit status."""
    if output == "json":
        print_document(document(diagnosis), "json")
    else:
        show(standard_output(), diagnosis)
    return EXIT_ERRORS if diagnosis.count(Severity.ERROR) else 0
