"""HAMi's own monitor is recognised by its process; a tenant's process of that name is not."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.descriptors import no_descriptors
from tests.support.waiting import wait_until
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.runtime import HOST_PID_NAMESPACE
from vgpucli.feedback import other_writers as other_monitor
from vgpucli.feedback.other_writers import (
    KernelMount,
    Place,
    parse_mounts,
    place_of,
    reaches,
    running_monitor,
)

OVERLAY = "900 800 0:77 / / rw,relatime - overlay overlay rw"
REGIONS = "/usr/local/vgpu/containers"


def bind(root, at, device="8:1"):
    return f"901 900 {device} {root} {at} rw,relatime - ext4 /dev/sda1 rw"


@pytest.fixture
def node(tmp_path):
    return FakeProc(tmp_path)


class FakeProc:
    """A host's /proc, and a folder of regions; mount tables have its real place."""

    def __init__(self, folder):
        self.procfs = folder / "proc"
        self.regions = folder / "regions"
        self.regions.mkdir()
        (self.procfs / "self" / "ns").mkdir(parents=True)
        (self.procfs / "self" / "ns" / "pid").symlink_to(HOST_PID_NAMESPACE)
        own = parse_mounts(Path("/proc/self/mountinfo").read_text())
        self.place = place_of(str(self.regions.resolve()), own)
        self.host = bind("/", "/", self.place.device)
        self.process(1, "systemd", [self.host])

    def shown(self, inside=".", at=REGIONS):
        """A mount of a folder that is relative to the one of the regions."""
        return bind(os.path.normpath(f"{self.place.path}/{inside}"), at, self.place.device)

    def process(self, pid, name, mounts):
        folder = self.procfs / str(pid)
        folder.mkdir()
        (folder / "comm").write_text(f"{name}\n")
        (folder / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))

    def monitor(self, *more_roots):
        return running_monitor(str(self.procfs), [str(self.regions), *more_roots])


def test_no_monitor_runs(node):
    node.process(70, "vgpu", [OVERLAY, node.shown()])
    assert node.monitor("/none") == ""


@pytest.mark.parametrize("inside", [".", ".."])
def test_the_monitor_has_the_folder_of_all_regions_or_one_above_it(node, inside):
    node.process(4711, "vGPUmonitor", [OVERLAY, node.shown(inside)])
    assert node.monitor() == "process 4711 (vGPUmonitor)"


def test_a_monitor_outside_containers_counts(node):
    node.process(4711, "vGPUmonitor", [node.host])
    assert node.monitor() == "process 4711 (vGPUmonitor)"


def test_a_tenant_with_the_name_and_its_own_folder_is_no_monitor(node):
    own = node.shown("5d2f0a9e-0000-4000-8000-000000000001_main")
    node.process(4711, "vGPUmonitor", [OVERLAY, own])
    node.process(4712, "vGPUmonitor", [OVERLAY, bind("/var/log", "/var/log", node.place.device)])
    node.process(4713, "vGPUmonitor", [OVERLAY, bind("/", "/other", "7:99")])
    assert node.monitor() == ""


def test_a_process_that_has_just_ended_does_not_count(node):
    node.process(4711, "vGPUmonitor", [node.host])
    (node.procfs / "4711" / "mountinfo").unlink()
    assert node.monitor() == ""


def test_a_monitor_that_may_not_be_looked_at_is_unknown(node):
    node.process(4711, "vGPUmonitor", [node.host])
    path = node.procfs / "4711" / "mountinfo"
    path.unlink()
    path.mkdir()  # its reading fails, for root too
    with pytest.raises(SourceError):
        node.monitor()


def test_without_the_hosts_processes_it_is_unknown(node):
    (node.procfs / "self" / "ns" / "pid").unlink()
    (node.procfs / "self" / "ns" / "pid").symlink_to("pid:[4026532999]")
    with pytest.raises(SourceError) as unknown:
        node.monitor()
    assert unknown.value.reason is Reason.FOREIGN_PIDS


def test_a_mount_table_of_the_kernel_is_understood(tmp_path):
    """The place by our own table is the one that the kernel reports for the folder."""
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text())
    place = place_of(str(tmp_path.resolve()), mounts)
    device = tmp_path.stat().st_dev
    assert place.device == f"{os.major(device)}:{os.minor(device)}"
    assert reaches(mounts, place)


def test_the_kernel_names_a_program_as_the_monitor_is_named(tmp_path):
    program = tmp_path / "vGPUmonitor"
    shutil.copy(shutil.which("sleep"), program)
    with subprocess.Popen([program, "600"]) as process:
        try:
            comm = Path(f"/proc/{process.pid}/comm")
            wait_until(lambda: comm.read_text() == "vGPUmonitor\n", "the program has begun")
            mounts = parse_mounts(Path(f"/proc/{process.pid}/mountinfo").read_text())
            assert reaches(mounts, place_of(str(tmp_path.resolve()), mounts))
        finally:
            process.kill()


def test_the_last_of_equal_mount_points_and_the_longest_one_count():
    mounts = [
        KernelMount("8:1", "/", "/"),
        KernelMount("8:2", "/a", "/usr/local"),
        KernelMount("8:3", "/b", "/usr/local"),
    ]
    assert place_of("/usr/local/vgpu", mounts) == Place("8:3", "/b/vgpu")
    assert place_of("/usr/localized", mounts) == Place("8:1", "/usr/localized")
    assert place_of("/usr", []) is None


def test_a_space_in_a_path_is_escaped_in_the_table():
    (mount,) = parse_mounts(bind("/a\\040b", "/c\\134d") + "\nrubbish\n")
    assert mount == KernelMount("8:1", "/a b", "/c\\d")


def test_without_a_descriptor_it_is_unknown_whether_the_monitor_runs(node):
    node.process(4711, "vGPUmonitor", [node.host])
    procfs = str(node.procfs)
    for ask in (
        node.monitor,
        lambda: [*other_monitor.pids_of_monitors(procfs)],
        lambda: other_monitor.process_name(f"{procfs}/4711/comm"),
    ):
        with no_descriptors(), pytest.raises(SourceError) as refused:
            ask()
        assert refused.value.reason is Reason.EXHAUSTED
