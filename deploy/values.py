"""The chart's values as a table for people, from the comments of values.yaml. Pure.

A comment stands right above its key; a value's own mapping, such as resources, is one row.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

_KEY: Final = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z]+):")
_COMMENT: Final = re.compile(r" *# ?(?P<text>.*)")


class Value(msgspec.Struct, frozen=True):
    """One key: its dotted name, what it is by default, and the comment above it."""

    name: str
    default: Any
    about: str


def commented(text: str) -> Iterator[Value]:
    """Every key of a values file that has a comment, in its order."""
    values = yaml.safe_load(text)
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    literal = -1  # the indent of a key whose text is still going on
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if literal >= 0 and (indent > literal or not line):
            continue
        literal = -1
        if found := _COMMENT.fullmatch(line):
            comment.append(found["text"])
        elif found := _KEY.match(line):
            path = [(depth, key) for depth, key in path if depth < indent] + [
                (indent, found["key"])
            ]
            names = [key for _, key in path]
            if comment:
                yield Value(".".join(names), _at(values, names), " ".join(comment))
            literal = indent if line.endswith("|") else -1
            comment = []
        else:
            comment = []


def table(text: str) -> str:
    """A Markdown table for each mapping that holds values."""
    found = {value.name: value for value in commented(text)}
    lines: list[str] = []
    section = None
    for name, value in found.items():
        if any(other.startswith(f"{name}.") for other in found):
            continue  # it says what the values in it have in common
        parent = name.rpartition(".")[0]
        if parent != section:
            section = parent
            about = [found[parent].about, ""] if parent in found else []
            lines += ["", f"## {parent or 'names'}", "", *about]
            lines += ["| value | default | what it is |", "| --- | --- | --- |"]
        lines.append(f"| `{name}` | `{_written(value.default)}` | {value.about} |")
    return "\n".join(lines) + "\n"


def _at(values: Any, names: list[str]) -> Any:
    for name in names:
        values = values[name]
    return values


def _written(value: Any) -> str:
    """In YAML, on one line."""
    if isinstance(value, str) and "\n" in value:
        return json.dumps(value.strip())
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).partition("\n")[0]
