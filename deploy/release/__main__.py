"""The commands behind ``make image``, ``make lock-debian`` and ``make release``."""

import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click

from deploy.addressed import downloads as downloads_of
from deploy.project import ROOT, load
from deploy.release import artefacts, debian, debian_lock, gpu_kit, layered, wheel
from deploy.release.artefacts import ReleaseBuild
from deploy.release.checks import refusals
from deploy.release.commands import ReleaseError
from deploy.release.export import exported
from deploy.release.platforms import PLATFORMS, native
from deploy.release.signing import sign
from deploy.release.source import SourceTree

DIST: Final = ROOT / "dist"
LOCAL: Final = "localhost/vgpu"
"""Repository of an image that is published nowhere."""


class ReleaseCommands(click.Group):
    """Prints an error of a release as one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except ReleaseError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)


@click.group(cls=ReleaseCommands)
def main() -> None:
    """Build what a release consists of."""


@main.command()
def lock() -> None:
    """Write requirements/debian.lock: what Debian's mirror has now."""
    text = debian.text_of(debian_lock.resolve(tuple(PLATFORMS)))
    (ROOT / "requirements" / "debian.lock").write_text(text)


@main.command()
@click.option("--repository", default=LOCAL, show_default=True, help="The image's name.")
@click.option(
    "--platform",
    "names",
    type=click.Choice(tuple(PLATFORMS)),
    multiple=True,
    help="Which platforms. Default: this machine's.",
)
def image(*, repository: str, names: tuple[str, ...]) -> None:
    """Write an image of the working tree into dist/; no release is needed."""
    DIST.mkdir(exist_ok=True)
    source = SourceTree(ROOT)
    platforms = [PLATFORMS[name] for name in names] or [native()]
    file = DIST / f"vgpu-{source.version}-local-image.tar"
    with TemporaryDirectory() as folder:
        built = wheel.build(source, "wheel", Path(folder, "wheel"))
        layers = layered.image_layers(source, built, platforms, layered.uncached(Path(folder)))
        digest = layered.write_image(file, repository, source, layers)
    click.echo(f"{file.relative_to(ROOT)}\n{repository}:{source.version}\n{repository}@{digest}")


@main.command("gpu-kit")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=ROOT / "build" / "gpu-kit",
    help="Where to; it is emptied before. Default: build/gpu-kit.",
)
@click.option(
    "--python", default=gpu_kit.PYTHON, show_default=True, help="CPython of the GPU's machine."
)
@click.option(
    "--fake-library",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The fake driver's library, to compare it with the real one.",
)
def write_gpu_kit(*, folder: Path, python: str, fake_library: Path | None) -> None:
    """Pack the checks on a real GPU, with all that they need, into a folder."""
    source = SourceTree(ROOT)
    with TemporaryDirectory() as temporary:
        built = wheel.build(source, "wheel", Path(temporary))
        gpu_kit.write_kit(source, built, folder, python=python, fake_library=fake_library)
    click.echo(f"{folder}: {gpu_kit.folder_bytes(folder) / 2**20:.1f} MiB")


@main.command()
def check() -> None:
    """Fail, with one line for each reason, if the repository cannot be released."""
    _refuse(SourceTree(ROOT).version)


@main.command()
@click.option("--helm", default="helm", show_default=True, help="The program.", metavar="PROGRAM")
@click.option(
    "--downloads",
    metavar="ADDRESS",
    help="Where the artefacts are published. Default: the forge's page of this release.",
)
def build(*, helm: str, downloads: str | None) -> None:
    """Write all artefacts of the commit into dist/, which is emptied before."""
    version = SourceTree(ROOT).version
    _refuse(version)
    project = load()
    shutil.rmtree(DIST, ignore_errors=True)
    with exported(ROOT, project.site) as source:
        address = downloads or downloads_of(project, version)
        release = ReleaseBuild(source, project, DIST, helm, address)
        for file in artefacts.build(release):
            size = file.stat().st_size / 1024
            click.echo(f"{file.name:<48} {size:>10,.0f} KiB")
    for line in sign(DIST / "SHA256SUMS", os.environ):
        click.echo(line)


def _refuse(version: str) -> None:
    reasons = list(refusals(ROOT, version))
    for reason in reasons:
        click.echo(f"not released: {reason}", err=True)
    if reasons:
        sys.exit(1)


if __name__ == "__main__":
    main()
