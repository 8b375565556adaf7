"""The result of a check as a value, and the comparisons that make one. Pure."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

import msgspec

Number = float | int


class Verdict(StrEnum):
    """Whether what was seen is what was expected."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """One comparison.

    Attributes:
        name: ``<check>/<what is compared>``.
        verdict: see :class:`Verdict`.
        expected: the value by another way than ours, or a sentence.
        seen: the value that we read.
        tolerance: maximum distance of a number from what is expected.
        unit: of the three numbers.
        reason: why it failed or was not run.
    """

    name: str
    verdict: Verdict
    expected: Any = None
    seen: Any = None
    tolerance: Number | None = None
    unit: str = ""
    reason: str = ""


def near(
    name: str, expected: Number, seen: Number | None, tolerance: Number, unit: str = ""
) -> Result:
    """Passed if the number is there and at most ``tolerance`` away."""
    if seen is None:
        return Result(name, Verdict.FAILED, expected, None, tolerance, unit, "there is no value")
    far = abs(seen - expected)
    if far <= tolerance:
        return Result(name, Verdict.PASSED, expected, seen, tolerance, unit)
    reason = f"{far:.6g} away, of at most {tolerance:.6g}"
    return Result(name, Verdict.FAILED, expected, seen, tolerance, unit, reason)


def at_most(name: str, most: Number, seen: Number | None, unit: str = "") -> Result:
    """Passed if the number is there and not above ``most``."""
    expected = f"at most {most:g}"
    if seen is None:
        return Result(name, Verdict.FAILED, expected, unit=unit, reason="there is no value")
    verdict = Verdict.PASSED if seen <= most else Verdict.FAILED
    return Result(name, verdict, expected, seen, unit=unit)


def equal(name: str, expected: Any, seen: Any) -> Result:
    """Passed if both are equal."""
    verdict = Verdict.PASSED if expected == seen else Verdict.FAILED
    return Result(name, verdict, expected, seen)


def holds(name: str, expected: str, seen: Any, *, true: bool) -> Result:
    """Passed if it is ``true`` that ``seen`` is as the sentence ``expected`` has it."""
    return Result(name, Verdict.PASSED if true else Verdict.FAILED, expected, seen)


def not_run(name: str, reason: str, seen: Any = None) -> Result:
    """Nothing was compared; ``seen`` is what was read all the same."""
    return Result(name, Verdict.NOT_RUN, seen=seen, reason=reason)


def failed(name: str, reason: str) -> Result:
    """The check itself ended early."""
    return Result(name, Verdict.FAILED, reason=reason)


STATUS_PASSED: Final = 0
STATUS_FAILED: Final = 1
STATUS_UNUSABLE: Final = 2
STATUS_NO_DRIVER: Final = 3


def status(results: Iterable[Result]) -> int:
    """The exit status of a run: 1 if anything failed, or if nothing passed."""
    verdicts = {result.verdict for result in results}
    fine = Verdict.PASSED in verdicts and Verdict.FAILED not in verdicts
    return STATUS_PASSED if fine else STATUS_FAILED
