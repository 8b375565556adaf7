"""The artefacts of a release, as a table: what makes them, in the order of the table."""

import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from deploy import manifests
from deploy.project import Project
from deploy.release import chart, debian, krew, layered, oci, provenance, sbom, wheel
from deploy.release.bundle import write_bundle
from deploy.release.commands import ReleaseError
from deploy.release.contents import problems
from deploy.release.deb import write_deb
from deploy.release.layers import pack, sha256
from deploy.release.platforms import PLATFORMS
from deploy.release.source import SourceTree


class ReleaseBuild(msgspec.Struct, frozen=True):
    """What every artefact is made from.

    Attributes:
        source: the files of the commit.
        project: where they are published.
        dist: the folder of the artefacts.
        helm: the program that renders the manifests.
        downloads: address of the folder that the artefacts are published in.
    """

    source: SourceTree
    project: Project
    dist: Path
    helm: str
    downloads: str

    def file(self, name: str) -> Path:
        """An artefact by its name; ``{version}`` stands for the version."""
        return self.dist / name.format(version=self.source.version)

    @property
    def wheel(self) -> Path:
        """The wheel."""
        return self.file("vgpu-{version}-py3-none-any.whl")

    @property
    def image(self) -> Path:
        """The archive of the image."""
        return self.file("vgpu-{version}-image.tar")


class Artefact(msgspec.Struct, frozen=True):
    """A row of the table: a function that writes files of ``dist`` and returns them."""

    name: str
    make: Callable[[ReleaseBuild], Iterable[Path]]


def build(release: ReleaseBuild) -> Iterator[Path]:
    """Make all artefacts of the table in ``dist``; each file as soon as it is there.

    Raises:
        ReleaseError: an artefact cannot be made.
    """
    release.dist.mkdir(parents=True, exist_ok=True)
    for artefact in ARTEFACTS:
        yield from artefact.make(release)


def _python(release: ReleaseBuild) -> Iterator[Path]:
    for target in ("sdist", "wheel"):
        with TemporaryDirectory() as folder:
            file = wheel.build(release.source, target, Path(folder))
            yield Path(shutil.move(file, release.dist))


def _image(release: ReleaseBuild) -> Iterator[Path]:
    source, platforms = release.source, list(PLATFORMS.values())
    with TemporaryDirectory() as folder:
        uncached = layered.uncached(Path(folder))
        layers = layered.image_layers(source, release.wheel, platforms, uncached)
        for platform, files in layers.items():
            if wrong := problems(platform, files):
                raise ReleaseError(f"the image of {platform.name}: {'; '.join(wrong)}")
        project = release.project
        layered.write_image(release.image, project.image, source, layers, project.address)
    yield release.image


def _chart(release: ReleaseBuild) -> Iterator[Path]:
    file = release.file("vgpu-{version}.tgz")
    digest = oci.index_digest(release.image)
    chart.write_chart(file, release.source, release.project.image, digest)
    yield file


def _manifests(release: ReleaseBuild) -> Iterator[Path]:
    file = release.file("vgpu-{version}-manifests.tar.gz")
    image = {"repository": release.project.image, "digest": oci.index_digest(release.image)}
    with TemporaryDirectory() as folder:
        root = Path(folder, f"vgpu-{release.source.version}-manifests")
        root.mkdir()
        for name, manifest in manifests.MANIFESTS.items():
            try:
                text = manifests.rendered(release.helm, manifest, image)
            except (OSError, subprocess.CalledProcessError) as error:
                reason = getattr(error, "stderr", None) or error
                raise ReleaseError(f"{release.helm}: {name}: {reason}") from error
            (root / name).write_text(text)
        if unpublished := manifests.unpublished(root):
            raise ReleaseError(f"{unpublished[0].name} names no published image")
        pack(Path(folder), file, release.source.epoch)
    yield file


def _bundles(release: ReleaseBuild) -> Iterator[Path]:
    archives = {}
    for platform in PLATFORMS.values():
        deb = release.file(f"vgpu_{{version}}_{platform.name}.deb")
        plugin = release.file(f"{krew.PLUGIN}-{{version}}-linux-{platform.name}.tar.gz")
        with TemporaryDirectory() as folder:
            bundle = Path(folder, "bundle")
            write_bundle(release.source, release.wheel, platform, bundle)
            write_deb(deb, release.source, release.project, platform, bundle)
            krew.write_plugin(plugin, release.source, bundle)
        archives[platform] = plugin
        yield from (deb, plugin)
    manifest = release.file("vgpu.yaml")
    manifest.write_text(krew.manifest(release.source, release.project, release.downloads, archives))
    yield manifest


def _sboms(release: ReleaseBuild) -> Iterator[Path]:
    file = release.wheel.with_name(f"{release.wheel.name}.cdx.json")
    file.write_text(sbom.wheel_sbom(release.source, sha256(release.wheel)))
    yield file
    lock = debian.parse(release.source.lock("debian"))
    digests = oci.platform_digests(release.image)
    for platform in PLATFORMS.values():
        file = release.file(f"vgpu-{{version}}-image-{platform.name}.cdx.json")
        file.write_text(sbom.image_sbom(release.source, lock, platform, digests[platform.name]))
        yield file


def _provenance(release: ReleaseBuild) -> Iterator[Path]:
    file = release.file("vgpu-{version}.intoto.json")
    files = sorted(release.dist.iterdir())
    file.write_text(provenance.statement(release.source, release.project, files))
    yield file


def _checksums(release: ReleaseBuild) -> Iterator[Path]:
    files = sorted(release.dist.iterdir())
    file = release.dist / "SHA256SUMS"
    file.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    yield file


ARTEFACTS: Final = (
    Artefact("sdist and wheel", _python),
    Artefact("container image", _image),
    Artefact("Helm chart", _chart),
    Artefact("plain manifests", _manifests),
    Artefact("Debian packages and kubectl plugin", _bundles),
    Artefact("bills of materials", _sboms),
    Artefact("provenance", _provenance),
    Artefact("checksums", _checksums),
)
"""All artefacts; one needs only those above it."""
