"""``vgpu explain`` for people: the steps with their evidence, the nodes, the closing sentence."""

import textwrap
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.style import Style

from vgpu.model.durations import age
from vgpu.model.units import count, rounded_size
from vgpu.placement.result import PlacementReason
from vgpu.program.terminal import BAD, BOLD, DIM, DOUBTFUL, GOOD, PLAIN, Line, text_width, write
from vgpucli.explain.document import gpus_text, group_text
from vgpucli.explain.model import ExplainedStep, ExplainOutcome, Explanation, NodeGroup

_STYLES: Final = {
    ExplainOutcome.PASSED: GOOD,
    ExplainOutcome.FAILED: BAD,
    ExplainOutcome.WAITING: DOUBTFUL,
    ExplainOutcome.NOT_CHECKED: DIM,
}

_INDENT: Final = " " * 26

_WORDS: Final = {ExplainOutcome.NOT_CHECKED: "not checked"}
"""The outcomes for people that differ from their codes."""

_MOST_NAMED: Final = 4
"""Number of nodes of a group that are named."""


def show(console: Console, explanation: Explanation) -> None:
    """Print the explanation."""
    write(console, _lines(explanation, text_width(console)))


def _lines(explanation: Explanation, width: int) -> Iterator[Line]:
    yield [(f"{explanation.kind} {explanation.name}", BOLD)]
    for step in explanation.steps:
        is_nodes = step.step.value == "nodes"
        is_grouped = is_nodes and _is_refused_by_all(explanation.nodes)
        yield from _step(step, explanation.as_of, width, is_grouped=is_grouped)
        if is_nodes:
            for group in explanation.nodes:
                yield from _wrapped(_group(group), width, DIM)
    for text in explanation.lines:
        yield from _wrapped(text, width, PLAIN)
    yield []
    sentence = explanation.conclusion[:1].upper() + explanation.conclusion[1:]
    yield from _wrapped(f"{sentence}.", width, BOLD, "")
    if explanation.advice:
        yield from _wrapped(f"What to do: {explanation.advice}.", width, PLAIN, "")
    for note in explanation.notes:
        yield from _wrapped(f"note: {note}", width, DOUBTFUL, "")


def _is_refused_by_all(nodes: tuple[NodeGroup, ...]) -> bool:
    return bool(nodes) and all(isinstance(group.reason, PlacementReason) for group in nodes)


def _step(
    step: ExplainedStep, as_of: float, width: int, *, is_grouped: bool = False
) -> Iterator[Line]:
    """The lines of a step; with ``is_grouped`` the groups of nodes have its evidence."""
    reasons = "; ".join(f"{reason.code}: {reason.explanation}" for reason in step.reasons)
    elapsed = "" if step.since is None else age(as_of - step.since)
    when = f" ({elapsed} ago)" if elapsed else ""
    head = [
        (f"  {step.step.value:<12}", PLAIN),
        (f"{_WORDS.get(step.outcome, step.outcome.value):<12}", _STYLES[step.outcome]),
    ]
    texts = [*filter(None, (reasons,)), *(() if is_grouped else step.evidence)]
    if step.needs:
        texts.append(f"needs {step.needs}")
    texts += (f"remark {each.code}: {each.text}" for each in step.remarks)
    if not texts:
        texts = (
            [step.step.explanation] if step.outcome is ExplainOutcome.PASSED else ["not reached"]
        )
    first, *rest = _wrapped(texts[0] + when, width, PLAIN)
    yield [*head, (first[0][0][len(_INDENT) :], PLAIN)]
    yield from rest
    for text in texts[1:]:
        yield from _wrapped(text, width, DIM)


def _group(group: NodeGroup) -> str:
    more = len(group.names) - _MOST_NAMED
    named = ", ".join(group.names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    parts = [gpus_text(group)]
    if group.reason is not None and group.free_bytes is not None:
        parts.append(f"the largest free amount is {rounded_size(group.free_bytes)}")
    inside = "; ".join(filter(None, (*parts, group.detail)))
    tail = f" ({inside})" if inside else ""
    return f"{count(len(group.names), 'node')} ({named}): {group_text(group)}{tail}"


def _wrapped(text: str, width: int, style: Style, indent: str = _INDENT) -> Iterator[Line]:
    lines = textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=indent,
        subsequent_indent=indent + ("  " if indent else ""),
        break_on_hyphens=False,
    )
    for line in lines or [indent]:
        yield [(line, style)]
