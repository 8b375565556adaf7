"""The pids of a pod's processes inside their containers: of the real kernel, and of trees."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from vgpu.model.facts import PodPids, ProcessOwner, Region, RegionFile, RegionProcess
from vgpu.sources import container_processes
from vgpu.sources.container_processes import PodPidReader
from vgpu.sources.runtime import HOST_PID_NAMESPACE, ProcessSource

UID = "9a422c32-4fc2-11e9-bb64-505dac4c3a38"
MAIN, SIDE = "ab" * 32, "cd" * 32
OWNER = ProcessOwner(MAIN, UID, "")
POD = f"kubepods/burstable/pod{UID}"


@contextmanager
def in_a_namespace():
    """A process that is 1 in a pid namespace of its own; yields its pid here."""
    unshare = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "1000"])
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
    try:
        yield int(wait_until(lambda: children.read_text().strip(), "a child"))
    finally:
        unshare.kill()
        unshare.wait()


@pytest.fixture
def node(tmp_path):
    """A procfs and a cgroup tree with a pod of two containers and no process."""
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(HOST_PID_NAMESPACE)
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup/cgroup.controllers").touch()
    run(tmp_path, 1, 1, "")
    for container in (MAIN, SIDE):
        folder = tmp_path / "cgroup" / POD / container
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").touch()
    return tmp_path


def run(node, pid, inside, container, *, start=100, below=""):
    """Start a process, by its host pid and its pid inside the container."""
    folder = node / "proc" / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "cgroup").write_text(f"0::/{POD}/{container}\n" if container else "0::/init.scope\n")
    (folder / "status").write_text(f"Name:\tpython\nNSpid:\t{pid}\t{inside}\n")
    (folder / "stat").write_text(f"{pid} (a b) c) S {'0 ' * 18}{start} 0 0\n")
    if container:
        cgroup = node / "cgroup" / POD / container / below
        cgroup.mkdir(exist_ok=True)
        with (cgroup / "cgroup.procs").open("a") as procs:
            procs.write(f"{pid}\n")


def source(node):
    return ProcessSource(str(node / "proc"), str(node / "cgroup"))


def pids_of(node, pids, *slots, of=None):
    """The pod's processes, where its region has these slots: host pid and pid inside."""
    processes = tuple(RegionProcess(pid, host_pid, 1, ()) for host_pid, pid in slots)
    region = Region("v1.2", (), processes, len(processes), 1, 2, 0, None, 1, 2)
    files = [RegionFile("/x.cache", UID, "main", region)]
    return (of or source(node)).sample(pids, files).pod_pids.get(UID)


def test_the_pid_inside_is_the_real_kernels():
    with in_a_namespace() as pid:
        pids = PodPidReader("/proc").read({1}, {pid: OWNER}, {})
    assert pids.containers == {MAIN: {1: pid}}


def test_a_process_of_the_host_has_one_pid():
    pids = PodPidReader("/proc").read({os.getpid()}, {os.getpid(): OWNER}, {})
    assert pids.containers[MAIN] == {int(Path("/proc/self").readlink().name): os.getpid()}


def test_a_pod_whose_host_pids_are_right_is_not_looked_into(node):
    run(node, 1000, 7, MAIN)
    assert pids_of(node, [1000], (1000, 7)) is None


def test_a_slot_is_found_by_the_process_that_the_driver_lists(node):
    run(node, 1000, 7, MAIN)
    assert pids_of(node, [1000, 7], (7, 7)).containers == {MAIN: {7: 1000}}


def test_a_process_that_the_driver_does_not_list_is_found_by_the_containers_cgroup(node):
    run(node, 1000, 7, MAIN)
    run(node, 1001, 8, SIDE, below="of its own")
    pids = pids_of(node, [], (0, 7), (0, 9))
    assert pids == PodPids({MAIN: {7: 1000}, SIDE: {8: 1001}}, complete=True)


def test_a_process_that_has_ended_is_not_there(node):
    run(node, 1000, 7, MAIN)
    (node / "proc/1000/status").unlink()
    assert pids_of(node, [], (0, 7)) == PodPids({MAIN: {}, SIDE: {}}, complete=True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda node: (node / "proc/1000/status").write_text("Name:\tpython\n"),
        lambda node: (node / "cgroup" / POD / SIDE / "cgroup.procs").write_text("0\n"),
        lambda node: (node / "cgroup" / POD / SIDE / "cgroup.procs").unlink(),
    ],
    ids=["a kernel without NSpid", "a foreign pid", "no list"],
)
def test_without_all_processes_nothing_is_known_to_be_gone(node, damage):
    run(node, 1000, 7, MAIN)
    damage(node)
    assert not pids_of(node, [], (0, 9)).complete


def test_a_pod_without_a_cgroup_and_a_process_is_not_looked_into(node):
    """It has ended, and thousands of such pods may have left a region."""
    run(node, 1000, 7, MAIN)
    (node / "cgroup" / POD).rename(node / "cgroup/elsewhere")
    assert pids_of(node, [], (0, 7)) is None
    pids = pids_of(node, [1000], (0, 7), (0, 9))  # a known process shows that the pod lives
    assert pids == PodPids({MAIN: {7: 1000}}, complete=False)


def test_a_tenants_many_cgroups_end_the_search(node):
    run(node, 1000, 7, MAIN)
    for number in range(300):
        (node / "cgroup" / POD / MAIN / str(number)).mkdir()
    assert not pids_of(node, [], (0, 9)).complete


def test_a_list_of_pids_that_is_cut_proves_no_end(node, monkeypatch):
    run(node, 1000, 7, MAIN)
    monkeypatch.setattr(container_processes, "MAX_KERNEL_BYTES", 64)
    with (node / "cgroup" / POD / MAIN / "cgroup.procs").open("a") as procs:
        procs.write("4194304\n" * 32)
    pids = pids_of(node, [], (0, 9))
    assert not pids.complete
    assert pids.containers[MAIN] == {7: 1000}


def test_a_pid_inside_is_read_once_for_a_process_and_again_for_the_next_one(node, monkeypatch):
    run(node, 1000, 7, MAIN)
    paths = []
    real = container_processes.read_kernel_file
    monkeypatch.setattr(
        container_processes, "read_kernel_file", lambda path: paths.append(path) or real(path)
    )
    processes = source(node)
    for _ in range(3):
        assert pids_of(node, [], (0, 7), of=processes).containers[MAIN] == {7: 1000}
    assert sum(path.endswith("1000/status") for path in paths) == 1
    run(node, 1000, 8, MAIN, start=200)  # the pid is another process's by now
    assert 8 in pids_of(node, [], (0, 7), of=processes).containers[MAIN]


def test_a_process_that_lived_at_an_earlier_sample_has_ended(node):
    run(node, 1000, 7, MAIN)
    processes = source(node)
    assert processes.sample([1000, 2000]).ended == frozenset()
    for name in ("cgroup", "status", "stat"):
        (node / "proc/1000" / name).unlink()
    for _ in range(2):  # the driver may list it on
        assert processes.sample([1000, 2000]).ended == {1000}
    assert processes.sample([2000]).ended == processes.sample([1000, 2000]).ended == frozenset()
