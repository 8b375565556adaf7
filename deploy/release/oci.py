"""Container images as archives of OCI's image layout (image-spec 1.1), for any registry or node.

The archive has one index with an image for each platform. ``index.json`` names the index twice, by
tag and by digest, since the kubelet asks a node for exactly the reference of the pod.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from deploy.release.layers import sha256, unpacked_sha256
from deploy.release.platforms import Platform

_TYPE: Final = "application/vnd.oci.image"
INDEX: Final = f"{_TYPE}.index.v1+json"
MANIFEST: Final = f"{_TYPE}.manifest.v1+json"
CONFIG: Final = f"{_TYPE}.config.v1+json"
LAYER: Final = f"{_TYPE}.layer.v1.tar+gzip"

Json = dict[str, Any]


class ImageReference(msgspec.Struct, frozen=True):
    """Name of an image: repository, such as ``registry.example.com/vgpu``, and tag."""

    repository: str
    tag: str


def write_archive(
    file: Path,
    reference: ImageReference,
    layers: Mapping[Platform, Sequence[Path]],
    config: Json,
    epoch: int,
) -> str:
    """Write an image's archive; the digest of its index, ``sha256:…``.

    ``layers`` are compressed tar files, lowest first; ``config`` is the ``config`` of OCI's image
    configuration; ``epoch`` is the date of the image and of the archive's files.
    """
    blobs: dict[str, bytes | Path] = {}
    manifests = [
        {
            **_manifest(blobs, platform, files, config, epoch),
            "platform": _platform(platform),
        }
        for platform, files in layers.items()
    ]
    index = _blob(blobs, INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
    named = [
        {
            "io.containerd.image.name": f"{reference.repository}:{reference.tag}",
            "org.opencontainers.image.ref.name": reference.tag,
        },
        {"io.containerd.image.name": f"{reference.repository}@{index['digest']}"},
    ]
    top = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [{**index, "annotations": annotations} for annotations in named],
    }
    with tarfile.open(file, "w") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}), epoch)
        _add(archive, "index.json", _json(top), epoch)
        for digest, content in sorted(blobs.items()):
            _add(archive, f"blobs/sha256/{digest}", content, epoch)
    return str(index["digest"])


def index_digest(archive: Path) -> str:
    """The digest of an archive's image, ``sha256:…``."""
    with tarfile.open(archive) as tar:
        return str(_read(tar, "index.json")["manifests"][0]["digest"])


def platform_digests(archive: Path) -> dict[str, str]:
    """Platform -> the digest of its image in an archive."""
    digest = index_digest(archive).removeprefix("sha256:")
    with tarfile.open(archive) as tar:
        manifests = _read(tar, f"blobs/sha256/{digest}")["manifests"]
    return {entry["platform"]["architecture"]: entry["digest"] for entry in manifests}


def _read(tar: tarfile.TarFile, name: str) -> Json:
    stream = tar.extractfile(name)
    document: Json = json.loads(stream.read()) if stream else {}
    return document


def _manifest(
    blobs: dict[str, bytes | Path],
    platform: Platform,
    layers: Sequence[Path],
    config: Json,
    epoch: int,
) -> Json:
    descriptors = []
    for layer in layers:
        digest = sha256(layer)
        blobs[digest] = layer
        size = layer.stat().st_size
        descriptors.append({"mediaType": LAYER, "digest": f"sha256:{digest}", "size": size})
    image = {
        "created": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **_platform(platform),
        "config": config,
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{unpacked_sha256(layer)}" for layer in layers],
        },
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _blob(blobs, CONFIG, image),
        "layers": descriptors,
    }
    return _blob(blobs, MANIFEST, manifest)


def _platform(platform: Platform) -> Json:
    variant = {"variant": platform.variant} if platform.variant else {}
    return {"architecture": platform.name, "os": "linux", **variant}


def _blob(blobs: dict[str, bytes | Path], media_type: str, value: Json) -> Json:
    """Add a JSON document; its descriptor."""
    content = _json(value)
    digest = hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _json(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes | Path, epoch: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.mtime = epoch
    if isinstance(content, bytes):
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
        return
    entry.size = content.stat().st_size
    with content.open("rb") as stream:
        archive.addfile(entry, stream)
