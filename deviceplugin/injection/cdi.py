"""With CDI: a container gets its whole share from a spec file of its binding's name.

``vgpu-<name>.json`` of the kind ``vgpu.dev/share`` has one device, of that name. A runtime that
knows CDI refuses to make the container as long as there is no such file, and the kubelet tries
again; a runtime that does not know CDI makes the container without a GPU. A runtime may answer from
an old cache, so the content under a name never changes.

A file's annotations name its owner and boot. They need version 0.6.0 of the format (CDI library
0.6; containerd 1.7.11 has 0.5.4, 1.7.18 has 0.7.2). Annotations of edits, which are for the runtime
itself, have no place in the format and are left out.

A file under a name of ours that is no whole spec (emptied, truncated, ``{}``) is damaged and counts
as lost, so that it is rewritten or removed. No runtime can have read a device from it.
"""

import errno
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from deviceplugin.model import BINDING_KIND, checked_name
from vgpu.io import atomic_files
from vgpu.model.names import Scheme
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.codec import NO_DEVICES, VISIBLE_DEVICES, ContainerEdits
from vgpu.schemes.registry import scheme_names
from vgpu.sources.files import read_file

VERSION: Final = "0.6.0"

BOOT: Final = "vgpu.dev/boot-id"
SCHEME: Final = "vgpu.dev/scheme"

EARLY: Final = ContainerEdits({VISIBLE_DEVICES: NO_DEVICES})

_LIMIT: Final = 1024 * 1024
"""Maximum size of a spec file in bytes; ours have a thousand."""

_FILE: Final = re.compile(r"vgpu-([0-9a-f]{24})\.json")

_MOUNTED: Final = ("nosuid", "nodev", "rbind", "rprivate")
"""Mount options besides ``ro`` or ``rw``, as in NVIDIA's own specs."""

_PERMISSIONS: Final = "rwm"


class _Node(msgspec.Struct, frozen=True):
    path: str
    permissions: str = _PERMISSIONS


class _Mount(msgspec.Struct, frozen=True, rename="camel"):
    host_path: str
    container_path: str
    options: tuple[str, ...]


class _Edits(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    env: tuple[str, ...] = ()
    device_nodes: tuple[_Node, ...] = ()
    mounts: tuple[_Mount, ...] = ()


class _Device(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    container_edits: _Edits


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    cdi_version: str
    kind: str
    annotations: dict[str, str]
    devices: tuple[_Device, ...]


class _Marks(msgspec.Struct, frozen=True):
    """The part of any CDI spec that identifies its owner."""

    kind: str = ""
    annotations: Mapping[str, str] = {}


class _Owner(StrEnum):
    """The owner of a file under a name of ours."""

    NOBODY = "nobody"  # there is no file
    DAMAGED = "damaged"  # no whole spec
    STRANGE = "strange"  # a spec of another kind: no container gets a share from it
    OTHERS = "others"  # of another plugin of ours, or no regular file
    OLDER = "older"  # ours, of another boot
    OURS = "ours"


_MARKS: Final = msgspec.json.Decoder(_Marks)
_SPEC: Final = msgspec.json.Decoder(_Spec)


def spec(name: str, edits: ContainerEdits, scheme: Scheme, boot_id: str) -> bytes:
    """The content of a spec file; equal edits have equal content."""
    device_edits = _Edits(
        env=tuple(f"{key}={value}" for key, value in sorted({**EARLY.env, **edits.env}.items())),
        device_nodes=tuple(_Node(path) for path in edits.devices),
        mounts=tuple(
            _Mount(mount.host, mount.container, ("ro" if mount.read_only else "rw", *_MOUNTED))
            for mount in edits.mounts
        ),
    )
    marks = {BOOT: boot_id, SCHEME: scheme.value}
    whole = _Spec(VERSION, BINDING_KIND, marks, (_Device(name, device_edits),))
    return msgspec.json.format(msgspec.json.encode(whole)) + b"\n"


class CdiInjector:
    """A :class:`deviceplugin.ports.Injector` for runtimes with CDI. One thread writes."""

    guesses: Final = False

    def __init__(self, folder: str, scheme: Scheme, boot_id: str) -> None:
        """``folder`` is one of the runtime's ``cdi_spec_dirs``; other plugins may use it too."""
        self._folder = Path(folder)
        self._scheme = scheme
        self._boot_id = boot_id

    def response(
        self,
        name: str,  # noqa: ARG002  # the answer is the same for all
        edits: ContainerEdits,  # noqa: ARG002
        late_env: Mapping[str, str],  # noqa: ARG002
    ) -> ContainerEdits:
        """See :meth:`deviceplugin.ports.Injector.response`: no device; the CDI spec adds them."""
        return EARLY

    def write(self, name: str, edits: ContainerEdits, late_env: Mapping[str, str]) -> None:  # noqa: ARG002  # all comes late
        """See :meth:`deviceplugin.ports.Injector.write`.

        Raises OSError EEXIST if a whole spec of this boot with other content is there already.
        """
        path = self._path(name)
        content = spec(name, edits, self._scheme, self._boot_id)
        present = _content(path)
        if present == content:
            return
        if self._owner(name, present) in (_Owner.OURS, _Owner.OTHERS):
            detail = "its content differs, and a runtime may have read it"
            raise OSError(errno.EEXIST, detail, str(path))
        self._folder.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, content, lasting=False)

    def written(self) -> frozenset[str]:
        """See :meth:`deviceplugin.ports.Injector.written`."""
        return frozenset(filter(self.is_whole, self._names()))

    def is_whole(self, name: str) -> bool:
        """See :meth:`deviceplugin.ports.Injector.is_whole`."""
        return self._look(name) is _Owner.OURS

    def prune(self, names: Collection[str]) -> None:
        """See :meth:`deviceplugin.ports.Injector.prune`. Other plugins' files stay.

        A damaged file may have been another plugin's, which rewrites it if it is still needed.
        """
        for name in self._names() - frozenset(names):
            if self._look(name) not in (_Owner.STRANGE, _Owner.OTHERS):
                self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"vgpu-{checked_name(name)}.json"

    def _names(self) -> frozenset[str]:
        """The names of all files that are named like ours. Raises OSError."""
        if not self._folder.exists():
            return frozenset()
        matches = (_FILE.fullmatch(path.name) for path in self._folder.iterdir())
        return frozenset(match[1] for match in matches if match)

    def _look(self, name: str) -> _Owner:
        """The owner of the file as it is now; an unreadable file is not ours."""
        try:
            return self._owner(name, _content(self._path(name)))
        except OSError:
            return _Owner.OTHERS

    def _owner(self, name: str, content: bytes | None) -> _Owner:
        if content is None:
            return _Owner.NOBODY
        try:
            marks = _MARKS.decode(content)
            if marks.kind != BINDING_KIND:
                return _Owner.STRANGE if marks.kind else _Owner.DAMAGED
            scheme = marks.annotations.get(SCHEME)
            if scheme != self._scheme:
                return _Owner.OTHERS if scheme in scheme_names() else _Owner.DAMAGED
            whole = _SPEC.decode(content)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return _Owner.DAMAGED
        if [device.name for device in whole.devices] != [name]:
            return _Owner.DAMAGED
        boot = whole.annotations.get(BOOT)
        return _Owner.OURS if boot == self._boot_id else _Owner.OLDER


def _content(path: Path) -> bytes | None:
    """The file's bytes; None if there is no file, b"" if it is too long for a spec.

    Raises OSError, also if it is no regular file.
    """
    try:
        return read_file(str(path), _LIMIT)
    except SourceError as error:
        if error.reason is Reason.ABSENT:
            return None
        if error.reason is Reason.TOO_LARGE:
            return b""
        raise OSError(errno.EIO, error.detail or error.reason.explanation, str(path)) from error
