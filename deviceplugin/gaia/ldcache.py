"""``/etc/ld.so.cache``: where the dynamic loader finds each library.

The format of glibc since 2.2 (``sysdeps/generic/dl-cache.h``): ``glibc-ld.so.cache1.1``, either
alone or after the older ``ld.so-1.7.0``. Little-endian.
"""

import struct
from typing import Final

from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import MIB

CACHE_LIMIT: Final = 16 * MIB
"""Maximum size of the file in bytes; a large workstation has 200 KiB."""

_LONGEST_PATH: Final = 4096

_OLD_MAGIC: Final = b"ld.so-1.7.0\0"
_OLD_ENTRY_BYTES: Final = 12
_MAGIC: Final = b"glibc-ld.so.cache1.1"
_ALIGNMENT: Final = 8
_BIG_ENDIAN: Final = 3

_HEADER: Final = struct.Struct(
    "<20sIIB3xI12x"
)  # magic, entries, bytes of strings, flags, extension
_ENTRY: Final = struct.Struct("<iIIIQ")  # flags, name, path, OS version, hardware capabilities
_TYPE: Final = 0xFF
_ELF: Final = (1, 3)  # an ELF library of any libc, of glibc 2

Libraries = tuple[tuple[str, str], ...]
"""Pairs of a library's soname and path, in the loader's order."""


def parse(content: bytes, object_name: str = "ld.so.cache") -> Libraries:
    """The libraries of all architectures. Raises SourceError MALFORMED, TRUNCATED."""
    start = _start(content)
    if len(content) < start + _HEADER.size:
        raise SourceError(Reason.TRUNCATED, object_name, f"{len(content)} bytes")
    magic, count, _, flags, _ = _HEADER.unpack_from(content, start)
    if magic != _MAGIC or flags == _BIG_ENDIAN:
        raise SourceError(Reason.MALFORMED, object_name, f"it begins with {content[:20]!r}")
    first = start + _HEADER.size
    if first + count * _ENTRY.size > len(content):
        raise SourceError(
            Reason.TRUNCATED, object_name, f"{len(content)} bytes for {count} libraries"
        )
    entries = _ENTRY.iter_unpack(content[first : first + count * _ENTRY.size])
    return tuple(
        (_text(content, start + name, object_name), _text(content, start + path, object_name))
        for kind, name, path, _, _ in entries
        if kind & _TYPE in _ELF
    )


def _start(content: bytes) -> int:
    """The offset at which the newer format begins; offsets of texts count from there."""
    if not content.startswith(_OLD_MAGIC) or len(content) < len(_OLD_MAGIC) + 4:
        return 0
    (count,) = struct.unpack_from("<I", content, len(_OLD_MAGIC))
    end = len(_OLD_MAGIC) + 4 + count * _OLD_ENTRY_BYTES
    return int(-(-end // _ALIGNMENT) * _ALIGNMENT)


def _text(content: bytes, offset: int, object_name: str) -> str:
    end = content.find(b"\0", offset, offset + _LONGEST_PATH)
    if end < 0:
        raise SourceError(Reason.MALFORMED, object_name, f"no text at {offset}")
    try:
        return content[offset:end].decode()
    except UnicodeDecodeError as error:
        raise SourceError(Reason.MALFORMED, object_name, f"{content[offset:end][:64]!r}") from error
