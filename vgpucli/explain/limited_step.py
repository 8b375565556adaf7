"""The step of a pod's limits: whether its containers are limited, by their exporter. Pure."""

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from vgpu.ledger.limit_verdict import LimitReason, LimitState, worst
from vgpu.model.documentation import page
from vgpucli.explain.model import ExplainedStep, WayStep
from vgpucli.explain.step_values import failed, not_checked, passed

_CODES: Final[Mapping[str, LimitReason]] = {reason.value: reason for reason in LimitReason}
_WRONG: Final = (LimitState.EXCEEDED, LimitState.MISSING, LimitState.DIFFERENT)


def limited_step(limits: Mapping[str, str]) -> ExplainedStep:
    """The step by what exporters report: container -> reason code. The worst container decides.

    A code of a newer exporter is not known here, and shows nothing.
    """
    known = {name: _CODES[code] for name, code in limits.items() if code in _CODES}
    if not known:
        return not_checked(WayStep.LIMITED, "an exporter that reports limits")
    reason = worst(known.values())
    is_wrong = reason.state in _WRONG
    texts = tuple(
        f"{name or 'the pod'}: {each.state}"
        + ("" if is_wrong and each is reason else f", {each.explanation}")  # the step has the text
        for name, each in sorted(known.items())
    )
    remedy = f"{page('limits')}, {reason.value}"
    if is_wrong:
        step = failed(WayStep.LIMITED, reason, *texts)
        return structs.replace(step, advice=f"see {remedy}")
    if reason.state is LimitState.UNKNOWN:
        return not_checked(WayStep.LIMITED, f"more evidence: see {remedy}", *texts)
    return passed(WayStep.LIMITED, *texts)
