"""Texts without control characters, since tenants write names and messages that people read.

A character is *printable* as ``str.isprintable`` has it: no control character of C0 or C1, so no
escape sequence, nor one that changes the direction or is invisible. Text for people has ``?`` in
its place; JSON has its escapes, so that it is equal once it is parsed.
"""

import json


def printable(text: str) -> str:
    """One line, or a part of one: a line break is no printable character."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)


def printable_lines(text: str) -> str:
    """Several lines, whose breaks and tabs stay."""
    if is_printable(text):
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def is_printable(text: str) -> bool:
    """Whether each line of the text is printable."""
    return all(line.isprintable() for line in text.split("\n"))


def escaped_json(text: str) -> str:
    """JSON of one or several lines, with escapes for characters that are not printable."""
    if is_printable(text):
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )
