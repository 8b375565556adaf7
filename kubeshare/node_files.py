"""The files by which Gemini on a node knows the pods of each GPU. The first half is pure.

``config/<UUID>`` has the shares of a GPU's pods, ``podmanagerport/<UUID>`` their ports, as
KubeShare 1's config daemon writes them. The files are computed from SharePods alone: a node that
was away has the newest state as soon as it is back, and nothing has to be queued for it.
"""

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from kubeshare.model import SharePod
from kubeshare.tenant_identity import (
    IDENTITIES_LIMIT,
    TENANTS,
    TenantIdentity,
    addresses,
    format_identities,
    parse_identities,
)
from vgpu.io import atomic_files
from vgpu.model.reasons import SourceError
from vgpu.schemes.kubeshare.gemini_config import (
    ClientPort,
    SharedPod,
    client_name,
    format_config,
    format_ports,
    parse_config,
    parse_ports,
    split_name,
)
from vgpu.schemes.kubeshare.text import is_uuid
from vgpu.sources.files import read_file

_Line = TypeVar("_Line")


class GpuTable(msgspec.Struct, frozen=True):
    """The pods of one GPU, sorted, with their ports, and who they are."""

    pods: tuple[SharedPod, ...] = ()
    ports: tuple[ClientPort, ...] = ()
    tenants: tuple[TenantIdentity, ...] = ()


Tables = Mapping[str, GpuTable]
"""UUID -> its pods."""


def tables_of(share_pods: Iterable[SharePod], node: str) -> Tables:
    """The pods of each GPU of a node that has some: bound SharePods that are not finished."""
    pods: dict[str, list[SharedPod]] = defaultdict(list)
    ports: dict[str, list[ClientPort]] = defaultdict(list)
    tenants: dict[str, list[TenantIdentity]] = defaultdict(list)
    for share_pod in share_pods:
        request, ref = share_pod.request, share_pod.ref
        if request is None or not share_pod.is_tenant or share_pod.node != node:
            continue
        if not is_uuid(share_pod.bound) or not share_pod.port:
            continue
        key = client_name(ref.namespace, ref.name)
        pods[share_pod.bound].append(
            SharedPod(
                *split_name(key),
                request.request_milli,
                request.limit_milli,
                request.memory_bytes,
            )
        )
        ports[share_pod.bound].append(ClientPort(*split_name(key), share_pod.port))
        known = pod_addresses(share_pod.copied)
        tenants[share_pod.bound].append(TenantIdentity(key, ref.namespace, ref.name, known))
    return {
        uuid: GpuTable(
            tuple(sorted(pods[uuid])), tuple(sorted(ports[uuid])), tuple(sorted(tenants[uuid]))
        )
        for uuid in pods
    }


def pod_addresses(status: Any) -> tuple[str, ...]:
    """The addresses in a pod's status, a JSON value; a user may have written it."""
    if not isinstance(status, dict):
        return ()
    several = status.get("podIPs")
    listed = several if isinstance(several, list) else []
    return addresses(
        [status.get("podIP"), *(each.get("ip") for each in listed if isinstance(each, dict))]
    )


def with_unread(wanted: Tables, present: Tables, unread: Collection[tuple[str, str]]) -> Tables:
    """The wanted tables, in which the SharePods that cannot be read have what they had before.

    A GPU that has a table and no pods any more gets an empty one.
    """
    keys = {split_name(client_name(*name)) for name in unread}
    tables: dict[str, GpuTable] = {}
    for uuid in wanted.keys() | present.keys():
        table, before = wanted.get(uuid, GpuTable()), present.get(uuid, GpuTable())
        pods = [pod for pod in before.pods if (pod.namespace, pod.pod) in keys]
        ports = [port for port in before.ports if (port.namespace, port.pod) in keys]
        tenants = [each for each in before.tenants if (each.namespace, each.pod) in unread]
        tables[uuid] = GpuTable(
            tuple(sorted({*table.pods, *pods})),
            tuple(sorted({*table.ports, *ports})),
            tuple(sorted({*table.tenants, *tenants})),
        )
    return tables


# ---------------------------------------------------------------- the folder

CONFIG: Final = "config"
PORTS: Final = "podmanagerport"

_MODE: Final = 0o644
"""Mode of the file with the address."""


class GeminiFolder:
    """The folder of KubeShare's scheduler on a node (``/kubeshare/scheduler``). For one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noticed: set[Path] = set()

    def tables(self) -> Tables:
        """What the files have; a file that cannot be read counts as empty."""
        folders = CONFIG, PORTS, TENANTS
        uuids = {file.name for folder in folders for file in self._files(folder)}
        return {
            uuid: GpuTable(
                _parsed(self._path / CONFIG / uuid, parse_config),
                _parsed(self._path / PORTS / uuid, parse_ports),
                _parsed(self._path / TENANTS / uuid, parse_identities),
            )
            for uuid in uuids
        }

    def write(self, tables: Tables) -> int:
        """Write the files that differ; returns how many. Raises OSError."""
        written = 0
        for uuid, table in sorted(tables.items()):
            written += self._write(self._path / TENANTS / uuid, format_identities(table.tenants))
            written += self._write(self._path / PORTS / uuid, format_ports(table.ports))
            written += self._write(self._path / CONFIG / uuid, format_config(table.pods))
        return written

    def _write(self, path: Path, content: bytes) -> bool:
        """Write a file if it differs, so that its readers notice it.

        Gemini's programs wait for the event that a writer has closed the final name, which a rename
        is not. So the file is renamed into place, whole, and then opened for writing and closed.
        A process that was killed in between has not done the latter: each file is closed once.
        """
        differs = _content(path) != content
        if differs:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write(path, content, replaces_folder=True)
        if differs or path not in self._noticed:
            os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
            self._noticed.add(path)
        return differs

    def _files(self, folder: str) -> Iterator[Path]:
        try:
            yield from (file for file in (self._path / folder).iterdir() if is_uuid(file.name))
        except FileNotFoundError:
            return


def write_address(library: Path, address: str) -> None:
    """Write the file by which the hooks in pods find the node's pod managers. Raises OSError.

    A pod that KubeShare's own programs made has the folder mounted to write: whatever is at the
    file's name there is replaced, also a file that the hooks, which run as any user, cannot read.
    """
    library.mkdir(parents=True, exist_ok=True)
    path, content = library / "schedulerIP.txt", f"{address}\n".encode()
    if _content(path) != content or stat.S_IMODE(path.lstat().st_mode) != _MODE:
        atomic_files.write(path, content, _MODE, replaces_folder=True)


def _content(path: Path) -> bytes | None:
    try:
        return read_file(str(path), IDENTITIES_LIMIT)
    except SourceError:
        return None


def _parsed(path: Path, parse: Callable[[bytes], tuple[_Line, ...]]) -> tuple[_Line, ...]:
    try:
        return parse(_content(path) or b"")
    except SourceError:
        return ()
