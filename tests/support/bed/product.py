"""The product's image: the release's own, of this working tree and for this machine.

    build(file, sources(folder))  ->  an archive of `REFERENCE`, whose entry point is `vgpu`

The layers are those of deploy/release, made without root and without a container daemon. They come
out of the user's cache unless something they are made of has changed. The wheel is built every
time, of a copy of the sources that nobody edits meanwhile.

The mirror keeps a Debian package until the next version replaces it. A release then needs a new
lock; the bed, which is no release, takes what the mirror has now.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.release import debian, debian_lock, layered, wheel
from deploy.release.platforms import native
from deploy.release.source import SourceTree
from tests.support.bed.cache import cached
from tests.support.environment import ROOT, required_tool
from vgpu import __version__

REPOSITORY = "localhost/vgpu"
REFERENCE = f"{REPOSITORY}:{__version__}"


def sources(folder: Path) -> Path:
    """Copy what the image is built of into a new ``folder``."""
    folder.mkdir()
    for name in (*SourceTree(ROOT).wheel_files, "requirements"):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


def build(file: Path, tree: Path) -> Path:
    """Write the archive of ``tree`` to ``file``; the cached layers take a minute the first time.

    Raises:
        deploy.release.commands.ReleaseError: a package cannot be fetched, or a tool failed.
    """
    required_tool("dpkg-deb", "dpkg")
    source = SourceTree(tree)
    with TemporaryDirectory() as folder:
        built = wheel.build(source, "wheel", Path(folder))
        try:
            layers = layered.image_layers(source, built, [native()], cached)
        except debian.PackageGoneError:
            lock_afresh(tree)
            layers = layered.image_layers(source, built, [native()], cached)
    layered.write_image(file, REPOSITORY, source, layers)
    return file


def lock_afresh(tree: Path) -> None:
    """Write what the mirror has now into the lock of ``tree``, a copy, for this machine."""
    lock = debian_lock.resolve((native().name,))
    (tree / "requirements" / "debian.lock").write_text(debian.text_of(lock))
