"""A sample of /proc and the cgroups: those of this machine, and trees of other machines."""

import errno
import gc
import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from vgpu.model.facts import MpsClientLimits, ProcessOwner
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources import mps, runtime
from vgpu.sources.mps import MpsClients
from vgpu.sources.node_sources import PROCESS, NodePaths, NodeSources
from vgpu.sources.pid_watch import MAX_WATCHED, most_watched
from vgpu.sources.runtime import HOST_PID_NAMESPACE, ProcessSource, read_live_pods

UID = "9a422c32-4fc2-11e9-bb64-505dac4c3a38"
UID_ = UID.replace("-", "_")
OTHER = "0123456789abcdef0123456789abcdef"
ID = "ab" * 32
POD_PATH = f"/kubepods/burstable/pod{UID}/{ID}"


@pytest.fixture
def proc(tmp_path):
    """A procfs of the host's pid namespace, without processes but init."""
    folder = tmp_path / "proc"
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/pid").symlink_to(HOST_PID_NAMESPACE)
    run(folder, 1, "/init.scope")
    return folder


def run(proc, pid, path):
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "cgroup").write_text(f"0::{path}\n")


def make(root, *paths):
    for path in paths:
        (root / path).mkdir(parents=True)
        (root / path / "cgroup.procs").touch()


def sample(proc, *pids, **options):
    return ProcessSource(str(proc), str(proc.parent / "cgroup"), **options).sample(pids)


def test_this_very_process_is_read_from_the_real_kernel():
    seen = ProcessSource().sample([os.getpid()])
    assert list(seen.owners) == [os.getpid()]
    namespace = Path("/proc/self/ns/pid").readlink()
    assert seen.sees_host == (str(namespace) == HOST_PID_NAMESPACE and Path("/proc/1").exists())
    assert seen.rejections == ()


def test_a_process_that_has_ended_has_no_entry():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert ProcessSource().sample([ended.pid]).owners == {}


def test_each_pid_has_its_owner_nobody_or_no_entry(proc):
    run(proc, 10, POD_PATH)
    run(proc, 11, "/user.slice")
    seen = sample(proc, 10, 11, 12)
    assert seen.owners == {10: ProcessOwner(ID, UID, ""), 11: None}
    assert seen.sees_host


def test_a_pid_that_moved_to_another_container_has_its_new_owner(proc):
    source = ProcessSource(str(proc), str(proc.parent / "cgroup"))
    run(proc, 10, POD_PATH)
    assert source.sample([10]).owners[10] == ProcessOwner(ID, UID, "")
    run(proc, 10, f"/docker/{ID}")
    assert source.sample([10]).owners[10] == ProcessOwner(ID, "", "docker")


def test_a_process_that_ends_while_it_is_read_has_no_entry(proc, monkeypatch):
    run(proc, 10, POD_PATH)

    def gone(fd, size):
        raise ProcessLookupError(errno.ESRCH, "No such process")

    monkeypatch.setattr(runtime.os, "read", gone)
    seen = sample(proc, 10)
    assert (seen.owners, seen.rejections) == ({}, ())


def test_a_cgroup_that_is_not_utf8_is_nobodys(proc):
    (proc / "10").mkdir()
    (proc / "10" / "cgroup").write_bytes(b"0::/\xff\xfe\n")
    assert sample(proc, 10).owners == {10: None}


def test_a_pid_that_may_not_be_read_makes_every_absence_meaningless(proc, monkeypatch):
    run(proc, 10, POD_PATH)
    run(proc, 11, POD_PATH)
    real = os.open

    def refuse(path, flags, **options):
        if "/10/" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, flags, **options)

    monkeypatch.setattr(runtime.os, "open", refuse)
    seen = sample(proc, 10, 11, 12)
    assert list(seen.owners) == [11]
    assert not seen.sees_host
    assert [(r.object_name, r.reason) for r in seen.rejections] == [
        (f"{proc}/10/cgroup", Reason.UNREADABLE)
    ]


def test_another_pid_namespace_is_not_the_hosts(proc):
    (proc / "self/ns/pid").unlink()
    assert not sample(proc).sees_host
    (proc / "self/ns/pid").symlink_to("pid:[4026532000]")
    assert not sample(proc).sees_host


def test_where_init_is_hidden_other_processes_may_be_too(proc):
    (proc / "1/cgroup").unlink()
    (proc / "1").rmdir()
    assert not sample(proc).sees_host


def test_without_procfs_there_is_no_sample(tmp_path):
    with pytest.raises(SourceError) as refused:
        sample(tmp_path / "none")
    assert refused.value.reason is Reason.ABSENT


# ---------------------------------------------------------------- pods that have a cgroup


def systemd_tree(prefix=""):
    dashed = prefix and f"{prefix}-"
    top = (f"{prefix}.slice/" if prefix else "") + f"{dashed}kubepods.slice"
    burstable = f"{top}/{dashed}kubepods-burstable.slice"
    return [
        f"{burstable}/{dashed}kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope",
        f"{top}/{dashed}kubepods-pod{OTHER}.slice",
        f"{top}/{dashed}kubepods-besteffort.slice",
    ]


CGROUPFS_TREE = [f"kubepods/burstable/pod{UID}/{ID}", f"kubepods/pod{OTHER}", "kubepods/besteffort"]

TREES = {
    "v2 systemd": ("", systemd_tree()),
    "v2 cgroupfs": ("", CGROUPFS_TREE),
    "kind": ("", systemd_tree("kubelet")),
    "cgroup root": ("", [f"node2/{path}" for path in CGROUPFS_TREE]),
    "v1 memory": ("memory", CGROUPFS_TREE),
    "v1 without memory": ("pids", CGROUPFS_TREE),
    "v1 systemd": ("systemd", systemd_tree()),
}


@pytest.mark.parametrize(("hierarchy", "paths"), TREES.values(), ids=TREES)
def test_every_pod_with_a_cgroup_is_live(tmp_path, hierarchy, paths):
    if not hierarchy:
        (tmp_path / "cgroup.controllers").touch()
    make(tmp_path / hierarchy, *paths, "system.slice/ssh.service")
    assert read_live_pods(str(tmp_path)) == {UID, OTHER}


def test_a_kubelet_without_pods_is_not_the_same_as_no_kubelet(tmp_path):
    (tmp_path / "cgroup.controllers").touch()
    make(tmp_path, "system.slice/docker.service")
    assert read_live_pods(str(tmp_path)) is None
    make(tmp_path, "kubepods.slice/kubepods-burstable.slice")
    assert read_live_pods(str(tmp_path)) == frozenset()
    assert read_live_pods(str(tmp_path / "none")) is None


def test_a_tree_that_cannot_be_read_completely_lists_no_pods(proc, monkeypatch):
    cgroup = proc.parent / "cgroup"
    make(cgroup, *[f"memory/kubepods/pod{UID[:-1]}{number}" for number in range(5)])
    assert len(sample(proc).live_pods) == 5
    monkeypatch.setattr(runtime, "MAX_FOLDERS", 4)
    seen = sample(proc)
    assert seen.live_pods is None
    assert [rejection.reason for rejection in seen.rejections] == [Reason.TOO_MANY_FILES]


# ---------------------------------------------------------------- regions inside containers


def test_a_region_inside_a_container_is_looked_for_once_per_container(proc, monkeypatch):
    asked = []

    def look(procfs, pid):
        asked.append((procfs, pid))
        raise SourceError(Reason.ABSENT, "region")

    monkeypatch.setattr(runtime.regions, "read_bare", look)
    run(proc, 10, POD_PATH)
    run(proc, 11, POD_PATH)
    run(proc, 12, "/user.slice")
    seen = sample(proc, 10, 11, 12, bare=True)
    assert len(asked) == 1
    assert (seen.bare, seen.rejections) == ((), ())
    sample(proc, 10)
    assert len(asked) == 1


def test_a_region_inside_a_container_is_attributed_to_it(proc):
    cache = shim_region()
    run(proc, 10, POD_PATH)
    (proc / "10/root/tmp").mkdir(parents=True)
    (proc / "10/root/tmp/cudevshr.cache").write_bytes(cache)
    run(proc, 11, f"/docker/{ID}")
    (proc / "11/root/tmp").mkdir(parents=True)
    (proc / "11/root/tmp/cudevshr.cache").write_bytes(cache[:12])
    seen = sample(proc, 10, 11, bare=True)
    ((owner, path, region),) = seen.bare
    assert owner == ProcessOwner(ID, UID, "")
    assert path == f"{proc}/10/root/tmp/cudevshr.cache"
    assert region.devices
    assert [(r.object_name, r.reason) for r in seen.rejections] == [
        (f"{proc}/11/root/tmp/cudevshr.cache", Reason.UNKNOWN_LAYOUT)
    ]


def shim_region():
    """A region that the real library wrote."""
    import gzip

    from tests.support.environment import GOLDEN_FILES

    path = min((GOLDEN_FILES / "shim-regions").glob("*-one.cache.gz"))
    return gzip.decompress(path.read_bytes())


# ---------------------------------------------------------------- processes that are watched


@pytest.fixture
def own(proc):
    """A procfs that shows this process: its pids are those of our system calls."""
    (proc / "self/ns/pid").unlink()
    (proc / "self/ns").rmdir()
    (proc / "self").rmdir()
    (proc / str(os.getpid()) / "ns").mkdir(parents=True)
    (proc / str(os.getpid()) / "ns/pid").symlink_to(HOST_PID_NAMESPACE)
    (proc / "self").symlink_to(str(os.getpid()))
    return proc


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "infinity"])
    yield process
    process.kill()
    process.wait()


def reads(monkeypatch):
    """The paths of the cgroups that are read."""
    paths, read = [], runtime.read_cgroup
    monkeypatch.setattr(runtime, "read_cgroup", lambda path: paths.append(path) or read(path))
    return paths


def test_the_cgroup_of_a_living_process_is_read_once(own, sleeper, monkeypatch):
    monkeypatch.setattr(runtime, "SAMPLES_OF_TRUST", 10**9)
    run(own, sleeper.pid, POD_PATH)
    source, paths = ProcessSource(str(own), str(own.parent / "cgroup")), reads(monkeypatch)
    first = source.sample([sleeper.pid])
    assert source.sample([sleeper.pid]).owners is first.owners
    assert paths == [f"{own}/{sleeper.pid}/cgroup"]


def test_a_pid_that_another_process_has_now_is_read_again(own, sleeper, monkeypatch):
    monkeypatch.setattr(runtime, "SAMPLES_OF_TRUST", 10**9)
    run(own, sleeper.pid, POD_PATH)
    source = ProcessSource(str(own), str(own.parent / "cgroup"))
    source.sample([sleeper.pid])
    sleeper.kill()
    sleeper.wait()
    run(own, sleeper.pid, f"/docker/{ID}")  # the kernel has assigned the pid again
    assert source.sample([sleeper.pid]).owners == {sleeper.pid: ProcessOwner(ID, "", "docker")}


def test_a_process_that_moves_is_found_within_the_samples_of_trust(own, sleeper):
    run(own, sleeper.pid, POD_PATH)
    source = ProcessSource(str(own), str(own.parent / "cgroup"))
    source.sample([sleeper.pid])
    run(own, sleeper.pid, f"/docker/{ID}")
    owners = [
        source.sample([sleeper.pid]).owners[sleeper.pid] for _ in range(runtime.SAMPLES_OF_TRUST)
    ]
    assert owners[-1] == ProcessOwner(ID, "", "docker")


def test_no_more_processes_are_watched_than_the_descriptors_allow(own, sleeper, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4, 4))
    run(own, sleeper.pid, POD_PATH)
    run(own, os.getpid(), "/user.slice")
    source, paths = ProcessSource(str(own), str(own.parent / "cgroup")), reads(monkeypatch)
    for _ in range(2):
        owners = source.sample([sleeper.pid, os.getpid()]).owners
        assert owners == {sleeper.pid: ProcessOwner(ID, UID, ""), os.getpid(): None}
    assert len(paths) >= 3


@pytest.mark.parametrize(
    ("descriptors", "watched"),
    [
        (0, 0),
        (1_024, 256),
        (4_096, 2_048),
        (16_384, 14_336),
        (1 << 20, MAX_WATCHED),
        (resource.RLIM_INFINITY, MAX_WATCHED),
    ],
)
def test_a_node_with_enough_descriptors_has_all_its_processes_watched(descriptors, watched):
    """16 GPUs with 500 processes each are 8,000."""
    assert most_watched(descriptors) == watched


def watched_processes():
    """Number of this process's descriptors that are pidfds."""
    links = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(str(fd.readlink()))
    return links.count("anon_inode:[pidfd]")


def test_a_process_that_is_no_longer_asked_for_takes_no_descriptor(own, sleeper):
    run(own, sleeper.pid, POD_PATH)
    source = ProcessSource(str(own), str(own.parent / "cgroup"))
    before = watched_processes()
    source.sample([sleeper.pid])
    assert watched_processes() == before + 1
    source.sample([])
    assert watched_processes() == before


def test_a_source_that_is_dropped_keeps_no_descriptors(own, sleeper):
    run(own, sleeper.pid, POD_PATH)
    before = watched_processes()
    ProcessSource(str(own), str(own.parent / "cgroup")).sample([sleeper.pid])
    gc.collect()
    assert watched_processes() == before


def test_a_source_for_one_sample_takes_no_descriptors(own, sleeper):
    run(own, sleeper.pid, POD_PATH)
    before = set(Path("/proc/self/fd").iterdir())
    source = ProcessSource(str(own), str(own.parent / "cgroup"), watch=False)
    assert source.sample([sleeper.pid]).owners == {sleeper.pid: ProcessOwner(ID, UID, "")}
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_a_program_that_acts_on_pods_reads_each_process_in_each_sample(own, sleeper, monkeypatch):
    monkeypatch.setattr(runtime, "SAMPLES_OF_TRUST", 10**9)
    run(own, sleeper.pid, POD_PATH)
    paths = NodePaths(procfs=str(own), cgroupfs=str(own.parent / "cgroup"))
    source = NodeSources.open(paths, {PROCESS}).process
    source.sample([sleeper.pid])
    run(own, sleeper.pid, f"/docker/{ID}")
    assert source.sample([sleeper.pid]).owners == {sleeper.pid: ProcessOwner(ID, "", "docker")}


def test_a_python_without_pidfds_reads_each_time(own, sleeper, monkeypatch):
    """Python has the call only if the system that it was built on had it."""
    monkeypatch.delattr(os, "pidfd_open")
    run(own, sleeper.pid, POD_PATH)
    source = ProcessSource(str(own), str(own.parent / "cgroup"))
    assert source.sample([sleeper.pid]).owners == {sleeper.pid: ProcessOwner(ID, UID, "")}
    run(own, sleeper.pid, f"/docker/{ID}")
    assert source.sample([sleeper.pid]).owners == {sleeper.pid: ProcessOwner(ID, "", "docker")}


def test_a_process_that_enters_its_container_is_found_at_once(own, sleeper, monkeypatch):
    """The runtime starts it in its own cgroup, and moves it."""
    monkeypatch.setattr(runtime, "SAMPLES_OF_TRUST", 10**9)
    run(own, sleeper.pid, "/system.slice/containerd.service")
    source = ProcessSource(str(own), str(own.parent / "cgroup"))
    assert source.sample([sleeper.pid]).owners == {sleeper.pid: None}
    run(own, sleeper.pid, POD_PATH)
    assert source.sample([sleeper.pid]).owners == {sleeper.pid: ProcessOwner(ID, UID, "")}


# ---------------------------------------------------------------- limits of MPS in the environment


def test_a_real_process_has_the_limits_of_its_environment():
    limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}
    limits |= {f"SECRET_{number}": "x" * 100_000 for number in range(3)}
    sleeper = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", sleeper],
        env=limits,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        child.stdout.readline()
        rejections = []
        clients = MpsClients("/proc").sample([child.pid, 2**22], lambda _: False, rejections)
        child.stdin.close()
    assert clients == {child.pid: MpsClientLimits({}, 30)}
    assert rejections == []


def test_a_server_of_mps_is_known_by_its_name_only_outside_of_containers(proc):
    run(proc, 10, POD_PATH)
    for pid in (11, 12, 13):
        run(proc, pid, "/system.slice/nvidia-mps.service")
    for pid, name in ((10, "nvidia-cuda-mps"), (11, "nvidia-cuda-mps"), (12, "nvidia-cuda-mps2")):
        (proc / str(pid) / "comm").write_text(f"{name}\n")
    assert sample(proc, 10, 11, 12, 13).mps_servers == {11}


def test_an_environment_is_read_once_and_only_with_the_right_to_read_inside_containers(proc):
    run(proc, 10, POD_PATH)
    run(proc, 11, "/user.slice")
    for pid in (10, 11):
        (proc / str(pid) / "environ").write_bytes(b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30\0")
    assert sample(proc, 10, 11).mps_clients == {}
    assert sample(proc, 10, 11, bare=True).mps_clients == {10: MpsClientLimits({}, 30)}
    clients = MpsClients(str(proc))
    for _ in range(2):
        assert clients.sample([10], lambda _: True, []) == {10: MpsClientLimits({}, 30)}
        (proc / "10/environ").write_bytes(b"")
    assert clients.sample([10], lambda _: False, []) == {10: MpsClientLimits()}
    assert clients.sample([], lambda _: True, []) == {}


def test_an_environment_that_may_not_be_read_is_reported(proc, monkeypatch):
    def refuse(path, *_):
        raise PermissionError(errno.EACCES, "denied", path)

    monkeypatch.setattr(mps.os, "open", refuse)
    rejections = []
    assert MpsClients(str(proc)).sample([10], lambda _: True, rejections) == {}
    assert [one.reason for one in rejections] == [Reason.UNREADABLE]
