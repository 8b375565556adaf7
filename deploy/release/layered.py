"""The image of a source tree: its layers, made or taken from a cache, and its archive."""

import functools
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from deploy.release import debian
from deploy.release import image as images
from deploy.release.debian import fetch
from deploy.release.image import TargetPython, debian_layer, product_layer, requirements_layer
from deploy.release.layers import sha256
from deploy.release.oci import ImageReference, write_archive
from deploy.release.platforms import Platform, native
from deploy.release.source import SourceTree

Layers = Mapping[Platform, Sequence[Path]]


_RECIPE = ("commands", "debian", "image", "layers", "wheels")
"""The modules of this package that decide about the content of the cached layers."""


class Cached(Protocol):
    """Gives the file that ``make(file)`` writes for these inputs."""

    def __call__(self, name: str, inputs: Sequence[str], make: Callable[[Path], object], /) -> Path:
        """The file; ``name`` is its path in the cache, with an extension."""


def uncached(folder: Path) -> Cached:
    """Makes every file in ``folder``."""

    def make_file(name: str, inputs: Sequence[str], make: Callable[[Path], object], /) -> Path:
        del inputs
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        make(file)
        return file

    return make_file


def image_layers(
    source: SourceTree,
    wheel: Path,
    platforms: Sequence[Platform],
    cached: Cached,
    downloads: Path | None = None,
) -> Layers:
    """The layers of the image of ``wheel`` for each platform, lowest first.

    Raises:
        ReleaseError: a package cannot be fetched, or a program failed.
    """
    lock_text = source.lock("debian")
    lock = debian.parse(lock_text)
    recipe = (
        *(Path(__file__).with_name(f"{name}.py").read_text() for name in _RECIPE),
        str(source.epoch),
    )
    version = images.python_version(lock)
    machine = native()
    files = downloads or debian.download_folder()

    with ExitStack() as stack:

        @functools.cache
        def python() -> TargetPython:
            return stack.enter_context(_unpacked(base(machine), version))

        def compiler(platform: Platform) -> Callable[[Path], TargetPython]:
            if platform == machine:
                return lambda root: TargetPython(root, machine, version)
            return lambda _: python()

        @functools.cache
        def base(platform: Platform) -> Path:
            return cached(
                f"images/debian-{platform.name}.tar.gz",
                (*recipe, lock_text, platform.name),
                lambda file: debian_layer(
                    file, fetch(lock, platform.name, files), compiler(platform), source.epoch
                ),
            )

        def requirements(platform: Platform) -> Path:
            return cached(
                f"images/requirements-{platform.name}.tar.gz",
                (*recipe, lock_text, source.lock("runtime"), platform.name),
                lambda file: requirements_layer(file, source, platform, python()),
            )

        product = cached(
            "images/product.tar.gz",
            (*recipe, lock_text, sha256(wheel)),
            lambda file: product_layer(file, source, wheel, python()),
        )
        return {
            platform: (base(platform), requirements(platform), product) for platform in platforms
        }


def configuration(source: SourceTree, address: str = "") -> dict[str, Any]:
    """The ``config`` of the image; labels name what it was built from."""
    labels = {
        "org.opencontainers.image.title": "vgpu",
        "org.opencontainers.image.version": source.version,
        "org.opencontainers.image.licenses": source.pyproject["project"]["license"],
        "org.opencontainers.image.revision": source.commit,
        "org.opencontainers.image.source": address,
    }
    return {**images.CONFIG, "Labels": {key: value for key, value in labels.items() if value}}


def write_image(
    file: Path, repository: str, source: SourceTree, image: Layers, address: str = ""
) -> str:
    """Write an image's archive, named ``repository`` with the version as its tag; the digest."""
    reference = ImageReference(repository, source.version)
    return write_archive(file, reference, image, configuration(source, address), source.epoch)


@contextmanager
def _unpacked(layer: Path, version: str) -> Iterator[TargetPython]:
    with TemporaryDirectory() as folder, tarfile.open(layer) as archive:
        archive.extractall(folder, filter="tar")
        yield TargetPython(Path(folder), native(), version)
