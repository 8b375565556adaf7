"""The bed's image where the mirror has replaced a Debian package of the lock."""

import re

import pytest

from deploy.release import debian
from deploy.release.platforms import native
from tests.support.bed import product


@pytest.mark.slow
def test_the_bed_takes_what_the_mirror_has_where_a_package_of_the_lock_is_gone(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    tree = product.sources(tmp_path / "tree")
    file = tree / "requirements" / "debian.lock"
    whole = file.read_text()
    file.write_text(re.sub(r"(base-files \S+ )\S+ (\S+)", rf"\g<1>{'0' * 64} \2.gone", whole))

    assert product.build(tmp_path / "product.tar", tree).stat().st_size > 0
    name = native().name
    found = debian.parse(file.read_text())
    assert {package.name for package in found.packages} == {
        package.name for package in debian.parse(whole).of(name)
    }
    assert {package.platform for package in found.packages} == {name}
