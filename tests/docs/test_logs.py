"""Every log line is an event (docs/language.md): its message names it in at least two words.

    words(message without placeholders) >= 2,  and no message has the word "defect"

The object and the reason are fields. A message that is no literal is not checked.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Final

import pytest

from tests.support import product
from tests.support.defects import no_defects
from tests.support.environment import ROOT
from vgpu.program.own_packages import PACKAGES

LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
LOGGERS: Final = re.compile(r"_?log(ger)?|logging")
PLACEHOLDER: Final = re.compile(r"%[-+#0-9.]*[a-z]")
KEPT: Final = {("vgpu/web/server.py", "listening"): "vgpu/web is a library of its own"}
WORD: Final = re.compile(r"[^\W\d_]{2,}")


def messages(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and message of every call of a logger; a part that is no literal is a placeholder."""
    for node in nodes:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        receiver = node.func.value
        name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
        if not LOGGERS.fullmatch(name) or node.func.attr not in {*LEVELS, "log"}:
            continue
        place = 1 if node.func.attr == "log" else 0
        message = node.args[place] if len(node.args) > place else None
        if isinstance(message, ast.Constant) and isinstance(message.value, str):
            yield node.lineno, message.value
        elif isinstance(message, ast.JoinedStr):
            parts = (
                part.value if isinstance(part, ast.Constant) else "%s" for part in message.values
            )
            yield node.lineno, "".join(parts)


def problem(message: str) -> str:
    """Why this message names no event; "" if it does."""
    if "defect" in message:
        return 'an unexpected error is not called a "defect"'
    if len(WORD.findall(PLACEHOLDER.sub(" ", message))) < 2:
        return "it is no event: what happened to what, with object and reason as fields"
    return ""


@no_defects
def test_every_log_line_is_an_event():
    for file in product.files(PACKAGES):
        name = str(file.relative_to(ROOT))
        for line, message in messages(product.nodes(file)):
            if (name, message) not in KEPT and (why := problem(message)):
                yield f"{name}:{line}: {message!r}: {why}"


@pytest.mark.parametrize(
    "call",
    [
        'log.info("bound")',
        'log.debug("%s", error)',
        'log.warning("%s: %s", a, b)',
        'log.error(f"{name}")',
        'self._log.exception("the cycle failed on a defect")',
        'log.critical("ended by a defect")',
        'log.log(level, "cycle")',
    ],
)
def test_a_line_that_is_no_event_is_found(call):
    ((_, message),) = messages(ast.walk(ast.parse(call)))
    assert problem(message)


@pytest.mark.parametrize(
    "call", ['log.info("pod bound", extra={"pod": name})', 'log.log(level, "cycle ended")']
)
def test_an_event_is_none(call):
    ((_, message),) = messages(ast.walk(ast.parse(call)))
    assert not problem(message)
