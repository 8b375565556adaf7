"""The checkpoints that our own plugins keep on the node, one for each scheme that they serve.

Only a checkpoint written since the node started counts: all containers are newer than that. A
missing checkpoint means a scheme that is not served here. A checkpoint is read again only when it
changed.
"""

import time
from functools import partial

from vgpu.ledger.from_node import own_statements
from vgpu.ledger.statements import Statement
from vgpu.model.names import Scheme
from vgpu.model.own_checkpoint import LIMIT, decode, file_name
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.registry import registry
from vgpu.sources.files import Remembered, printable, read_file
from vgpu.sources.samples import OwnSample

DEFAULT_STATE_DIR = "/var/lib/vgpu"

_BOOT_ID = "sys/kernel/random/boot_id"
_BOOT_ID_LIMIT = 64


def boot_id(procfs: str = "/proc") -> str:
    """The kernel's name for the time since the node started.

    Raises SourceError UNREADABLE or EXHAUSTED.
    """
    path = f"{procfs}/{_BOOT_ID}"
    try:
        boot = read_file(path, _BOOT_ID_LIMIT).decode("ascii", "replace").strip()
    except SourceError as error:
        if error.reason is Reason.EXHAUSTED:
            raise
        # Never as if there were nothing to read it for.
        raise SourceError(Reason.UNREADABLE, error.object_name, error.detail) from error
    if not boot:
        raise SourceError(Reason.UNREADABLE, printable(path), "it is empty")
    return boot


def booted_at() -> float:
    """When the node started, in unix seconds."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


class OwnCheckpointSource:
    """The checkpoints of one node."""

    def __init__(self, state_dir: str = DEFAULT_STATE_DIR, procfs: str = "/proc") -> None:
        """``state_dir`` is the plugins' folder, ``procfs`` the host's /proc."""
        self._procfs = procfs
        self._files = [
            Remembered(f"{state_dir}/{file_name(scheme)}", partial(self._load, scheme))
            for scheme in registry().schemes
        ]
        self._boot = ""

    def sample(self, now: float) -> OwnSample:
        """Read everything once; ``now`` is unix seconds.

        Raises SourceError when there is something and none of it could be read.
        """
        statements: list[Statement] = []
        failures: list[SourceError] = []
        read = 0
        for file in self._files:
            try:
                statements += file.get(now)
                read += 1
            except SourceError as error:
                if error.reason is not Reason.ABSENT:
                    failures.append(error)
        if failures and not read:
            raise failures[0]
        return OwnSample(tuple(statements), tuple(error.rejection() for error in failures))

    def _load(self, scheme: Scheme, path: str) -> tuple[Statement, ...]:
        where = printable(path)
        kept = decode(read_file(path, LIMIT), where, scheme)
        self._boot = self._boot or boot_id(self._procfs)
        return tuple(own_statements(kept, where)) if kept.boot_id == self._boot else ()
