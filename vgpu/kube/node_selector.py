"""Which nodes a nodeSelector and a required node affinity select, as for kube-scheduler; pure.

    selects(s, T, n)  =  s ⊆ labels(n)  and  (T is absent  or  some term of T matches n)
    matches(t, n)     =  t has a requirement, each can be read, and n meets each

So terms are ORed and requirements ANDed; an empty term and an empty list of terms match no node. A
term with a requirement that cannot be read matches no node, and the other terms still count.
Source: Kubernetes' ``component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity.go`` and
apimachinery's ``pkg/labels/selector.go``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from vgpu.kube import wire

_NAME: Final = "metadata.name"
"""The only field of a node that ``matchFields`` may name."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_LARGEST: Final = 2**63


def has_labels(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether the labels have all of a nodeSelector."""
    return all(labels.get(key) == text for key, text in selector.items())


def matches_a_term(terms: Iterable[wire.NodeTerm], labels: Mapping[str, str], name: str) -> bool:
    """Whether one of the terms matches the node of this name with these labels."""
    return any(_matches(term, labels, name) for term in terms)


def _matches(term: wire.NodeTerm, labels: Mapping[str, str], name: str) -> bool:
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    if not (expressions or fields):
        return False
    return all(_meets(each, labels) for each in expressions) and all(
        _has_field(each, name) for each in fields
    )


def _meets(requirement: wire.RequirementFields, labels: Mapping[str, str]) -> bool:
    """Whether the labels meet a requirement; one that cannot be read is not met."""
    key, values = requirement.key, requirement.values or ()
    match requirement.operator:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return bool(values) and labels.get(key) not in values
        case "Exists":
            return not values and key in labels
        case "DoesNotExist":
            return not values and key not in labels
        case "Gt" | "Lt":
            return _compares(requirement.operator, labels.get(key, ""), values)
    return False


def _compares(operator: str, text: str, values: Sequence[str]) -> bool:
    """Whether a label is more or less than the one value, both as whole numbers of 64 bits."""
    number, bound = _integer(text), _integer(values[0]) if len(values) == 1 else None
    if number is None or bound is None:
        return False
    return number > bound if operator == "Gt" else number < bound


def _integer(text: str) -> int | None:
    number = int(text) if _INTEGER.fullmatch(text) else _LARGEST
    return number if -_LARGEST <= number < _LARGEST else None


def _has_field(requirement: wire.RequirementFields, name: str) -> bool:
    """Whether the node has the field: In and NotIn with one value are all that is read."""
    values = requirement.values or ()
    if len(values) != 1 or requirement.operator not in ("In", "NotIn"):
        return False
    is_equal = values[0] == (name if requirement.key == _NAME else "")
    return is_equal is (requirement.operator == "In")
