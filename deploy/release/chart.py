"""The Helm chart as a package whose image is that of the release, by its digest.

The archive is written here and not by ``helm package``, which puts the time of the build into it.
"""

import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from deploy.release.commands import ReleaseError
from deploy.release.layers import pack
from deploy.release.source import SourceTree


def write_chart(file: Path, source: SourceTree, repository: str, digest: str) -> None:
    """Write the package.

    Raises:
        ReleaseError: values.yaml does not have the image's keys as empty texts.
    """
    with TemporaryDirectory() as temporary:
        folder = Path(temporary, "vgpu")
        shutil.copytree(source.tree / "deploy" / "chart" / "vgpu", folder)
        values = folder / "values.yaml"
        values.write_text(with_image(values.read_text(), repository, digest))
        pack(Path(temporary), file, source.epoch)


def with_image(values: str, repository: str, digest: str) -> str:
    """The text of values.yaml with an image; comments stay."""
    before = yaml.safe_load(values)
    for key, value in (("repository", repository), ("digest", digest)):
        line = re.compile(rf'^(  {key}:) ""$', re.MULTILINE)
        values = line.sub(rf"\1 {value}", values, count=1)
    image = {**before["image"], "repository": repository, "digest": digest}
    if yaml.safe_load(values) != {**before, "image": image}:
        raise ReleaseError("values.yaml: image.repository and image.digest are not empty texts")
    return values
