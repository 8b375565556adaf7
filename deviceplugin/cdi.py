"""With CDI: a container gets all it is bound to from a spec file of its binding's name.

``vgpu-<name>.json`` of the kind ``vgpu.dev/share`` has one device, of that name. A runtime that
knows CDI refuses to make the container as long as there is no such file, and the kubelet tries
again; one that does not know CDI gives the container no GPU. A runtime may answer from a cache that
is late, so what stands under a name never changes.

Whose a file is, and of which boot, is in its annotations, which need version 0.6.0 of the format
(CDI library 0.6; containerd 1.7.11 has 0.5.4, 1.7.18 has 0.7.2). Annotations of edits, which are
for the runtime itself, have no place in the format and are left out.
"""

import errno
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from deviceplugin import durable
from deviceplugin.names import checked
from vgpu.model import Scheme
from vgpu.reasons import Reason, SourceError
from vgpu.schemes.language import NO_DEVICES, VISIBLE_DEVICES, Edits
from vgpu.sources.files import read_file

KIND: Final = "vgpu.dev/share"
VERSION: Final = "0.6.0"
DEFAULT_SPEC_DIR: Final = "/var/run/cdi"

BOOT: Final = "vgpu.dev/boot-id"
SCHEME: Final = "vgpu.dev/scheme"

EARLY: Final = Edits({VISIBLE_DEVICES: NO_DEVICES})

_LIMIT: Final = 1024 * 1024
"""Bytes of a spec file; ours have a thousand."""

_FILE: Final = re.compile(r"vgpu-([0-9a-f]{24})\.json")

_MOUNTED: Final = ("nosuid", "nodev", "rbind", "rprivate")
"""Besides ``ro`` or ``rw``; those that NVIDIA's own specs have."""

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
    """As much of any CDI spec as tells whose it is."""

    kind: str = ""
    annotations: Mapping[str, str] = {}


_MARKS: Final = msgspec.json.Decoder(_Marks)


def spec(name: str, edits: Edits, scheme: Scheme, boot_id: str) -> bytes:
    """The content of a spec file; the same for the same edits."""
    given = _Edits(
        env=tuple(f"{key}={value}" for key, value in sorted({**EARLY.env, **edits.env}.items())),
        device_nodes=tuple(_Node(path) for path in edits.devices),
        mounts=tuple(
            _Mount(mount.host, mount.container, ("ro" if mount.read_only else "rw", *_MOUNTED))
            for mount in edits.mounts
        ),
    )
    marks = {BOOT: boot_id, SCHEME: scheme.value}
    whole = _Spec(VERSION, KIND, marks, (_Device(name, given),))
    return msgspec.json.format(msgspec.json.encode(whole)) + b"\n"


class CdiFiles:
    """A :class:`deviceplugin.ports.Handout` for runtimes that know CDI. One thread writes."""

    guesses: Final = False

    def __init__(self, folder: str, scheme: Scheme, boot_id: str) -> None:
        """``folder`` is one of the runtime's ``cdi_spec_dirs``; it may be another plugin's too."""
        self._folder = Path(folder)
        self._scheme = scheme
        self._boot_id = boot_id

    def early(self, name: str, edits: Edits, late_env: Mapping[str, str]) -> Edits:  # noqa: ARG002  # it is the same for all
        """See :meth:`deviceplugin.ports.Handout.early`: no device, until CDI says otherwise."""
        return EARLY

    def write(self, name: str, edits: Edits, late_env: Mapping[str, str]) -> None:  # noqa: ARG002  # all comes late
        """See :meth:`deviceplugin.ports.Handout.write`.

        What stands there already for this boot must be the same: else OSError EEXIST.
        """
        path = self._path(name)
        content = spec(name, edits, self._scheme, self._boot_id)
        found = _content(path)
        if found == content:
            return
        if found is not None and self._boot_of(found) in (None, self._boot_id):
            detail = "it says something else, and a runtime may know it"
            raise OSError(errno.EEXIST, detail, str(path))
        self._folder.mkdir(parents=True, exist_ok=True)
        durable.write(path, content, lasting=False)

    def written(self) -> frozenset[str]:
        """See :meth:`deviceplugin.ports.Handout.written`."""
        return frozenset(name for name in self._names() if self._boot(name) == self._boot_id)

    def is_there(self, name: str) -> bool:
        """See :meth:`deviceplugin.ports.Handout.is_there`."""
        return os.path.lexists(self._path(name))

    def keep_only(self, names: Collection[str]) -> None:
        """See :meth:`deviceplugin.ports.Handout.keep_only`. Other plugins' files stay."""
        for name in self._names() - frozenset(names):
            if self._boot(name) is not None:
                self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"vgpu-{checked(name)}.json"

    def _names(self) -> frozenset[str]:
        """Of all files that are named like ours. Raises OSError."""
        if not self._folder.exists():
            return frozenset()
        matches = (_FILE.fullmatch(path.name) for path in self._folder.iterdir())
        return frozenset(match[1] for match in matches if match)

    def _boot(self, name: str) -> str | None:
        """In which boot this plugin wrote the file; None if it did not."""
        try:
            content = _content(self._path(name))
        except OSError:  # whatever it is, we do not write such
            return None
        return None if content is None else self._boot_of(content)

    def _boot_of(self, content: bytes) -> str | None:
        if not content:
            return ""  # a loss of power has left it
        try:
            marks = _MARKS.decode(content)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
        its_own = marks.kind == KIND and marks.annotations.get(SCHEME) == self._scheme
        return marks.annotations.get(BOOT) if its_own else None


def _content(path: Path) -> bytes | None:
    """None if there is no file. Raises OSError, also for what is no regular file."""
    try:
        return read_file(str(path), _LIMIT)
    except SourceError as error:
        if error.reason is Reason.ABSENT:
            return None
        raise OSError(errno.EIO, error.detail or error.reason.explanation, str(path)) from error
