"""JSON into the structs of :mod:`vgpu.kube.wire`, and what can be said of an object that is none.

Every byte may be a tenant's: a kind without a schema takes what it is given. Pure.
"""

import re
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from vgpu.kube.objects import MalformedObject
from vgpu.kube.projection import is_kept
from vgpu.model import PodRef
from vgpu.reasons import Reason, SourceError

_LONGEST_NAME: Final = 253
"""Characters that an object's name may have; an error repeats no more."""

_LONGEST_DETAIL: Final = 300
"""Characters of what a decoder says, which repeats what it has read."""

_DEEPEST: Final = 64
"""Levels of nesting that are looked at; what is read of any object lies above the twelfth."""

_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
"""A string, or what opens or closes a level."""

_T = TypeVar("_T")
Content = bytes | msgspec.Raw


def decode(content: Content, decoder: msgspec.json.Decoder[_T], subject: str) -> _T:
    """The value. Raises SourceError MALFORMED."""
    try:
        try:
            return decoder.decode(content)
        except RecursionError:  # even what is skipped is walked through, level by level
            return decoder.decode(pruned(bytes(content)))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, subject, str(error)[:_LONGEST_DETAIL]) from error


def pruned(content: bytes) -> bytes:
    """The same JSON with null in place of everything that is nested too deep to be of interest."""
    parts: list[bytes] = []
    kept_from = depth = 0
    for token in _TOKEN.finditer(content):
        first = token[0][:1]
        if first in b"[{":
            depth += 1
            if depth == _DEEPEST + 1:
                parts += (content[kept_from : token.start()], b"null")
        elif first in b"]}":
            if depth == _DEEPEST + 1:
                kept_from = token.end()
            depth -= 1
    if depth <= _DEEPEST:
        parts.append(content[kept_from:])
    return b"".join(parts)


def named(error: SourceError, namespace: str, name: str) -> SourceError:
    """The same error, with whose fault it is."""
    whose = "/".join(part[:_LONGEST_NAME] for part in (namespace, name) if part)
    return SourceError(error.reason, error.subject, f"{whose}: {error.detail}")


# ---------------------------------------------------------------- what cannot be read

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_TEXTS: Final = msgspec.json.Decoder(dict[str, str] | None)
_TEXT: Final = msgspec.json.Decoder(str | None)
_NULL: Final = msgspec.Raw(b"null")


def malformed(kind: str, content: Content, detail: str) -> MalformedObject:
    """An object of that kind with which ``detail`` is wrong; never raises."""
    members = _members(content) or {}
    meta = _members(members.get("metadata", _NULL)) or {}
    spec = _members(members["spec"]) if "spec" in members else {}
    namespace, name, uid = (
        (_text(meta.get(key, _NULL)) or "")[:_LONGEST_NAME] for key in ("namespace", "name", "uid")
    )
    return MalformedObject(
        kind=kind,
        ref=PodRef(uid, namespace, name),
        detail=detail,
        node=None if spec is None else _text(spec.get("nodeName", _NULL)),
        annotations=_kept(meta.get("annotations", _NULL)) if meta else None,
    )


def _members(content: Content) -> Mapping[str, msgspec.Raw] | None:
    return _lenient(content, _MEMBERS, None)


def _text(content: Content) -> str | None:
    return _lenient(content, _TEXT, "")


def _kept(content: Content) -> Mapping[str, str] | None:
    told = _lenient(content, _TEXTS, {})
    return None if told is None else {key: text for key, text in told.items() if is_kept(key)}


def _lenient(
    content: Content, decoder: msgspec.json.Decoder[_T | None], null: _T | None
) -> _T | None:
    """The value, ``null`` in place of null; None if it cannot be read."""
    try:
        told = decode(content, decoder, "")
    except SourceError:
        return None
    return null if told is None else told
