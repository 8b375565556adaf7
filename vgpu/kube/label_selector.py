"""Label selectors as Kubernetes has them: ``matchLabels`` and ``matchExpressions``. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

import msgspec

_NAME: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PREFIX: Final = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?"

LabelKey = Annotated[str, msgspec.Meta(pattern=f"^{_PREFIX}{_NAME}$")]
LabelValue = Annotated[str, msgspec.Meta(pattern=f"^({_NAME})?$")]


class Operator(StrEnum):
    """How a requirement compares."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


_WITH_VALUES: Final = frozenset({Operator.IN, Operator.NOT_IN})


class LabelRequirement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of ``matchExpressions``; ``values`` are for In and NotIn, which need some."""

    key: LabelKey
    operator: Operator
    values: tuple[LabelValue, ...] = ()

    def __post_init__(self) -> None:
        if (self.operator in _WITH_VALUES) != bool(self.values):
            needs = "needs values" if self.operator in _WITH_VALUES else "takes no values"
            raise ValueError(f"operator {self.operator} {needs}")

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels meet the requirement; NotIn is met without the label, too."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.DOES_NOT_EXIST:
                return self.key not in labels


class LabelSelector(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"
):
    """A selector, all of whose parts must match; without any it matches every object."""

    match_labels: Mapping[LabelKey, LabelValue] = {}
    match_expressions: tuple[LabelRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )
