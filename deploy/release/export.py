"""The files of a commit, apart from the working tree."""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.release.commands import run
from deploy.release.readme import published
from deploy.release.source import SourceTree


@contextmanager
def exported(root: Path, site: str) -> Iterator[SourceTree]:
    """The commit that the repository ``root`` is at, in a temporary folder.

    The README has links to ``site``, since it is the wheel's description, too.
    """
    commit = run("git", "rev-parse", "HEAD", folder=root).strip()
    epoch = int(run("git", "log", "-1", "--format=%ct", folder=root))
    with TemporaryDirectory() as folder:
        archive, tree = Path(folder, "commit.tar"), Path(folder, "vgpu")
        run("git", "archive", f"--output={archive}", commit, folder=root)
        with tarfile.open(archive) as files:
            files.extractall(tree, filter="data")
        readme = tree / "README.md"
        readme.write_text(published(readme.read_text(), site))
        yield SourceTree(tree, epoch, commit)
