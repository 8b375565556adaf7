"""The keys of `vgpu top`: a terminal's bytes as commands. Pure."""

import re
from enum import Enum, auto

import msgspec


class Sort(Enum):
    """The order of a GPU's containers; the value is the text on the screen."""

    NAME = "name"
    MEMORY = "memory used"
    UTILIZATION = "utilisation"
    LIMIT = "memory limit"


class Move(Enum):
    """A direction to scroll."""

    UP = auto()
    DOWN = auto()
    PAGE_UP = auto()
    PAGE_DOWN = auto()
    TOP = auto()
    BOTTOM = auto()


class Command(Enum):
    """The other commands of keys."""

    QUIT = auto()
    HELP = auto()
    REPAINT = auto()
    FILTER = auto()
    PROCESSES = auto()


Key = Sort | Move | Command

KEYS: dict[bytes, Key] = {
    b"q": Command.QUIT,
    b"\x03": Command.QUIT,  # Ctrl-C, if the terminal does not make a signal of it
    b"h": Command.HELP,
    b"/": Command.FILTER,
    b"p": Command.PROCESSES,
    b"?": Command.HELP,
    b"\x0c": Command.REPAINT,
    b"n": Sort.NAME,
    b"m": Sort.MEMORY,
    b"u": Sort.UTILIZATION,
    b"l": Sort.LIMIT,
    # xterm's ctlseqs: cursor keys in normal and application mode; others by VT220 and xterm
    b"\x1b[A": Move.UP,
    b"\x1bOA": Move.UP,
    b"k": Move.UP,
    b"\x1b[B": Move.DOWN,
    b"\x1bOB": Move.DOWN,
    b"j": Move.DOWN,
    b"\x1b[5~": Move.PAGE_UP,
    b"\x1b[6~": Move.PAGE_DOWN,
    b" ": Move.PAGE_DOWN,
    b"\x1b[H": Move.TOP,
    b"\x1bOH": Move.TOP,
    b"\x1b[1~": Move.TOP,
    b"g": Move.TOP,
    b"\x1b[F": Move.BOTTOM,
    b"\x1bOF": Move.BOTTOM,
    b"\x1b[4~": Move.BOTTOM,
    b"G": Move.BOTTOM,
}

LONGEST = 32  # maximum length of an escape sequence, in bytes
_TOKEN = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O)\Z")


class Typed(msgspec.Struct, frozen=True):
    """The keys that were typed, and the start of a key whose other bytes have not arrived."""

    keys: tuple[Key, ...]
    rest: bytes


def typed(sent: bytes) -> Typed:
    """The keys that the terminal has sent; unknown keys are skipped.

    Behind the key of the filter everything is its text, and in ``rest``.
    """
    unfinished = _UNFINISHED.search(sent)
    whole = sent[: unfinished.start()] if unfinished else sent
    keys = []
    for token in _TOKEN.finditer(whole):
        key = KEYS.get(token.group())
        if key is not None:
            keys.append(key)
        if key is Command.FILTER:
            return Typed(tuple(keys), sent[token.end() :])
    rest = sent[len(whole) :]
    return Typed(tuple(keys), rest if len(rest) <= LONGEST else b"")


LONGEST_PATTERN = 60
"""Maximum length of a filter, in characters."""


class Edited(msgspec.Struct, frozen=True):
    """A filter, whether it is still being typed, and the bytes behind its end."""

    pattern: str
    typing: bool
    rest: bytes = b""


def edited(pattern: str, sent: bytes) -> Edited:
    """A filter after these bytes were typed.

    Enter keeps it, Esc and Ctrl-C drop it, Backspace removes its last character.
    """
    text = sent.decode("utf-8", "ignore")
    for offset, char in enumerate(text):
        if char in "\r\n\x1b\x03":
            kept = pattern if char in "\r\n" else ""
            return Edited(kept, False, text[offset + 1 :].encode())
        if char in "\x7f\b":
            pattern = pattern[:-1]
        elif char.isprintable() and len(pattern) < LONGEST_PATTERN:
            pattern += char
    return Edited(pattern, True)


def scrolled(offset: int, move: Move, page: int, lines: int) -> int:
    """The new first line of ``lines``, of which ``page`` are visible."""
    last = max(0, lines - page)
    target = {
        Move.UP: offset - 1,
        Move.DOWN: offset + 1,
        Move.PAGE_UP: offset - page,
        Move.PAGE_DOWN: offset + page,
        Move.TOP: 0,
        Move.BOTTOM: last,
    }[move]
    return min(max(0, target), last)
