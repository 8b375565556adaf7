"""The custom resources of sharing systems, and the components that do not work without them; pure.

Names are those of the CustomResourceDefinitions: KubeShare 1 and 2, Volcano 1.14, the GPU Operator
and NVIDIA's DRA driver.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from vgpucli.doctor.components import ComponentRole, InstalledComponent
from vgpucli.doctor.facts import ClusterFacts
from vgpucli.doctor.model import DoctorCheck, DoctorFinding, DoctorReason, finding


class CustomKind(msgspec.Struct, frozen=True):
    """A custom resource.

    Attributes:
        system: the system for people.
        plural, group: such as ``sharepods`` and ``kubeshare.nthu``.
        roles: the roles of the system's components that do not work without it.
        words: the first words of our own programs that do not, either.
    """

    system: str
    plural: str
    group: str
    roles: tuple[ComponentRole, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its CustomResourceDefinition."""
        return f"{self.plural}.{self.group}"

    def is_needed_by(self, component: InstalledComponent) -> bool:
        """Whether the component does not work without it."""
        row = component.row
        if component.is_ours:
            return bool(self.words) and row.words[: len(self.words)] == self.words
        return row.system == self.system and row.role in self.roles


_ROLE = ComponentRole

CUSTOM_KINDS: Final[tuple[CustomKind, ...]] = (
    CustomKind(
        "KubeShare",
        "sharepods",
        "kubeshare.nthu",
        (_ROLE.CONTROLLER, _ROLE.SCHEDULER),
        ("kubeshare", "controller"),
    ),
    CustomKind("Volcano", "podgroups", "scheduling.volcano.sh", (_ROLE.SCHEDULER,)),
    CustomKind("Volcano", "queues", "scheduling.volcano.sh", (_ROLE.SCHEDULER,)),
    CustomKind("Volcano", "jobs", "batch.volcano.sh", (_ROLE.CONTROLLER,)),
    CustomKind("NVIDIA", "clusterpolicies", "nvidia.com", (_ROLE.OPERATOR,)),
    CustomKind("NVIDIA", "computedomains", "resource.nvidia.com"),
)


def check_custom_kinds(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """The custom resources by name, and components that lack theirs."""
    served = facts.custom_kinds
    if served is None:
        return
    by_system: dict[str, list[str]] = {}
    for kind in CUSTOM_KINDS:
        if kind.name in served:
            by_system.setdefault(kind.system, []).append(kind.name)
    for system, names in by_system.items():
        evidence = f"custom resources of {system}: {', '.join(names)}"
        yield finding(DoctorCheck.SYSTEMS, DoctorReason.CUSTOM_KINDS, "", evidence)
    for component in facts.components:
        if not component.workload.desired:
            continue
        missing = [
            kind.name
            for kind in CUSTOM_KINDS
            if kind.name not in served and kind.is_needed_by(component)
        ]
        if missing:
            text = f"{component.row.title}: {', '.join(missing)}"
            about = component.workload.title
            yield finding(DoctorCheck.SYSTEMS, DoctorReason.MISSING_KIND, about, text)
