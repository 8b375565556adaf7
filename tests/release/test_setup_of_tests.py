"""The setup of `make test` with the real apt, on a Debian that has none of its packages."""

import subprocess

import pytest

from tests.support.environment import ROOT
from tests.support.schedule import Group

pytestmark = [pytest.mark.thorough(Group.RELEASE), pytest.mark.slow]

TABLE = "containerd runc: a real Kubernetes (tests/cluster)"
DOCKERS = """\
Package: containerd.io
Version: 1.7.27-1
Architecture: all
Maintainer: nobody <nobody@example.com>
Provides: containerd
Conflicts: containerd, runc
Replaces: containerd, runc
Description: what Docker's own packages install in place of Debian's
"""
LINK = "etc/systemd/system/multi-user.target.wants/containerd.service"


def test_dockers_containerd_stays_and_without_it_no_service_is_enabled(debian, tmp_path):
    script = debian.give(ROOT / "tests" / "support" / "setup.sh")
    setup = ("env", f"CI_PACKAGES={TABLE}", "sh", "-c", '"$0" "$1" 2>&1', script, "test")
    control = tmp_path / "containerd.io" / "DEBIAN" / "control"
    control.parent.mkdir(parents=True)
    control.write_text(DOCKERS)
    package = tmp_path / "containerd.io.deb"
    subprocess.run(
        ["dpkg-deb", "--build", control.parent.parent, package], check=True, capture_output=True
    )
    debian.run("sh", "-c", "mkdir -p /dev && mknod -m 666 /dev/null c 1 3")
    debian.run("dpkg", "--install", debian.give(package))

    assert "apt would remove or replace containerd.io)" in debian.run(*setup)
    assert debian.run("dpkg-query", "-W", "-f", "${Status}", "containerd.io").endswith("installed")

    debian.run("dpkg", "--purge", "containerd.io")
    assert "Not installed" not in debian.run(*setup)
    assert (debian.path / "usr/bin/containerd").exists()
    assert not (debian.path / LINK).is_symlink()
    assert not (debian.path / "usr/sbin/policy-rc.d").exists()
