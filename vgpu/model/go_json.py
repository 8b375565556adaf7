"""JSON as Go's decoder reads it: null stands for nothing. Pure.

    null in a field of a struct              ⇒ as without the field
    null as a list's item or a map's value   ⇒ the zero value of its type (a pointer's is null)

The API server keeps the nulls of an object whose kind has no schema, and Kubernetes' own programs
read them so. Source: the comment of Go's ``encoding/json.Unmarshal``: null makes an interface, a
map, a pointer and a slice nil, and leaves any other value as it was.
"""

from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

_T = TypeVar("_T")

_NULL: Final = b"null"

_ZEROS: Final[tuple[tuple[type[inspect.Type], bytes], ...]] = (
    (inspect.IntType, b"0"),
    (inspect.FloatType, b"0"),
    (inspect.StrType, b'""'),
    (inspect.BytesType, b'""'),
    (inspect.BoolType, b"false"),
    (inspect.StructType, b"{}"),
    (inspect.DictType, b"{}"),
    (inspect.ListType, b"[]"),
    (inspect.VarTupleType, b"[]"),
)
"""Type -> its zero value; of several possible types the first counts, so a quantity is 0."""

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])


def decode_go(content: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[_T]) -> _T:
    """The value. Raises msgspec.DecodeError, ValueError, RecursionError as the decoder does.

    JSON without nulls, and with nulls where the type allows them, is decoded in one step.
    """
    try:
        return decoder.decode(content)
    except msgspec.ValidationError:
        text = bytes(content)
        if _NULL not in text:
            raise
    type_: Any = decoder.type
    return decoder.decode(_filled(msgspec.Raw(text), _type_info(type_)))


@lru_cache(maxsize=256)
def _type_info(type_: Any) -> inspect.Type:
    return inspect.type_info(type_)


def _filled(text: msgspec.Raw, info: inspect.Type) -> msgspec.Raw:
    """The same JSON without the nulls that a value of this type cannot have."""
    first = bytes(text).strip()[:4]
    if first == _NULL:
        return _zero(info) or text
    for type_ in _possible(info):
        if first[:1] == b"{" and isinstance(type_, inspect.StructType):
            fields = {field.encode_name: field.type for field in type_.fields}
            members = {
                name: _filled(value, fields[name]) if name in fields else value
                for name, value in _MEMBERS.decode(text).items()
                if bytes(value) != _NULL
            }
            return _encoded(members)
        if first[:1] == b"{" and isinstance(type_, inspect.DictType):
            values = _MEMBERS.decode(text).items()
            return _encoded({name: _filled(value, type_.value_type) for name, value in values})
        if first[:1] == b"[" and isinstance(type_, inspect.ListType | inspect.VarTupleType):
            return _encoded([_filled(item, type_.item_type) for item in _ITEMS.decode(text)])
    return text


def _encoded(value: dict[str, msgspec.Raw] | list[msgspec.Raw]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _zero(info: inspect.Type) -> msgspec.Raw | None:
    """The zero value of a type; None for one that may be null, or that has none."""
    possible = _possible(info)
    if any(isinstance(type_, inspect.NoneType) for type_ in possible):
        return None
    zeros = (zero for kind, zero in _ZEROS if any(isinstance(type_, kind) for type_ in possible))
    return next(map(msgspec.Raw, zeros), None)


def _possible(info: inspect.Type) -> tuple[inspect.Type, ...]:
    """The types that a value may have."""
    return info.types if isinstance(info, inspect.UnionType) else (info,)
