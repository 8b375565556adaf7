"""Regions inside containers, through /proc/<pid>/root."""

import subprocess
import sys

import pytest

from tests.support.environment import descriptors, required_root
from tests.support.regions import a_region, write
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.regions import read_bare

PID = 4711


@pytest.fixture
def container(tmp_path):
    """A container's file system, which /proc/4711/root of a made-up procfs links to."""
    tree = tmp_path / "container"
    (tree / "tmp").mkdir(parents=True)
    (tmp_path / "proc" / str(PID)).mkdir(parents=True)
    (tmp_path / "proc" / str(PID) / "root").symlink_to(tree)
    return tree


@pytest.fixture
def proc_root(tmp_path, container):
    return str(tmp_path / "proc")


def refusal(proc_root, pid=PID):
    with pytest.raises(SourceError) as caught:
        read_bare(proc_root, pid)
    return caught.value


def test_the_region_in_a_container_s_tmp_is_read(container, proc_root):
    write(container / "tmp" / "cudevshr.cache", a_region("v1.2"))
    assert read_bare(proc_root, PID) == a_region("v1.2")


def test_the_kernel_s_own_root_link_is_followed(container):
    required_root()
    write(container / "tmp" / "cudevshr.cache", a_region("v1.2"))
    live_there = "import os, sys; os.chroot(sys.argv[1]); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", live_there, str(container)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"\n"
        assert read_bare("/proc", process.pid) == a_region("v1.2")


def test_a_container_without_a_region_and_a_process_that_ended_are_absent(container, proc_root):
    error = refusal(proc_root)
    assert error.reason is Reason.ABSENT
    assert error.object_name == f"{proc_root}/{PID}/root/tmp/cudevshr.cache"
    assert refusal(proc_root, 1).reason is Reason.ABSENT
    (container / "tmp").rmdir()
    assert refusal(proc_root).reason is Reason.ABSENT


def test_a_tenant_s_link_in_place_of_its_region_is_not_followed(container, proc_root, tmp_path):
    write(tmp_path / "another", a_region("v1.2"))
    (container / "tmp" / "cudevshr.cache").symlink_to(tmp_path / "another")
    error = refusal(proc_root)
    assert error.reason is Reason.NOT_REGULAR_FILE
    assert error.object_name.endswith("/tmp/cudevshr.cache")


def test_a_tenant_s_link_in_place_of_its_tmp_is_not_followed(container, proc_root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere" / "cudevshr.cache", a_region("v1.2"))
    (container / "tmp").rmdir()
    (container / "tmp").symlink_to(tmp_path / "elsewhere")
    error = refusal(proc_root)
    assert error.reason is Reason.NOT_REGULAR_FILE
    assert error.object_name.endswith("/root/tmp")


def test_a_broken_region_is_refused_by_its_full_path(container, proc_root):
    (container / "tmp" / "cudevshr.cache").write_bytes(b"123456789012")
    error = refusal(proc_root)
    assert error.reason is Reason.UNKNOWN_LAYOUT
    assert error.object_name == f"{proc_root}/{PID}/root/tmp/cudevshr.cache"


def test_no_descriptor_stays_open(container, proc_root, tmp_path):
    refusal(proc_root)
    write(container / "tmp" / "cudevshr.cache", a_region("v1.2"))
    read_bare(proc_root, PID)
    (container / "tmp").rename(container / "gone")
    refusal(proc_root)
    assert descriptors(tmp_path) == []
