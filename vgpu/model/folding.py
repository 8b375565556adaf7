"""Equal entries of a list for people as one, with a count. Documents keep each of them. Pure."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

MOST_EQUAL: Final = 10
"""Maximum number of equal entries that are printed one by one."""

_NAMED: Final = 3
"""Number of entries that a folded one names."""

_Entry = TypeVar("_Entry")


def folded(
    entries: Sequence[_Entry], key: Callable[[_Entry], Hashable]
) -> Iterator[tuple[_Entry, ...]]:
    """The entries, in their order; those with one key together at the first of them.

    Up to :data:`MOST_EQUAL` of them stay by themselves.
    """
    by_key: dict[Hashable, list[_Entry]] = {}
    keys = [key(entry) for entry in entries]
    for entry, of_entry in zip(entries, keys, strict=True):
        by_key.setdefault(of_entry, []).append(entry)
    for entry, of_entry in zip(entries, keys, strict=True):
        equal = by_key[of_entry]
        if len(equal) <= MOST_EQUAL:
            yield (entry,)
        elif equal[0] is entry:
            yield tuple(equal)


def masked(text: str, *names: str) -> str:
    """The text without the names of its own object, by which equal texts differ."""
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = text.replace(name, "…")
    return text


def examples_text(names: Iterable[str]) -> str:
    """The first of the names, and the number of the others."""
    unique = list(dict.fromkeys(names))
    more = len(unique) - _NAMED
    return ", ".join(unique[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def folded_texts(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Texts about objects, each with the name of its object, with equal ones as one."""
    for equal in folded(tuple(texts), lambda each: masked(each[1], each[0])):
        (_, text), *others = equal
        if others:
            names = examples_text(name for name, _ in others)
            text += f" (the same of {len(others)} more: {names})"
        yield text
