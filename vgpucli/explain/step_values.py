"""Steps of an explanation by their outcome. Pure."""

from vgpu.model.reasons import Explained
from vgpucli.explain.model import ExplainedStep, ExplainOutcome, StepReason, WayStep


def passed(step: WayStep, *evidence: str, since: float | None = None) -> ExplainedStep:
    """A step that has passed, with what shows it."""
    return ExplainedStep(step, ExplainOutcome.PASSED, evidence=evidence, since=since)


def failed(step: WayStep, reason: Explained, *evidence: str) -> ExplainedStep:
    """A step that has failed."""
    return ExplainedStep(step, ExplainOutcome.FAILED, (StepReason.of(reason),), evidence)


def waiting(step: WayStep, reason: Explained, *evidence: str) -> ExplainedStep:
    """A step that waits for something else."""
    return ExplainedStep(step, ExplainOutcome.WAITING, (StepReason.of(reason),), evidence)


def not_checked(step: WayStep, needs: str, *evidence: str) -> ExplainedStep:
    """A step that nothing shows to be passed; ``needs`` would show it."""
    return ExplainedStep(step, ExplainOutcome.NOT_CHECKED, evidence=evidence, needs=needs)


def waiting_with(step: WayStep, *evidence: str) -> ExplainedStep:
    """A step that was not reached, with what shows it."""
    return ExplainedStep(step, ExplainOutcome.WAITING, evidence=evidence)


def not_reached(step: WayStep) -> ExplainedStep:
    """A step that waits for an earlier one."""
    return ExplainedStep(step, ExplainOutcome.WAITING)
