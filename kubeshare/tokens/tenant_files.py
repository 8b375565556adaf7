"""The tenants of a node's GPUs, from Gemini's files, and the events by which their changes show.

A file that cannot be used keeps what it had before: a damaged file takes nobody's share.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from kubeshare.node_files import CONFIG, PORTS
from kubeshare.tenant_identity import (
    IDENTITIES_LIMIT,
    TENANTS,
    TenantEntry,
    TenantIdentity,
    parse_identities,
)
from kubeshare.tokens.takeover_record import FilesRecord
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.kubeshare.gemini_config import parse_config, parse_ports
from vgpu.schemes.kubeshare.text import is_uuid
from vgpu.sources.files import read_file

IN_CLOSE_WRITE: Final = 0x8
IN_MOVED_TO: Final = 0x80
IN_CREATE: Final = 0x100
IN_DELETE: Final = 0x200
"""Events of Linux's inotify (``<sys/inotify.h>``)."""

EVENT_BYTES: Final = 64 * 1024
"""Maximum size of one read of events, in bytes."""

_Line = TypeVar("_Line")


class TenantFiles:
    """The folder of KubeShare's scheduler (``/kubeshare/scheduler``). For one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.content = FilesRecord()
        self.problems: tuple[str, ...] = ()

    def read(self) -> Mapping[int, TenantEntry]:
        """The tenants by port; sets ``problems``, one line for each file that cannot be used."""
        problems: list[str] = []
        before = self.content
        self.content = FilesRecord(
            self._folder(CONFIG, parse_config, before.shares, problems),
            self._folder(PORTS, parse_ports, before.ports, problems),
            self._folder(TENANTS, parse_identities, before.tenants, problems),
        )
        tenants: dict[int, TenantEntry] = {}
        for uuid, ports in sorted(self.content.ports.items()):
            shares = {each.name: each for each in self.content.shares.get(uuid, ())}
            known = {each.key: each for each in self.content.tenants.get(uuid, ())}
            for each in ports:
                who = known.get(each.name) or TenantIdentity(each.name, each.namespace, each.pod)
                entry = TenantEntry(
                    uuid,
                    who.namespace,
                    who.pod,
                    each.port,
                    shares.get(each.name),
                    who.key,
                    who.addresses,
                )
                if tenants.setdefault(each.port, entry) is not entry:
                    other = tenants[each.port]
                    problems.append(
                        f"{self._path / PORTS / uuid}: port {each.port} of {entry.name} "
                        f"is that of {other.name}"
                    )
        self.problems = tuple(problems)
        return tenants

    def _folder(
        self,
        name: str,
        parse: Callable[[bytes, str], tuple[_Line, ...]],
        before: Mapping[str, tuple[_Line, ...]],
        problems: list[str],
    ) -> dict[str, tuple[_Line, ...]]:
        folder = self._path / name
        try:
            uuids = sorted(file.name for file in folder.iterdir() if is_uuid(file.name))
        except OSError as error:
            if name == TENANTS and error.errno == errno.ENOENT:  # KubeShare's own has none
                return {}
            problems.append(f"{folder}: {error.strerror}")
            return dict(before)
        contents: dict[str, tuple[_Line, ...]] = {}
        for uuid in uuids:
            path = str(folder / uuid)
            try:
                contents[uuid] = parse(read_file(path, IDENTITIES_LIMIT), path)
            except SourceError as error:
                if error.reason is Reason.ABSENT:
                    continue
                problems.append(str(error))
                if uuid in before:
                    contents[uuid] = before[uuid]
        return contents


class FolderEvents:
    """The events of the folders, as a descriptor to wait for. Raises OSError when created."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._add_watch = libc.inotify_add_watch
        self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        files = IN_CLOSE_WRITE | IN_MOVED_TO | IN_DELETE
        folders = (path / CONFIG, path / PORTS, path / TENANTS)
        self._folders = {path: IN_CREATE, **dict.fromkeys(folders, files)}
        self.watch()

    def watch(self) -> None:
        """Watch the folders, also those that were not there before."""
        for folder, events in self._folders.items():
            self._add_watch(self.fd, os.fsencode(folder), events)

    def drain(self) -> None:
        """Take all events that have come."""
        try:
            while os.read(self.fd, EVENT_BYTES):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """End."""
        os.close(self.fd)
