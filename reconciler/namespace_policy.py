"""Policies by namespace: one team's pods are acted on, another's are only planned for. Pure."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec

from vgpu.kube.label_selector import LabelSelector

NAMESPACE: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"

PLAN_ONLY: Final = "plan"

_Name = Annotated[str, msgspec.Meta(pattern=f"^{NAMESPACE}$")]
_Limit = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class NamespaceLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Maximum numbers of actions in one cycle; None is no limit of its own.

    ``per_cycle`` is of all namespaces of the policy together, ``per_namespace`` of each.
    """

    per_cycle: _Limit | None = None
    per_namespace: _Limit | None = None


class NamespacePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What holds for the pods of some namespaces: those named, selected by labels, or both.

    It never allows more than the mode of the reconciler and of its rules.
    """

    name: _Name
    mode: Literal["plan", "apply"]
    namespaces: tuple[_Name, ...] | None = None
    selector: LabelSelector | None = None
    limits: NamespaceLimits = NamespaceLimits()

    def __post_init__(self) -> None:
        if self.namespaces is None and self.selector is None:
            raise ValueError("needs namespaces or a selector; selector: {} selects all namespaces")

    def names(self, namespace: str) -> bool:
        """Whether its list of namespaces does not exclude this one."""
        return self.namespaces is None or namespace in self.namespaces


Labels = Mapping[str, Mapping[str, str]]
"""The labels of namespaces, by name; those that could not be read are missing."""

UNREAD: Final = NamespacePolicy("unread", PLAN_ONLY, ())
"""The safest policy: of a namespace whose labels decide and could not be read."""


def policy_of(
    policies: Sequence[NamespacePolicy], namespace: str, labels: Labels
) -> NamespacePolicy | None:
    """The first policy that holds for the namespace; None if none does, or for objects of nodes.

    It is :data:`UNREAD` where a policy's selector would have to be asked, and the labels are
    unknown.
    """
    for policy in policies if namespace else ():
        if policy.names(namespace):
            if policy.selector is None:
                return policy
            if namespace not in labels:
                return UNREAD
            if policy.selector.matches(labels[namespace]):
                return policy
    return None
