"""PodDisruptionBudgets (``policy/v1``), and which pods they select; pure."""

from collections.abc import Mapping

import msgspec

from vgpu.kube import wire


class Requirement(msgspec.Struct, frozen=True):
    """One of a selector's ``matchExpressions``."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The requirement for people."""
        values = f" [{', '.join(sorted(self.values))}]" if self.values else ""
        return f"{self.key} {self.operator}{values}"

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it. An unknown operator is met: a budget then protects the pod."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "DoesNotExist":
                return value is None
            case "Exists":
                return value is not None
        return True


class DisruptionBudget(msgspec.Struct, frozen=True):
    """A budget.

    Attributes:
        namespace, name: its identity.
        allowed: number of its pods that may be disrupted now.
        requirements: what the labels of its pods meet; None selects no pod.
        disrupted: names of pods that are counted as disrupted already.
    """

    namespace: str
    name: str
    allowed: int = 0
    requirements: tuple[Requirement, ...] | None = None
    disrupted: frozenset[str] = frozenset()

    def covers(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the end of this pod of its namespace would count against it."""
        return (
            self.requirements is not None
            and name not in self.disrupted
            and all(requirement.matches(labels) for requirement in self.requirements)
        )


def requirements_of(selector: wire.SelectorFields) -> tuple[Requirement, ...]:
    """All that the labels of an object have to meet."""
    return (
        *(
            Requirement(key, "In", frozenset({value}))
            for key, value in (selector.match_labels or {}).items()
        ),
        *(
            Requirement(each.key, each.operator, frozenset(each.values or ()))
            for each in selector.match_expressions or ()
        ),
    )


def project_budget(budget: wire.BudgetFields, _: str) -> DisruptionBudget:
    """A budget."""
    selector, status = budget.spec.selector, budget.status
    requirements = None if selector is None else requirements_of(selector)
    return DisruptionBudget(
        budget.metadata.namespace,
        budget.metadata.name,
        max(0, status.disruptions_allowed),
        requirements,
        frozenset(status.disrupted_pods or ()),
    )


def project_labels(pod: wire.PodFields, _: str) -> tuple[str, Mapping[str, str]]:
    """A pod's UID, and all its labels."""
    return pod.metadata.uid, pod.metadata.labels or {}
