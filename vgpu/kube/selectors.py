"""Label selectors as kubectl takes them with -l, for objects that no API server selects. Pure.

Format: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

_DOMAIN: Final = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/"
_KEY: Final = rf"(?:{_DOMAIN})?[A-Za-z0-9](?:[-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
_VALUE: Final = r"[A-Za-z0-9]?[-A-Za-z0-9_.]{0,62}"
_EXISTS: Final = re.compile(rf"(?P<no>!?)\s*(?P<key>{_KEY})", re.ASCII)
_EQUALS: Final = re.compile(rf"(?P<key>{_KEY})\s*(?P<op>==|=|!=)\s*(?P<value>{_VALUE})", re.ASCII)
_AMONG: Final = re.compile(
    rf"(?P<key>{_KEY})\s+(?P<op>in|notin)\s+\((?P<values>[^()]*)\)", re.ASCII
)
_COMMA: Final = re.compile(r",(?![^()]*\))")

Selects = Callable[[Mapping[str, str]], bool]
"""Whether labels are selected."""


def parse_selector(text: str) -> Selects:
    """The function of a selector such as ``app=web,tier in (a, b),!canary``. Raises ValueError."""
    tests = [_test(part.strip()) for part in _COMMA.split(text)]
    return lambda labels: all(test(labels) for test in tests)


def _test(text: str) -> Selects:
    if match := _EQUALS.fullmatch(text):
        key, value, wanted = match["key"], match["value"], match["op"] != "!="
        return lambda labels: (labels.get(key) == value) is wanted
    if match := _AMONG.fullmatch(text):
        key, among = match["key"], match["op"] == "in"
        values = frozenset(value.strip() for value in match["values"].split(","))
        return lambda labels: (labels.get(key) in values) is among
    if match := _EXISTS.fullmatch(text):
        key, exists = match["key"], not match["no"]
        return lambda labels: (key in labels) is exists
    raise ValueError(f"{text!r} is not a label selector such as app=web")
