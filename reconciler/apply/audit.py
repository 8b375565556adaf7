"""The audit: each action's intent and its outcome, a line of JSON each.

An intent is on the disk before its action begins, with the before-image of the changed values, so
that after a crash :mod:`reconciler.apply.restore` knows which objects to check. An audit that
cannot be written is an error before the action, and no action begins without its intent.
"""

import getpass
import logging
import os
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import BinaryIO, Final, Self

import msgspec

from reconciler.apply.records import AuditError, AuditEvent, AuditRecord
from reconciler.model import ActionResult, Entry, Plan
from reconciler.reasons import ActionOutcome
from vgpu.model.printable_text import escaped_json
from vgpu.program.output import say_text

log = logging.getLogger(__name__)

STANDARD: Final = "-"
"""The path that stands for standard output, or input when it is read."""

LONGEST_LINE: Final = 4 * 1024 * 1024
"""Maximum length of a line, in bytes. An object has at most 256 KiB of annotations; a before-image
and an after-image of them, escaped, are far shorter."""

_TORN: Final = b" #torn\n"
"""The end of a line that an earlier process has not finished; no JSON can end like this."""

_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


# ---------------------------------------------------------------- writing


class Audit:
    """Appends lines; flushes and syncs each. A context manager that closes its file."""

    def __init__(
        self, sink: "_File | _Output", path: str, *, by: str, clock: Callable[[], float]
    ) -> None:
        """Use :meth:`open`."""
        self._sink = sink
        self._path = path
        self._by = by
        self._clock = clock

    @classmethod
    def open(
        cls,
        path: str,
        *,
        by: str = "",
        clock: Callable[[], float] = time.time,
        flag: str = "--audit",
    ) -> Self:
        """Append to the file, which is created if necessary; ``-`` is standard output.

        ``by`` is the acting user, ``clock`` returns unix seconds, ``flag`` is the flag that errors
        name. Raises AuditError.
        """
        named = f"{flag} {path}"
        try:
            sink = _Output() if path == STANDARD else _File(path)
        except (OSError, ValueError) as error:
            raise AuditError(named, _message(error)) from error
        return cls(sink, named, by=by or whoami(), clock=clock)

    def intent(self, plan: Plan, entry: Entry) -> None:
        """Record an action before it begins. Raises AuditError: then it must not begin."""
        self._write(plan, entry, AuditEvent.INTENT)

    def result(self, plan: Plan, result: ActionResult) -> None:
        """Record an action's outcome. Raises AuditError."""
        self._write(plan, result.entry, AuditEvent.RESULT, result.outcome, result.detail)

    def write(self, record: AuditRecord) -> None:
        """Append a record made elsewhere, with our time and user. Raises AuditError."""
        at = datetime.fromtimestamp(self._clock(), UTC)
        self._append(msgspec.structs.replace(record, time=at, by=self._by))

    def close(self) -> None:
        """Write no more."""
        self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def _write(
        self,
        plan: Plan,
        entry: Entry,
        event: AuditEvent,
        outcome: ActionOutcome | None = None,
        detail: str = "",
    ) -> None:
        finding = entry.finding
        if finding.action is None:
            return  # no action, no record
        record = AuditRecord(
            time=datetime.fromtimestamp(self._clock(), UTC),
            plan=plan.id,
            event=event,
            rule=finding.rule,
            cause=finding.cause,
            object_ref=finding.object_ref,
            action=finding.action,
            evidence=finding.evidence,
            outcome=outcome,
            detail=detail,
            by=self._by,
        )
        self._append(record)

    def _append(self, record: AuditRecord) -> None:
        try:
            self._sink.append(msgspec.json.encode(record) + b"\n")
        except (OSError, ValueError) as error:
            raise AuditError(self._path, _message(error)) from error


class _File:
    """A file, such as a pipe; a regular file is synced after every line."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self._fd = os.open(path, _FLAGS, 0o600)
        try:
            self._syncs = stat.S_ISREG(os.fstat(self._fd).st_mode)
            if self._syncs and self._ends_torn():
                self.append(_TORN)
        except OSError:
            self.close()
            raise

    def append(self, line: bytes) -> None:
        """Raises OSError."""
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        if self._syncs:
            os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _ends_torn(self) -> bool:
        """Whether an earlier process died within a line; our lines must not continue it."""
        size = os.fstat(self._fd).st_size
        return size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"


class _Output:
    """Standard output, which other code writes to as well."""

    def append(self, line: bytes) -> None:
        """Raises OSError."""
        say_text(escaped_json(line.decode()))
        sys.stdout.flush()

    def close(self) -> None:
        pass


def whoami() -> str:
    """The user and the machine or pod, by their names if they have any."""
    user = f"uid {os.geteuid()}"
    with suppress(KeyError, OSError, ImportError):  # an image without /etc/passwd
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


def _message(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# ---------------------------------------------------------------- reading


def read(path: str) -> Iterator[AuditRecord]:
    """All records of an audit, the oldest first; ``-`` is standard input.

    A line that was cut short, at the end of the file or where a process died, is logged and left
    out. Raises AuditError, which names the line.
    """
    try:
        with _reader(path) as file:
            yield from _records(file, path)
    except OSError as error:
        raise AuditError(path, _message(error)) from error


def _reader(path: str) -> BinaryIO:
    return open(0 if path == STANDARD else path, "rb", closefd=path != STANDARD)


def _records(file: BinaryIO, path: str) -> Iterator[AuditRecord]:
    decoder = msgspec.json.Decoder(AuditRecord)
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise AuditError(path, f"longer than {LONGEST_LINE} bytes", number)
        torn = line.endswith(_TORN) or not line.endswith(b"\n")
        if not line.strip():
            continue
        try:
            yield decoder.decode(line.removesuffix(_TORN))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            if not torn:
                raise AuditError(path, str(error), number) from error
            extra = {"audit": path, "line": number}
            log.warning("a line of the audit was cut short, and is left out", extra=extra)
