"""The format of our own checkpoint, which has who holds what of a node for one scheme.

``{"version":1,"sha256":"…","data":{…}}``: the digest is over the exact bytes of ``data``. ``data``
has the node, the scheme, the boot of the node and the time in which it was written, and the
admitted pods (``tenants``) with their allocations and bindings (:mod:`vgpu.model.admitted_pod`).
Unknown fields are skipped, so a change that only adds fields keeps the version.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final, TypeVar

import msgspec

from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.names import Scheme
from vgpu.model.reasons import Reason, SourceError

T = TypeVar("T")

VERSION: Final = 1

LIMIT: Final = 16 * 1024 * 1024
"""Maximum size of the file, in bytes. A container takes about 300; no node has 50,000."""

_TRUNCATED: Final = "Input data was truncated"


class Checkpoint(msgspec.Struct, frozen=True):
    """The content of the file.

    Attributes:
        node: the node's name.
        scheme: the scheme of the plugin that wrote it.
        boot_id: the kernel's ID of the boot in which it was written.
        written_at: unix seconds.
        admitted_pods: by UID; ``tenants`` in the file.
    """

    node: str
    scheme: Scheme
    boot_id: str
    written_at: float
    admitted_pods: tuple[AdmittedPod, ...] = msgspec.field(name="tenants")


class _Version(msgspec.Struct):
    version: int


class _Envelope(msgspec.Struct):
    version: int
    sha256: str
    data: msgspec.Raw


def file_name(scheme: Scheme) -> str:
    """The name of a scheme's checkpoint in the folder of the node's state."""
    return f"checkpoint-{scheme}.json"


def encode(checkpoint: Checkpoint) -> bytes:
    """The bytes; they are the same for any order of the admitted pods."""
    admitted = tuple(sorted(checkpoint.admitted_pods, key=lambda admitted_pod: admitted_pod.pod))
    data = msgspec.json.encode(msgspec.structs.replace(checkpoint, admitted_pods=admitted))
    envelope = _Envelope(VERSION, sha256(data).hexdigest(), msgspec.Raw(data))
    return msgspec.json.encode(envelope) + b"\n"


def decode(content: bytes, object_name: str, scheme: Scheme, node: str = "") -> Checkpoint:
    """The content of the bytes; ``object_name`` is the file's path, for errors.

    Raises SourceError: EMPTY, TRUNCATED, MALFORMED, FUTURE_VERSION, CHECKSUM_MISMATCH; OTHER_SCHEME
    if it is not ``scheme``, and OTHER_NODE if it is not ``node``, unless that is "".
    """
    if not content:
        raise SourceError(Reason.EMPTY, object_name)
    version = _decoded(content, _Version, object_name).version
    if version > VERSION:
        detail = f"its version is {version}, and this program reads up to version {VERSION}"
        raise SourceError(Reason.FUTURE_VERSION, object_name, detail)
    if version < VERSION:
        raise SourceError(Reason.MALFORMED, object_name, f"there is no version {version}")
    envelope = _decoded(content, _Envelope, object_name)
    digest = sha256(envelope.data).hexdigest()
    if envelope.sha256 != digest:
        detail = f"its checksum is {envelope.sha256[:64]!r}, but its content gives {digest}"
        raise SourceError(Reason.CHECKSUM_MISMATCH, object_name, detail)
    checkpoint = _decoded(bytes(envelope.data), Checkpoint, object_name)
    if wrong := _impossible(checkpoint.admitted_pods):
        raise SourceError(Reason.MALFORMED, object_name, wrong)
    if checkpoint.scheme is not scheme:
        raise SourceError(Reason.OTHER_SCHEME, object_name, f"it is of {checkpoint.scheme}")
    if node and checkpoint.node != node:
        detail = f"it is of the node {checkpoint.node[:253]!r}, and this is {node}"
        raise SourceError(Reason.OTHER_NODE, object_name, detail)
    return checkpoint


def _decoded(content: bytes, type_: type[T], object_name: str) -> T:
    """Raises SourceError TRUNCATED, MALFORMED."""
    try:
        return msgspec.json.decode(content, type=type_)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        reason = Reason.TRUNCATED if str(error) == _TRUNCATED else Reason.MALFORMED
        raise SourceError(reason, object_name, str(error)) from error


def _impossible(admitted: Iterable[AdmittedPod]) -> str:
    """The first impossible value, as text; "" if there is none."""
    uids: set[str] = set()
    for admitted_pod in admitted:
        uid = admitted_pod.pod.uid
        if not uid or uid in uids:
            return f"the pod {uid[:64]!r} is there twice" if uid else "a pod without a UID"
        uids.add(uid)
        for held in (admitted_pod.allocations, admitted_pod.bindings):
            names = [entry.container for entry in held]
            if len(set(names)) < len(names):
                return f"pod {uid[:64]!r}: a container is there twice: {names}"[:300]
        bound = (share for binding in admitted_pod.bindings for share in binding.shares)
        for share in (*admitted_pod.shares, *bound):
            if not share.device or (share.memory_bytes or 0) < 0 or (share.cores_milli or 0) < 0:
                return f"pod {uid[:64]!r}: a share that cannot be: {share}"[:300]
    return ""
