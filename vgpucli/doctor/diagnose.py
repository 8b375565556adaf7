"""All checks of a cluster, in a table; pure."""

from collections.abc import Callable, Iterator
from typing import Final

from vgpu.model.units import count
from vgpucli.doctor.check_accounts import check_accounts
from vgpucli.doctor.check_installed import check_settings, check_systems
from vgpucli.doctor.check_nodes import check_clocks, check_kubelet, check_runtime, check_units
from vgpucli.doctor.check_schedulers import check_schedulers
from vgpucli.doctor.custom_kinds import check_custom_kinds
from vgpucli.doctor.facts import ClusterFacts, named
from vgpucli.doctor.guard import guarded
from vgpucli.doctor.model import DoctorCheck, DoctorFinding, DoctorReason, Severity, Unread, finding


def check_rights(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """The rights that components lack, and those that no admission policy limits."""
    for denied in facts.denied:
        reason = DoctorReason.MISSING_OPTIONAL_RIGHT if denied.need else DoctorReason.MISSING_RIGHT
        need = f", for: {denied.need}" if denied.need else ""
        evidence = f"{denied.account} may not {denied.right.text}{need}"
        yield finding(DoctorCheck.RIGHTS, reason, denied.component, evidence, denied.right.rule)
    yield from check_accounts(facts)


def _check_systems(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    yield from check_systems(facts)
    yield from check_custom_kinds(facts)


CHECKS: Final[dict[DoctorCheck, Callable[[ClusterFacts], Iterator[DoctorFinding]]]] = {
    DoctorCheck.SYSTEMS: _check_systems,
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
    for unread in facts.unread:
        yield unread_finding(unread)
    if facts.malformed:
        text = f"{count(len(facts.malformed), 'object')}: {named(facts.malformed)}"
        yield finding(DoctorCheck.SYSTEMS, DoctorReason.MALFORMED, "", text)
    incomplete = {check for unread in facts.unread for check in unread.checks}
    for check, run in CHECKS.items():
        found = guarded(check, check.value, run, facts)
        yield from found
        good = all(each.severity in (Severity.INFO, Severity.OK) for each in found)
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


def unread_finding(unread: Unread) -> DoctorFinding:
    """The finding that a part could not be read."""
    rule = (f"the line of a ClusterRole: {unread.rule}",) if unread.rule else ()
    return finding(unread.checks[0], DoctorReason.NOT_READ, unread.what, unread.why, *rule)
