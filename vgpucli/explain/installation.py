"""What `vgpu doctor` finds wrong with the components of a pod's sharing system. Pure.

An error of a scheduler is the cause of a pod that waits for it: a scheduler without a ready pod
looks at no pod, and Volcano's without its plugin deviceshare counts GPUs as nobody does.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from scheduler.check_config.traps import ConfigTrap
from vgpu.model.reasons import Explained
from vgpucli.doctor.check_schedulers import check_schedulers
from vgpucli.doctor.check_systems import check_settings, check_systems
from vgpucli.doctor.components import (
    GAIA,
    GPUSHARE,
    HAMIS,
    VOLCANOS,
    ComponentRole,
    InstalledComponent,
    resource_of,
)
from vgpucli.doctor.facts import ClusterFacts
from vgpucli.doctor.model import DoctorFinding, DoctorReason, Severity

_CHECKS: Final[tuple[Callable[[ClusterFacts], Iterator[DoctorFinding]], ...]] = (
    check_systems,
    check_settings,
    check_schedulers,
)

_SYSTEMS: Final[Mapping[Explained, tuple[str, ...]]] = {
    DoctorReason.VGPU_NOT_ENABLED: (VOLCANOS,),
    DoctorReason.DEVICESHARE_CONFLICT: (VOLCANOS,),
    DoctorReason.RESOURCE_RENAMED: (HAMIS,),
    DoctorReason.NO_NODE_LOCK: (HAMIS, VOLCANOS),
}
"""The sharing systems whose pods suffer by a reason that names no component."""

_EXTENDED: Final = (HAMIS, GPUSHARE, GAIA)
"""Systems whose scheduler is an extender of kube-scheduler, by whose configuration it is asked."""

_PLACING: Final = (ComponentRole.SCHEDULER, ComponentRole.CONTROLLER)


class InstallationError(msgspec.Struct, frozen=True):
    """An error of a component of the pod's sharing system.

    Attributes:
        reason: doctor's.
        text: the component and what shows the error, for people.
        advice: what to do.
        stops_placing: whether pods of the system cannot be placed because of it.
    """

    reason: Explained
    text: str
    advice: str
    stops_placing: bool


def installation_errors(facts: ClusterFacts, system: str) -> Iterator[InstallationError]:
    """The errors that concern pods of a sharing system, by the name of its row."""
    for check in _CHECKS:
        for found in check(facts):
            if found.severity is not Severity.ERROR:
                continue
            down = [each for each in facts.components if each.workload.title == found.about]
            if _concerns(found, system, down):
                yield InstallationError(
                    found.reason,
                    ": ".join(filter(None, (found.about, "; ".join(found.evidence)))),
                    found.advice,
                    _stops_placing(found, down),
                )


def _concerns(found: DoctorFinding, system: str, about: list[InstalledComponent]) -> bool:
    reason = found.reason
    if isinstance(reason, ConfigTrap):
        return system in _EXTENDED
    if reason in _SYSTEMS:
        return system in _SYSTEMS[reason]
    if reason is DoctorReason.SEVERAL_PLUGINS:
        return found.about == resource_of(system)
    return any(system in each.serves for each in about)


def _stops_placing(found: DoctorFinding, about: list[InstalledComponent]) -> bool:
    if found.reason in (DoctorReason.NONE_READY, DoctorReason.MISSING_KIND):
        return any(each.row.role in _PLACING for each in about)
    return found.reason in (
        DoctorReason.VGPU_NOT_ENABLED,
        DoctorReason.DEVICESHARE_CONFLICT,
        DoctorReason.RESOURCE_RENAMED,
    )
