"""Requested resources that no node advertises, with the names that may be meant. Pure."""

import difflib
from collections.abc import Iterable
from typing import Final

import msgspec

_LEAST_ALIKE: Final = 0.7
"""Least similarity of a name that is offered in place of another."""


class MissingResource(msgspec.Struct, frozen=True):
    """A requested resource that no node advertises; ``nearest`` is the most alike known name."""

    name: str
    nearest: str = ""

    @property
    def text(self) -> str:
        """The resource with the nearest name, for people."""
        hint = f"; the nearest name is {self.nearest}" if self.nearest else ""
        return f"no node advertises {self.name}{hint}"


def with_nearest(names: Iterable[str], known: Iterable[str]) -> tuple[MissingResource, ...]:
    """The resources, each with the most alike of the ``known`` names."""
    others = sorted(known)
    return tuple(MissingResource(name, _nearest(name, others)) for name in sorted(names))


def _nearest(name: str, known: Iterable[str]) -> str:
    others = [each for each in known if each != name]
    return next(iter(difflib.get_close_matches(name, others, 1, _LEAST_ALIKE)), "")
