"""Container images without a registry: docker-archives, which containerd imports as they are.

    image(folder / "app.tar", "localhost/app:1", [layer({"app": binary})], {"Cmd": ["/app"]})

Pods use them with ``imagePullPolicy: Never``. Equal layers give equal bytes. Two images of
busybox are what the bed itself needs: PAUSE, which holds a pod's namespaces, and SHOW, which prints
what the kubelet and the runtime made of its container, and then sleeps.
"""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.support.bed.client import Client, Object
from tests.support.environment import missing, required_tool
from tests.support.waiting import wait_until

PAUSE = "localhost/pause:1"
SHOW = "localhost/show:1"

SHOW_SCRIPT = """#!/bin/sh
env | sed 's/^/env /'
sed 's/^/mount /' /proc/self/mountinfo
find /dev \\( -type b -o -type c \\) -exec stat -c 'device %n %t:%T' {} +
echo shown
trap exit TERM
sleep 100000000 & wait
"""

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's names and Go's, as an image's configuration wants them."""


class Shown(NamedTuple):
    """What a container of SHOW saw."""

    env: dict[str, str]
    mounts: dict[str, str]
    """Mount point -> its line of /proc/self/mountinfo."""
    devices: dict[str, str]
    """Path -> major:minor, in hexadecimal."""

    @classmethod
    def by(cls, client: Client, pod: Object, container: str | None = None) -> Self:
        """What a running container printed."""

        def printed() -> list[str]:
            lines = client.logs(pod, container).splitlines()
            return lines if "shown" in lines else []

        lines = wait_until(printed, f"{pod['metadata']['name']}: printed all")
        values: dict[str, list[str]] = {"env": [], "mount": [], "device": []}
        for line in lines:
            what, _, value = line.partition(" ")
            if what in values:
                values[what].append(value)
        pairs = (value.partition("=") for value in values["env"])
        return cls(
            env={name: value for name, _, value in pairs},
            mounts={line.split()[4]: line for line in values["mount"]},
            devices=dict(line.split() for line in values["device"]),
        )


def image(
    archive: Path, reference: str, layers: Sequence[bytes], config: Mapping[str, Any]
) -> Path:
    """Write a docker-archive of an image; ``layers`` are uncompressed tars, lowest first.

    ``config`` is the OCI image configuration's own: Env, Entrypoint, Cmd, User, WorkingDir.
    """
    digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
    about = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created_by": "the test bed"} for _ in layers],
    }
    description = json.dumps(about, sort_keys=True).encode()
    description_name = f"{hashlib.sha256(description).hexdigest()}.json"
    manifest = {
        "Config": description_name,
        "RepoTags": [reference],
        "Layers": [f"{digest}.tar" for digest in digests],
    }
    with tarfile.open(archive, "w") as tar:
        _add(tar, description_name, description, 0o644)
        for digest, content in zip(digests, layers, strict=True):
            _add(tar, f"{digest}.tar", content, 0o644)
        _add(tar, "manifest.json", json.dumps([manifest]).encode(), 0o644)
    return archive


def layer(files: Mapping[str, bytes | str]) -> bytes:
    """A layer's tar: path -> an executable's bytes, a symlink's target, or "" for a folder."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, file in files.items():
            if isinstance(file, bytes):
                _add(tar, name, file, 0o755)
                continue
            entry = tarfile.TarInfo(name)
            entry.mode, entry.linkname = 0o755, file
            entry.type = tarfile.SYMTYPE if file else tarfile.DIRTYPE
            tar.addfile(entry)
    return content.getvalue()


def bed_images(folder: Path) -> list[Path]:
    """The archives of PAUSE and SHOW."""
    busybox = required_tool("busybox", "busybox-static")
    if subprocess.run(["ldd", busybox], capture_output=True, check=False).returncode == 0:
        missing("busybox is not a static program: apt-get install busybox-static")
    folders = dict.fromkeys(("bin", "dev", "etc", "proc", "sys", "tmp"), "")
    applets = subprocess.check_output([busybox, "--list"], text=True).split()
    links = {f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"}
    binary = Path(busybox).read_bytes()
    passwd = b"root:x:0:0:root:/:/bin/sh\n"
    base = layer({**folders, "bin/busybox": binary, **links, "etc/passwd": passwd})
    show = layer({"bin/show": SHOW_SCRIPT.encode()})
    path = {"Env": ["PATH=/bin"]}
    asleep = ["sleep", "100000000"]
    return [
        image(folder / "pause.tar", PAUSE, [base], {**path, "Entrypoint": asleep}),
        image(folder / "show.tar", SHOW, [base, show], {**path, "Cmd": ["show"]}),
    ]


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
