"""Kubernetes quantities as whole numbers, and a container's extended resources; pure."""

import re
import sys
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any, Final

from vgpu.kube import wire
from vgpu.kube.kept_keys import kept_keys
from vgpu.schemes.other_schedulers import is_foreign_resource

QUOTED: Final = 64
"""Maximum number of characters kept of a broken quantity, and of a name in an error."""

_NATIVE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
"""The only resources that most containers request."""

_NOTHING: Final[Mapping[str, Any]] = {}
"""One empty mapping for all containers that request no such resource."""

_QUANTITY: Final = re.compile(
    r"\+?(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,2})|([a-zA-Z]{0,2}))"
)
_SUFFIXES: Final = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}
_LARGEST: Final = 2**63 - 1
_LONGEST: Final = 19
"""Number of characters of the largest number."""

_REMEMBERED: Final = 4096
"""Number of distinct quantities that are cached; a cluster has a few hundred."""

_LONGEST_NAME: Final = 63
"""Maximum length of a resource's name behind its domain, in characters."""

_LONGEST_DOMAIN: Final = 253 - len("requests.")
"""Maximum length of the domain of a resource, which a ResourceQuota writes behind "requests."."""

_LABEL: Final = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NAME: Final = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)

Extended = tuple[Mapping[str, int], Mapping[str, str]]
"""Extended resources in units, and the texts of quantities that are not whole numbers."""


def limits(resources: wire.Resources) -> Extended:
    """The extended resources of a container; a limit counts before a request."""
    limits, requests = resources.limits or _NOTHING, resources.requests or _NOTHING
    if _NATIVE.issuperset(limits) and _NATIVE.issuperset(requests):  # nearly all
        return _NOTHING, _NOTHING
    return units({**requests, **limits})


def units(quantities: Mapping[str, wire.Quantity]) -> Extended:
    """The resources of shared GPUs among these quantities."""
    numbers: dict[str, int] = {}
    broken: dict[str, str] = {}
    is_resource = kept_keys().is_resource
    for name, quantity in quantities.items():
        if is_resource(name):
            number = whole(str(quantity))
            if number is None:
                broken[sys.intern(name)] = str(quantity)[:QUOTED]
            else:
                numbers[sys.intern(name)] = number
    return numbers or _NOTHING, broken or _NOTHING


def has_foreign(resources: wire.Resources) -> bool:
    """Whether the container requests devices of a system that is recognised only."""
    limits, requests = resources.limits or _NOTHING, resources.requests or _NOTHING
    if _NATIVE.issuperset(limits) and _NATIVE.issuperset(requests):  # nearly all
        return False
    return any(is_foreign_resource(name) for name in (*limits, *requests))


def others(resources: wire.Resources) -> Mapping[str, int]:
    """The extended resources of a container that are of no sharing system by their names."""
    limits, requests = resources.limits or _NOTHING, resources.requests or _NOTHING
    if _NATIVE.issuperset(limits) and _NATIVE.issuperset(requests):
        return _NOTHING
    is_resource = kept_keys().is_resource
    return {
        sys.intern(name): number
        for name, quantity in {**requests, **limits}.items()
        if is_extended(name) and not is_resource(name) and (number := whole(str(quantity)))
    } or _NOTHING


def is_extended_resource(name: str) -> bool:
    """Whether it is the name of an extended resource: one with a domain other than Kubernetes'."""
    domain, _, rest = name.partition("/")
    return (
        "kubernetes.io/" not in name
        and not name.startswith("requests.")
        and len(domain) <= _LONGEST_DOMAIN
        and len(rest) <= _LONGEST_NAME
        and bool(_DOMAIN.fullmatch(domain) and _NAME.fullmatch(rest))
    )


def is_extended(name: str) -> bool:
    """Whether a resource is an extended one: it has a domain, which is not Kubernetes' own."""
    domain, slash, _ = name.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def rounded_up(quantity: str, scale: int) -> int | None:
    """A Kubernetes quantity in units of 1/``scale``, rounded up; None as for :func:`whole`."""
    exact = _exact(quantity) if len(quantity) <= _LONGEST else None
    amount = None if exact is None else ceil(exact * scale)
    return amount if amount is not None and amount <= _LARGEST else None


def exact(quantity: str) -> Fraction | None:
    """A Kubernetes quantity; None if it is none, is negative, or is too long."""
    return _exact(quantity) if len(quantity) <= _LONGEST else None


def whole(quantity: str) -> int | None:
    """A Kubernetes quantity (``8``, ``8k``, ``1Ki``, ``2e3``) as a whole number of units.

    None if it is not one, is negative, or is beyond 64 bits. The grammar is apimachinery's
    ``resource.Quantity``.
    """
    return _whole(quantity) if len(quantity) <= _LONGEST else None


@lru_cache(_REMEMBERED)
def _whole(quantity: str) -> int | None:
    units = _exact(quantity)
    return (
        int(units) if units is not None and units.denominator == 1 and units <= _LARGEST else None
    )


@lru_cache(_REMEMBERED)
def _exact(quantity: str) -> Fraction | None:
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        return None
    digits, fraction, exponent, suffix = match.groups()
    scale = Fraction(10) ** int(exponent) if exponent else _SUFFIXES.get(suffix)
    if scale is None:
        return None
    return Fraction(f"{digits or 0}.{fraction or 0}") * scale
