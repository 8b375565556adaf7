"""``vgpu doctor -o json``: a diagnosis as a document with stable fields.

Within a version fields are only added. Times are RFC 3339 in UTC. docs/doctor.md describes it.
"""

from datetime import UTC, datetime
from typing import Final

import msgspec

from vgpucli.doctor.model import Diagnosis, Severity

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
