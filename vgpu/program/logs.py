"""Logs for machines and people: one line an event, logfmt or JSON, on standard error."""

import json
import logging
import sys
import time
import traceback
from typing import Any

from vgpu.model.printable_text import printable, printable_lines

LEVELS = ("debug", "info", "warn", "error")
FORMATS = ("logfmt", "json")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LEVEL_NAMES = {"WARNING": "warn", "CRITICAL": "error"}


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The record as ordered fields: ts, level, caller, msg, then its extras."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    entry: dict[str, Any] = {
        "ts": f"{stamp}.{int(record.msecs):03d}Z",
        "level": _LEVEL_NAMES.get(record.levelname, record.levelname.lower()),
        "caller": f"{record.name}:{record.lineno}",
        "msg": record.getMessage(),
    }
    entry.update({k: v for k, v in vars(record).items() if k not in _STANDARD})
    if record.exc_info:
        entry["err"] = "".join(traceback.format_exception(*record.exc_info)).strip()
    return entry


class Logfmt(logging.Formatter):
    """``key=value`` pairs; whatever is not plain is quoted, so that nothing can forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return " ".join(f"{key}={_plain(str(value))}" for key, value in fields(record).items())


class Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return json.dumps(fields(record), default=str)


def _plain(text: str) -> str:
    bare = text.isascii() and text.isprintable() and not any(c in text for c in ' ="\\')
    return text if bare and text else json.dumps(text)


def configure(level: str, fmt: str) -> None:
    """Send everything at ``level`` and above to standard error in ``fmt``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if fmt == "json" else Logfmt())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel({"warn": logging.WARNING}.get(level, level.upper()))


class _Message(logging.Formatter):
    """The message with its fields, without time and place."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback of an unexpected error."""
        extras = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        pairs = (f"{key}={_plain(str(value))}" for key, value in extras.items())
        message = printable(" ".join((record.getMessage(), *pairs)))
        if record.exc_info is None:
            return message
        return f"{message}\n{printable_lines(self.formatException(record.exc_info))}"


def configure_default() -> None:
    """How the records of a command that configures no log are shown on standard error."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Message())
