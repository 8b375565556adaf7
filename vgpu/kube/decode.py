"""Decoding of JSON into the structs of :mod:`vgpu.kube.wire`, and of malformed objects; pure.

Any byte may be written by a tenant: the API server stores anything for a kind without a schema.
"""

import re
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from vgpu.kube.kept_keys import is_kept
from vgpu.model.go_json import decode_go
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject
from vgpu.model.reasons import Reason, SourceError

_LONGEST_NAME: Final = 253
"""Maximum length of an object's name, in characters; an error repeats no more."""

_LONGEST_DETAIL: Final = 300
"""Maximum length of a decoder's message, in characters, since it repeats what it has read."""

_DEEPEST: Final = 64
"""Number of decoded levels of nesting; all fields that we read are above the twelfth."""

_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
"""A string, or a bracket that opens or closes a level."""

_T = TypeVar("_T")
Content = bytes | msgspec.Raw


def decode(content: Content, decoder: msgspec.json.Decoder[_T], object_name: str) -> _T:
    """The value, with nulls as Go reads them. Raises SourceError MALFORMED."""
    try:
        try:
            return decode_go(content, decoder)
        except RecursionError:  # the decoder walks through skipped values, too
            return decode_go(pruned(bytes(content)), decoder)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, object_name, str(error)[:_LONGEST_DETAIL]) from error


def decode_part(
    content: Content, decoder: msgspec.json.Decoder[_T], object_name: str, place: str
) -> _T:
    """The value of the field ``place`` of an object. Raises SourceError MALFORMED."""
    try:
        return decode(content, decoder, object_name)
    except SourceError as error:
        what, at, field = error.detail.partition(" - at `$")
        detail = f"{what} - at `$.{place}{field if at else '`'}"
        raise SourceError(error.reason, error.object_name, detail) from error


def decode_at_once(content: Content, decoder: msgspec.json.Decoder[_T], object_name: str) -> _T:
    """The value, without a null that only Go accepts; for what is decoded in parts if this fails.

    So one object with such a null costs the others of its list no time. Raises SourceError
    MALFORMED.
    """
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, object_name, str(error)[:_LONGEST_DETAIL]) from error


def pruned(content: bytes) -> bytes:
    """The same JSON with null in place of everything below ``_DEEPEST`` levels."""
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


def is_too_deep(content: Content) -> bool:
    """Whether an object is nested so deeply that :func:`pruned` may have cut it.

    It may have been cut within a list, whose items lie two levels deep.
    """
    depth = 0
    for token in _TOKEN.finditer(content):
        first = token[0][:1]
        if first in b"[{":
            depth += 1
            if depth >= _DEEPEST - 2:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def named(error: SourceError, namespace: str, name: str) -> SourceError:
    """The same error, with the object that it is about."""
    inner_name = "/".join(part[:_LONGEST_NAME] for part in (namespace, name) if part)
    return SourceError(error.reason, error.object_name, f"{inner_name}: {error.detail}")


# ---------------------------------------------------------------- malformed objects

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_TEXTS: Final = msgspec.json.Decoder(dict[str, str] | None)
_TEXT: Final = msgspec.json.Decoder(str | None)
_NULL: Final = msgspec.Raw(b"null")


def malformed(kind: str, content: Content, detail: str) -> MalformedObject:
    """The malformed object of that kind, with ``detail`` as what is wrong; never raises."""
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
    texts = _lenient(content, _TEXTS, {})
    return None if texts is None else {key: text for key, text in texts.items() if is_kept(key)}


def _lenient(
    content: Content, decoder: msgspec.json.Decoder[_T | None], null: _T | None
) -> _T | None:
    """The value, ``null`` in place of null; None if it cannot be read."""
    try:
        value = decode(content, decoder, "")
    except SourceError:
        return None
    return null if value is None else value
