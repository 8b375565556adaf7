"""Merge patches (RFC 7386) as the API server applies them, and what it keeps of a value. Pure.

What is stored differs from what was written: the API server drops null members of objects, also of
those inside lists, where RFC 7386 keeps them, and stores numbers as Go does, as an int64 or a
float64. The status of each pod has such nulls (``"lastProbeTime": null``). So :func:`is_stored`
alone compares a wanted value with a stored one. For all objects ``before`` and ``after``:

    is_stored(after, merged(before, merge_patch(before, after)))
    is_stored(after, before) == (merge_patch(before, after) == {})

So a patch that was written is not due again. Source: evanphx/json-patch, ``merge.go`` (mergeDocs,
pruneNulls). Older versions of it drop the null items of lists, too.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

_INT64: Final = range(-(1 << 63), 1 << 63)


def kept(value: Any) -> Any:
    """What the API server keeps of a JSON value, in any of its versions.

    Without nulls at any depth. ``kept(kept(value)) == kept(value)``.
    """
    if isinstance(value, dict):
        return {key: kept(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [kept(each) for each in value if each is not None]
    return _go_number(value)


def _go_number(value: Any) -> Any:
    """A number as Go stores it: 1.0 becomes 1, and an integer beyond 64 bits a float64."""
    if isinstance(value, float) and value.is_integer() and int(value) in _INT64:
        return int(value)
    if isinstance(value, int) and value not in _INT64:
        with suppress(OverflowError):  # Go refuses it
            return float(value)
    return value


def is_stored(wanted: Any, stored: Any) -> bool:
    """Whether a stored value is what the API server keeps of the wanted one: nothing is to write.

    True and 1 differ, 1 and 1.0 do not; the order of an object's members does not count.
    """
    return _text(wanted) == _text(stored)


def _text(value: Any) -> bytes:
    return msgspec.json.encode(kept(value), order="deterministic")


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that turns a stored object into a wanted one; {} if nothing is to write."""
    patch: dict[str, Any] = {}
    for key, value in after.items():
        old = before.get(key)
        if value is None or is_stored(value, old):
            continue
        is_nested = isinstance(value, dict) and isinstance(old, dict)
        patch[key] = merge_patch(old or {}, value) if is_nested else value
    gone = {key for key, old in before.items() if old is not None and after.get(key) is None}
    return patch | dict.fromkeys(gone)


def merged(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The target with the patch merged into it; neither is changed."""
    result = dict(target)
    for key, value in patch.items():
        old = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(old, dict) and isinstance(value, dict):
            result[key] = merged(old, value)
        else:
            result[key] = _copied(value, drops_nulls=not isinstance(old, dict))
    return result


def _copied(value: Any, *, drops_nulls: bool) -> Any:
    """A new value of a patch: objects may lose their nulls at any depth, lists keep theirs.

    The API server leaves the nulls in a list that takes the place of an object.
    """
    if isinstance(value, dict):
        return {
            key: _copied(each, drops_nulls=drops_nulls)
            for key, each in value.items()
            if each is not None or not drops_nulls
        }
    if isinstance(value, list):
        return [_copied(each, drops_nulls=drops_nulls) for each in value]
    return _go_number(value)
