"""Objects that the controllers cannot read: each is reported once, while it stays as it is. Pure.

reported again ⇐ another detail, another object of its name, or it was readable in between
"""

from collections import Counter
from collections.abc import Mapping

from vgpu.model.objects import MalformedObject


class MalformedObjects:
    """The malformed objects, by kind and key. For one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], MalformedObject] = {}
        self._reported: dict[tuple[str, str], tuple[str, str]] = {}

    def set(self, kind: str, key: str, found: object) -> None:
        """An object has changed, or is gone."""
        if isinstance(found, MalformedObject):
            self._known[kind, key] = found
        else:
            self._known.pop((kind, key), None)
            self._reported.pop((kind, key), None)

    def take(self) -> list[MalformedObject]:
        """Those that are not reported yet; they count as reported now."""
        taken = []
        for place, found in self._known.items():
            content = found.ref.uid, found.detail
            if self._reported.get(place) != content:
                self._reported[place] = content
                taken.append(found)
        return taken

    def counts(self) -> Mapping[str, int]:
        """Their number by kind."""
        return Counter(kind for kind, _ in self._known)
