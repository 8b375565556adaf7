"""Label selectors: of objects, and as kubectl takes them with -l. Pure.

Objects have ``matchLabels`` and ``matchExpressions``. The form of -l is for objects that no API
server selects: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
"""

import re
from collections.abc import Callable, Mapping
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


_DOMAIN: Final = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/"
_KEY: Final = rf"(?:{_DOMAIN})?[A-Za-z0-9](?:[-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
_VALUE: Final = r"[A-Za-z0-9]?[-A-Za-z0-9_.]{0,62}"
_EXISTS: Final = re.compile(rf"(?P<no>!?)\s*(?P<key>{_KEY})", re.ASCII)
_EQUALS: Final = re.compile(rf"(?P<key>{_KEY})\s*(?P<op>==|=|!=)\s*(?P<value>{_VALUE})", re.ASCII)
_AMONG: Final = re.compile(
    rf"(?P<key>{_KEY})\s+(?P<op>in|notin)\s+\((?P<values>[^()]*)\)", re.ASCII
)
_COMMA: Final = re.compile(r",(?![^()]*\))")

Selects = Callable[[Mapping[str, str]], bool]
"""Whether labels are selected."""


def parse_selector(text: str) -> Selects:
    """The function of a selector such as ``app=web,tier in (a, b),!canary``. Raises ValueError."""
    tests = [_test(part.strip()) for part in _COMMA.split(text)]
    return lambda labels: all(test(labels) for test in tests)


def _test(text: str) -> Selects:
    if match := _EQUALS.fullmatch(text):
        key, value, wanted = match["key"], match["value"], match["op"] != "!="
        return lambda labels: (labels.get(key) == value) is wanted
    if match := _AMONG.fullmatch(text):
        key, among = match["key"], match["op"] == "in"
        values = frozenset(value.strip() for value in match["values"].split(","))
        return lambda labels: (labels.get(key) in values) is among
    if match := _EXISTS.fullmatch(text):
        key, exists = match["key"], not match["no"]
        return lambda labels: (key in labels) is exists
    raise ValueError(f"{text!r} is not a label selector such as app=web")
