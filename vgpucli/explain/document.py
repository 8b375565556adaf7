"""``vgpu explain -o json``: an explanation as a document with stable fields.

Within a version fields are only added. Unknown values are null; times are RFC 3339 in UTC, amounts
are bytes. docs/explain.md describes the document.
"""

from datetime import UTC, datetime

import msgspec

from vgpu.model.units import count
from vgpucli.explain.model import ExplainedStep, Explanation, NodeGroup, StepReason

API_VERSION = "vgpu.dev/v1alpha1"


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    """The base of all parts."""


class ReasonDocument(_Document, frozen=True):
    """Why a step did not pass; ``rule`` is the reconciler's, "" if no rule found it.

    ``about`` is the other object that a remark is about.
    """

    code: str
    explanation: str
    rule: str
    about: str = ""


class StepDocument(_Document, frozen=True):
    """A step; ``outcome`` is passed, failed, waiting or not_checked.

    ``needs`` is what would show the outcome of a step that is not checked; "" of others.
    """

    step: str
    meaning: str
    outcome: str
    reasons: list[ReasonDocument]
    evidence: list[str]
    remarks: list[ReasonDocument]
    since: datetime | None
    needs: str = ""


class GpuGroupDocument(_Document, frozen=True):
    """GPUs that are skipped for one reason."""

    reason: str | None
    gpus: int


class NodeGroupDocument(_Document, frozen=True):
    """Nodes with one answer; ``reason`` is null if they have room and take new pods."""

    reason: str | None
    explanation: str
    nodes: list[str]
    gpus: list[GpuGroupDocument]
    largest_free_bytes: int | None
    detail: str


class ExplanationDocument(_Document, frozen=True):
    """The document."""

    api_version: str
    kind: str
    object_kind: str
    name: str
    as_of: datetime
    steps: list[StepDocument]
    nodes: list[NodeGroupDocument]
    lines: list[str]
    conclusion: str
    advice: str
    notes: list[str]
    system: str = ""


def document(explanation: Explanation) -> ExplanationDocument:
    """The explanation as a document."""
    return ExplanationDocument(
        API_VERSION,
        "Explanation",
        explanation.kind,
        explanation.name,
        datetime.fromtimestamp(explanation.as_of, UTC),
        [_step(step) for step in explanation.steps],
        [_group(group) for group in explanation.nodes],
        list(explanation.lines),
        explanation.conclusion,
        explanation.advice,
        list(explanation.notes),
        explanation.system,
    )


def _step(step: ExplainedStep) -> StepDocument:
    return StepDocument(
        step.step.value,
        step.step.explanation,
        step.outcome.value,
        [_reason(reason) for reason in step.reasons],
        list(step.evidence),
        [_reason(reason) for reason in step.remarks],
        _time(step.since),
        step.needs,
    )


def _reason(reason: StepReason) -> ReasonDocument:
    return ReasonDocument(reason.code, reason.explanation, reason.rule, reason.about)


def _group(group: NodeGroup) -> NodeGroupDocument:
    return NodeGroupDocument(
        None if group.reason is None else group.reason.value,
        group_text(group),
        list(group.names),
        [
            GpuGroupDocument(None if each.reason is None else each.reason.value, each.gpus)
            for each in group.gpus
        ],
        group.free_bytes,
        group.detail,
    )


def group_text(group: NodeGroup) -> str:
    """The answer of the nodes, for people."""
    if group.reason is None:
        return f"{'has' if len(group.names) == 1 else 'have'} room for the pod"
    return group.reason.explanation


def gpus_text(group: NodeGroup) -> str:
    """The GPUs of the nodes by reason, for people; "" if none was examined by itself."""
    return ", ".join(
        f"{count(each.gpus, 'GPU')} {each.reason.value if each.reason else 'fit'}"
        for each in group.gpus
    )


def _time(seconds: float | None) -> datetime | None:
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
