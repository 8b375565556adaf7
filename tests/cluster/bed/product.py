"""The product as an image: a Debian root filesystem, the locked requirements, our wheel.

    build(folder)  ->  a docker-archive of `REFERENCE`, whose entry point is `vgpu`

The first two layers come out of the user's cache when nothing they are made of has changed; the
wheel is built from the working tree every time. Equal sources give equal bytes.

The filesystem is that of the running Debian, so that the machine's own Python says which wheels
fit and compiles what lies in the layers. It holds Python and what Python needs: no shell, no
package manager. Every file is root's and readable by all, so any user can run it.
"""

import hashlib
import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bed.images import image
from fixtures import ROOT, missing, required_root, required_tool

REFERENCE = "localhost/vgpu:test"
PACKAGES = (
    "base-files",
    "base-passwd",  # the names of root and nobody
    "libstdc++6",  # grpcio
    "python3",
)
USELESS = ("dev/", "etc/apt/", "usr/share/doc", "usr/share/info/", "usr/share/lintian/") + (
    "usr/share/locale/", "usr/share/man/", "usr/share/zoneinfo/", "var/cache/", "var/lib/", "var/log/"
)  # fmt: skip
CONFIG = {
    "Entrypoint": ["vgpu"],
    "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "PYTHONUNBUFFERED=1", "MALLOC_ARENA_MAX=1"],
    "WorkingDir": "/",
}
