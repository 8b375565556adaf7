"""What the tests of a release share: two publishers, the artefacts, a clean Debian."""

import pytest

from tests.release.clean_debian import clean_debian
from tests.release.publisher import Publisher


@pytest.fixture(scope="session")
def publisher(tmp_path_factory):
    """A publisher who has filled in all and whose `make release` has made dist/."""
    publisher = Publisher(tmp_path_factory.mktemp("first") / "vgpu")
    unfilled = publisher.make("release")
    assert unfilled.returncode
    assert "not released: deploy/project.toml: address, site" in unfilled.stderr
    assert "not released: CHANGELOG.md: " in unfilled.stderr
    publisher.fill_in()
    done = publisher.make("release")
    assert done.returncode == 0, done.stdout + done.stderr
    publisher.printed = done.stdout
    return publisher


@pytest.fixture(scope="session")
def dist(publisher, tmp_path_factory):
    """The artefacts alone."""
    return publisher.bring_dist(tmp_path_factory.mktemp("alone") / "dist")


@pytest.fixture(scope="session")
def debian(tmp_path_factory):
    """A Debian with Python and nothing of ours."""
    with clean_debian(tmp_path_factory.mktemp("debian") / "root") as root:
        yield root
