"""The environment inside a device plugin's answer, read from its protobuf bytes.

The kubelet keeps the answer to Allocate in its checkpoint: a ``ContainerAllocateResponse`` of the
device-plugin API v1beta1, whose field 1 is ``map<string, string> envs``. Only this field is read
here, by protobuf's wire rules, so that a node needs no protobuf runtime for it. Any bytes give
a mapping or a :class:`WireError`.
"""

from collections.abc import Iterator

ENVS = 1
KEY, VALUE = 1, 2  # of a map entry

_VARINT, _BYTES, _GROUP, _END_GROUP = 0, 2, 3, 4  # wire types
_FIXED = {1: 8, 5: 4}  # wire type -> bytes

_MAX_GROUP_DEPTH = 100  # protobuf's own default


class WireError(ValueError):
    """The bytes are not a protobuf message."""


def environment(message: bytes) -> dict[str, str]:
    """The ``envs`` of a ContainerAllocateResponse; a repeated key keeps its last value.

    Raises WireError.
    """
    envs = {}
    try:
        for field, entry in _fields(message):
            if field == ENVS:
                pair = {KEY: "", VALUE: ""}
                pair.update((n, text.decode()) for n, text in _fields(entry) if n in pair)
                envs[pair[KEY]] = pair[VALUE]
    except UnicodeDecodeError as error:
        raise WireError("a string that is not UTF-8") from error
    return envs


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of the outermost level, as (number, content).

    Every other field is checked and skipped: it is unknown, or has not the type it should have,
    which to protobuf is the same.
    """
    at = 0
    groups: list[int] = []
    while at < len(message):
        tag, at = _varint(message, at, longest=5)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise WireError(f"field number {number}")
        if wire == _GROUP:
            groups.append(number)
            if len(groups) > _MAX_GROUP_DEPTH:
                raise WireError("groups too deep")
        elif wire == _END_GROUP:
            if not groups or groups.pop() != number:
                raise WireError("a group ends that did not begin")
        else:
            start, at = _content(message, at, wire)
            if wire == _BYTES and not groups:
                yield number, message[start:at]
    if groups:
        raise WireError("a group without end")


def _content(message: bytes, at: int, wire: int) -> tuple[int, int]:
    """Where the content of the field whose tag ended at ``at`` begins and ends."""
    if wire == _VARINT:
        return at, _varint(message, at, longest=10)[1]
    if wire == _BYTES:
        size, at = _varint(message, at, longest=5)
    elif wire in _FIXED:
        size = _FIXED[wire]
    else:
        raise WireError(f"wire type {wire}")
    if size > len(message) - at:
        raise WireError("a field is cut off")
    return at, at + size


def _varint(message: bytes, at: int, longest: int) -> tuple[int, int]:
    """The integer that starts at ``at``, of at most ``longest`` bytes, and where it ends."""
    value = 0
    for shift, byte in enumerate(message[at : at + longest]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise WireError("an integer is cut off or too long")
