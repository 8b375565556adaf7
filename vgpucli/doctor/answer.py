"""The findings of all checks of a cluster; a check that fails costs itself only. Pure."""

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec

from vgpu.model.units import count
from vgpucli.doctor.check_nodes import check_clocks, check_kubelet, check_runtime, check_units
from vgpucli.doctor.check_rights import check_rights
from vgpucli.doctor.check_schedulers import check_schedulers
from vgpucli.doctor.check_systems import check_settings, check_systems
from vgpucli.doctor.facts import ClusterFacts, named
from vgpucli.doctor.model import (
    ADD_TO_DUMP,
    DoctorCheck,
    DoctorFinding,
    DoctorReason,
    Severity,
    Unread,
    finding,
)

CHECKS: Final[dict[DoctorCheck, Callable[[ClusterFacts], Iterator[DoctorFinding]]]] = {
    DoctorCheck.SYSTEMS: check_systems,
    DoctorCheck.SETTINGS: check_settings,
    DoctorCheck.UNITS: check_units,
    DoctorCheck.SCHEDULER: check_schedulers,
    DoctorCheck.RUNTIME: check_runtime,
    DoctorCheck.KUBELET: check_kubelet,
    DoctorCheck.CLOCKS: check_clocks,
    DoctorCheck.RIGHTS: check_rights,
}


def cluster_findings(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """The findings of all checks; a check that finds nothing wrong has one of severity ok."""
    if facts.nothing_read:
        yield finding(DoctorCheck.SYSTEMS, DoctorReason.NOTHING_READ)
    for unread in facts.unread:
        yield _not_in_dump(unread) if facts.is_dump else unread_finding(unread)
    if facts.malformed:
        text = f"{count(len(facts.malformed), 'object')}: {named(facts.malformed)}"
        yield finding(DoctorCheck.SYSTEMS, DoctorReason.MALFORMED, "", text)
    incomplete = {check for unread in facts.unread for check in unread.checks}
    for check, run in CHECKS.items():
        findings = findings_of(check, check.value, run, facts)
        yield from findings
        good = all(reported.severity in (Severity.INFO, Severity.OK) for reported in findings)
        if good and check not in incomplete and _was_made(check, facts):
            yield finding(check, DoctorReason.PASSED, "", check.explanation)


def _was_made(check: DoctorCheck, facts: ClusterFacts) -> bool:
    """Whether there was anything to check."""
    match check:
        case DoctorCheck.RIGHTS:
            return facts.reviewed > 0
        case DoctorCheck.CLOCKS:
            return facts.clock_ahead is not None or bool(facts.heartbeats)
        case DoctorCheck.SCHEDULER:
            return bool(facts.configs)
        case DoctorCheck.RUNTIME | DoctorCheck.KUBELET | DoctorCheck.UNITS:
            return bool(facts.gpu_nodes)
        case _:
            return True


def _not_in_dump(unread: Unread) -> DoctorFinding:
    """The finding that a part is not in the dump, which is no missing right."""
    return msgspec.structs.replace(unread_finding(unread), advice=ADD_TO_DUMP)


def unread_finding(unread: Unread) -> DoctorFinding:
    """The finding that a part could not be read; advice about rights only where one is missing."""
    rule = (f"the line of a ClusterRole: {unread.rule}",) if unread.rule else ()
    found = finding(unread.checks[0], DoctorReason.NOT_READ, unread.what, unread.why, *rule)
    if unread.rule:
        return found
    advice = "look at what answered: the address in the kubeconfig, and proxies on the way to it"
    return msgspec.structs.replace(found, advice=advice)


_Facts = TypeVar("_Facts")


def findings_of(
    check: DoctorCheck, name: str, run: Callable[[_Facts], Iterator[DoctorFinding]], facts: _Facts
) -> list[DoctorFinding]:
    """The findings of a check; those before its error, and one that names it, if it has one.

    The message of the error is left out: it may repeat texts of objects.
    """
    findings: list[DoctorFinding] = []
    try:
        findings += run(facts)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other checks are made
        findings.append(finding(check, DoctorReason.CHECK_FAILED, name, error_place(error)))
    return findings


def error_place(error: Exception) -> str:
    """The type of an error, and where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    _, _, file = trace.tb_frame.f_code.co_filename.rpartition("/")
    return f"{type(error).__name__} in {file}, line {trace.tb_lineno}"
