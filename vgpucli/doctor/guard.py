"""A check that ends with an error costs itself only."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from vgpucli.doctor.model import DoctorCheck, DoctorFinding, DoctorReason, finding

_Facts = TypeVar("_Facts")


def guarded(
    check: DoctorCheck, name: str, run: Callable[[_Facts], Iterator[DoctorFinding]], facts: _Facts
) -> list[DoctorFinding]:
    """The findings of a check; those before its error, and one that names it, if it has one.

    The message of the error is left out: it may repeat texts of objects.
    """
    found: list[DoctorFinding] = []
    try:
        found += run(facts)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other checks are made
        found.append(finding(check, DoctorReason.CHECK_FAILED, name, _text(error)))
    return found


def _text(error: Exception) -> str:
    """The type of an error, and where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    _, _, file = trace.tb_frame.f_code.co_filename.rpartition("/")
    return f"{type(error).__name__} in {file}, line {trace.tb_lineno}"
