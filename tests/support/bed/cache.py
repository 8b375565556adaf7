"""Files that take long to make, kept in the user's cache folder for the next session.

A file is known by its name and a hash of all it is made of. One that nobody has used for two weeks
goes when another of its name is made, and so does what a killed session left unfinished.
"""

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

UNUSED_SECONDS = 14 * 24 * 3600


def cached(name: str, inputs: Iterable[str], make: Callable[[Path], object]) -> Path:
    """The file that ``make(file)`` writes for these inputs; it may work in the file's folder.

    ``name`` is a path with an extension, such as ``fleets/small.tgz``.
    """
    key = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vgpu-testbed"
    pattern = home / name
    file = pattern.with_name(f"{pattern.stem}-{key}{pattern.suffix}")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=file.parent, prefix=f"{pattern.stem}-unfinished-") as folder:
            half_made = Path(folder, file.name)
            make(half_made)
            half_made.rename(file)
        for other in file.parent.glob(f"{pattern.stem}-*"):
            with contextlib.suppress(FileNotFoundError):  # another session does the same
                if other.stat().st_mtime < time.time() - UNUSED_SECONDS:
                    shutil.rmtree(other) if other.is_dir() else other.unlink()
    file.touch()
    return file
