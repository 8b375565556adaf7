"""Whether containers are limited: real processes, with a stand-in for the library, and their maps.

The procfs has the kernel's own files of these processes, and cgroups of pods, which no test can
make. ``1/root`` is the node with the library in its folder.
"""

import errno
import os
import re
import subprocess

import msgspec
import pytest

from exporter import statuspage
from tests.support.fake_shim.build import LIBRARY, library, program
from tests.support.live import parse
from tests.support.regions import a_region, place
from vgpu.ledger.limit_verdict import LimitReason, LimitState
from vgpu.metrics.render import Format
from vgpu.model.facts import (
    ContainerName,
    Gpu,
    GpuProcess,
    GpuSample,
    Grant,
    KubeletSample,
    RegionDevice,
)
from vgpu.model.names import PodRef
from vgpu.model.objects import Container as SpecContainer
from vgpu.model.objects import Pod
from vgpu.model.units import GIB, MIB
from vgpu.schemes.registry import registry
from vgpu.sources import linked_libraries
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.observation import Observation
from vgpu.sources.runtime import HOST_PID_NAMESPACE, ProcessSource
from vgpu.sources.samples import pod_sample
from vgpu.sources.shim import ShimSource

GPU = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
POD = PodRef("00000000-0000-0000-0000-000000ab0000", "ml", "train-0")
CONTAINER = "a" * 64
CGROUP = f"0::/kubepods/pod{POD.uid}/{CONTAINER}\n"
PROFILES = ("minimal", "standard", "full")
LIMIT = 4 * GIB


class Container:
    """A container of a pod with 4 GiB of a GPU by Volcano's plugin, and its processes."""

    def __init__(self, folder):
        self.proc = folder / "proc"
        (self.proc / "self" / "ns").mkdir(parents=True)
        (self.proc / "self" / "ns" / "pid").symlink_to(HOST_PID_NAMESPACE)
        self.host = folder / "host" / "usr/local/vgpu"
        self.host.mkdir(parents=True)
        (self.proc / "1").mkdir()
        (self.proc / "1" / "root").symlink_to(folder / "host")
        self.library = self.host / LIBRARY
        self.library.write_bytes(library().read_bytes())
        self.roots = folder / "regions"
        self.region_file = None
        self.grants = None
        self.pods = None
        self.mount = "ro"
        self.processes = []
        self.answer = {"NVIDIA_VISIBLE_DEVICES": GPU, "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m"}
        self.sources = {}
        self.builder = LedgerBuilder(registry().codecs({"volcano": MIB, "gpushare": GIB}), "node-1")

    def region(self, limit=LIMIT, device=GPU):
        region = msgspec.structs.replace(
            a_region("v1.2", devices=1, processes=()),
            devices=(RegionDevice(device, limit, 30),),
        )
        self.region_file = place(self.roots, region)

    def start(self, *command, preload=None, **env):
        """A process that has the library loaded, unless ``preload`` is another one or none."""
        preload = self.library if preload is None else preload
        environment = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.region_file), **env}
        if preload:
            environment["LD_PRELOAD"] = str(preload)
        process = subprocess.Popen(
            command or [program()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert process.stdout.readline() == b"\n"
        self.processes.append(process)
        entry = self.proc / str(process.pid)
        entry.mkdir()
        (entry / "cgroup").write_text(CGROUP)
        (entry / "mountinfo").write_text(
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
            f"2 1 8:1 {self.host} {self.host} {self.mount} - ext4 /dev/sda1 rw\n"
        )
        for name in ("maps", "environ", "stat", "status"):
            (entry / name).symlink_to(f"/proc/{process.pid}/{name}")
        return process

    def process_source(self, profile):
        if profile not in self.sources:
            bare = profile == "full"
            self.sources[profile] = ProcessSource(
                str(self.proc), str(self.proc), bare=bare, watch=False
            )
        return self.sources[profile]

    def gpushare_grant(self, memory):
        """Make its share one of gpushare, whose plugin counts GiB."""
        prefix, units = "ALIYUN_COM_GPU_MEM", str(memory // GIB)
        answer = {
            "NVIDIA_VISIBLE_DEVICES": "0",
            f"{prefix}_IDX": "0",
            f"{prefix}_POD": units,
            f"{prefix}_CONTAINER": units,
            f"{prefix}_DEV": "24",
        }
        ids = tuple(f"{GPU}-_-{number}" for number in range(memory // GIB))
        self.grants = (Grant(POD.uid, "main", "aliyun.com/gpu-mem", ids, answer),)

    def kai_pod(self, **annotations):
        """Make it a pod of KAI Scheduler."""
        self.other_pod(annotations=annotations, labels={"runai-gpu-group": "g"})

    def other_pod(self, *containers, **fields):
        """Make it a pod of another scheduler: no plugin that vgpu reads allocates its share."""
        self.grants = ()
        containers = containers or (SpecContainer("main"),)
        pod = Pod(POD, containers=containers, phase="Running", **fields)
        self.pods = pod_sample((pod,), complete=True)

    def observation(self, profile, used=GIB):
        pids = [process.pid for process in self.processes]
        shim = ShimSource((str(self.roots),), required=False).sample()
        grant = Grant(POD.uid, "main", "volcano.sh/vgpu-number", (f"{GPU}-0",), self.answer)
        names = {CONTAINER: ContainerName(POD.namespace, POD.name, "main", POD.uid)}
        return Observation(
            gpu=GpuSample(
                (Gpu(GPU, 0, {}, {("memory_total_bytes",): 24.0 * GIB}),),
                processes=tuple(GpuProcess(pid, GPU, used) for pid in pids),
                processes_known=frozenset({GPU}),
            ),
            shim=shim,
            kubelet=KubeletSample(
                {POD.uid: POD},
                names,
                None if profile == "minimal" else (grant,) if self.grants is None else self.grants,
            ),
            pods=self.pods,
            process=None
            if profile == "minimal"
            else self.process_source(profile).sample(pids, shim.files),
        )

    def reason(self, profile, used=GIB):
        observation = self.observation(profile, used)
        self.builder.ledger(observation)
        containers = self.builder.usage(observation).containers
        (reason,) = [each.limit_reason for each in containers if each.pod.uid == POD.uid]
        return reason

    def end(self):
        for process in self.processes:
            process.stdin.close()
            process.wait()
            process.stdout.close()


@pytest.fixture
def container(tmp_path):
    made = Container(tmp_path)
    yield made
    made.end()


# ---------------------------------------------------------------- set up as it should be


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ("minimal", LimitReason.NO_PROCESSES_SEEN),
        ("standard", LimitReason.LIBRARY_WRITES),
        ("full", LimitReason.LIBRARY_MAPPED),
    ],
)
def test_a_process_with_the_library_is_limited_as_far_as_the_profile_shows(
    container, profile, reason
):
    container.region()
    container.start()
    assert container.reason(profile) is reason


def test_an_avoided_hook_is_seen_when_more_is_used_and_decides_at_the_next_sample(container):
    container.region()
    container.start()
    states = [container.reason("full", used).state for used in (GIB, 6 * GIB, 6 * GIB, GIB)]
    assert states == [
        LimitState.IN_PLACE,
        LimitState.UNKNOWN,
        LimitState.EXCEEDED,
        LimitState.IN_PLACE,
    ]


def test_the_use_counts_whatever_the_set_up_is(container):
    container.region(limit=0)
    container.start(preload="")
    container.reason("full", 6 * GIB)
    assert container.reason("full", 6 * GIB) is LimitReason.OVER_LIMIT


@pytest.mark.parametrize(
    ("modules", "reason"),
    [("cgpu_km 1 0\n", LimitReason.OVER_LIMIT), ("nvidia 1 0\n", LimitReason.NOT_LIMITED)],
)
def test_gpushare_can_be_exceeded_where_the_kernel_module_limits(container, modules, reason):
    (container.proc / "modules").write_text(modules)
    container.gpushare_grant(LIMIT)
    container.start(preload="")
    container.reason("standard", 6 * GIB)
    assert container.reason("standard", 6 * GIB) is reason


def test_a_pod_of_kai_that_uses_more_than_it_asked_for_exceeds_at_each_profile(container):
    container.kai_pod(**{"gpu-memory": "4096"})
    container.start(CUDA_DEVICE_MEMORY_LIMIT="4096m")
    for profile in ("standard", "full"):
        container.reason(profile, 6 * GIB)
        assert container.reason(profile, 6 * GIB) is LimitReason.OVER_LIMIT


def test_a_whole_gpu_needs_no_limit(container):
    container.answer["CUDA_DEVICE_MEMORY_LIMIT_0"] = f"{24 * 1024}m"
    container.region(limit=24 * GIB)
    container.start(preload="")
    assert container.reason("full") is LimitReason.WHOLE_DEVICE


# ---------------------------------------------------------------- never limited


def without_preload(container):
    container.region()
    container.start(preload="")


def another_program_under_the_pid(container):
    container.region()
    process = container.start(program(), program(static=True))
    container.reason("full")
    process.stdin.write(b"x")
    process.stdin.flush()
    assert process.stdout.readline() == b"\n"


def a_static_binary(container):
    container.region()
    container.start(program(static=True))


def a_copy_of_the_library(container):
    container.region()
    copy = container.roots.parent / LIBRARY
    copy.write_bytes(container.library.read_bytes())
    container.start(preload=copy, CUDA_DEVICE_MEMORY_SHARED_CACHE="/nonexistent")


def a_region_that_nobody_writes(container):
    container.region()
    container.start(CUDA_DEVICE_MEMORY_SHARED_CACHE="/nonexistent")


def disabled_control(container):
    container.region()
    container.start(CUDA_DISABLE_CONTROL="true")


def a_limit_of_0(container):
    container.region(limit=0)
    container.start()


def an_answer_without_a_limit(container):
    container.answer["CUDA_DEVICE_MEMORY_LIMIT_0"] = "0m"
    container.region(limit=0)
    container.start()


def one_of_two_processes(container):
    container.region()
    container.start()
    container.start(preload="")


def a_library_that_was_removed(container):
    container.region()
    copy = container.library.with_name("libvgpu.so.old")
    copy.write_bytes(container.library.read_bytes())
    container.start(preload=copy, CUDA_DEVICE_MEMORY_SHARED_CACHE="/nonexistent")
    copy.unlink()


def preloads(container, name, variable=None):
    """A copy of the library under another name is loaded before the node's own."""
    container.region()
    other = container.roots.parent / name
    other.write_bytes(library().read_bytes())
    env = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/nonexistent"}
    if variable is None:
        container.start(preload=f"{other}:{container.library}", **env)
    else:
        container.start(**{variable: str(other)}, **env)


def a_copy_before_the_library(container):
    preloads(container, LIBRARY)


def a_file_with_the_librarys_name_in_front(container):
    preloads(container, f"{LIBRARY}-x")


def another_preload(container):
    preloads(container, "libother.so")


def a_preload_with_the_name_of_an_allocator(container):
    preloads(container, "libjemalloc_bypass.so")


def an_auditor(container):
    preloads(container, "libaudit.so", "LD_AUDIT")


def a_link_with_the_librarys_name(container):
    container.region()
    other = container.roots.parent / "other.so"
    other.write_bytes(library().read_bytes())
    link = other.with_name(LIBRARY)
    link.symlink_to(other)
    env = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/nonexistent"}
    container.start(preload=f"{link}:{container.library}", **env)


FULL = {
    without_preload: LimitReason.LIBRARY_NOT_MAPPED,
    another_program_under_the_pid: LimitReason.STATIC_BINARY,
    a_static_binary: LimitReason.STATIC_BINARY,
    a_copy_of_the_library: LimitReason.LIBRARY_COPY,
    a_region_that_nobody_writes: LimitReason.REGION_NOT_WRITTEN,
    disabled_control: LimitReason.CONTROL_DISABLED,
    a_limit_of_0: LimitReason.LIMIT_ZERO,
    an_answer_without_a_limit: LimitReason.LIMIT_ZERO,
    one_of_two_processes: LimitReason.LIBRARY_NOT_MAPPED,
    a_library_that_was_removed: LimitReason.LIBRARY_REPLACED,
    a_copy_before_the_library: LimitReason.LIBRARY_COPY,
    a_file_with_the_librarys_name_in_front: LimitReason.LIBRARY_COPY,
    another_preload: LimitReason.SECOND_PRELOAD,
    a_preload_with_the_name_of_an_allocator: LimitReason.SECOND_PRELOAD,
    an_auditor: LimitReason.SECOND_PRELOAD,
    a_link_with_the_librarys_name: LimitReason.SECOND_PRELOAD,
}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("evasion", FULL, ids=lambda evasion: evasion.__name__)
def test_a_process_that_is_not_limited_is_never_in_place(container, evasion, profile):
    evasion(container)
    reason = container.reason(profile)
    assert reason.state is not LimitState.IN_PLACE
    if profile == "full":
        assert reason is FULL[evasion]


def test_an_environment_that_cannot_be_read_leaves_only_the_slot_of_the_process(
    container, monkeypatch
):
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(linked_libraries, "read_environment", refuse)
    container.region()
    container.start()
    assert container.reason("full") is LimitReason.LIBRARY_MAPPED
    container.start(CUDA_DISABLE_CONTROL="true")
    assert container.reason("full") is LimitReason.ENVIRON_UNREAD


def test_an_environment_that_a_program_has_overwritten_is_unread(container):
    container.region()
    process = container.start(CUDA_DISABLE_CONTROL="true")
    environ = container.proc / str(process.pid) / "environ"
    environ.unlink()
    environ.write_bytes(bytes(512))
    assert container.reason("full") is LimitReason.ENVIRON_UNREAD


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"CUDA_DEVICE_MEMORY_LIMIT": "12288m"}, LimitReason.LIBRARY_MAPPED),
        ({}, LimitReason.LIMIT_ZERO),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "1024m"}, LimitReason.LIMIT_DIFFERS),
    ],
)
def test_the_isolator_of_kai_needs_its_limit_in_the_environment(container, env, reason):
    container.kai_pod(**{"gpu-fraction": "0.5"})
    container.start(**env)
    assert container.reason("full") is reason
    assert container.reason("standard") is LimitReason.WAY_UNKNOWN


def test_a_part_of_kai_that_is_printed_as_nothing_misses_its_limit(container):
    """KAI sets no variable then, so that the library is loaded and limits nothing."""
    container.kai_pod(**{"gpu-fraction": "0.004"})
    container.start()
    reason = container.reason("full")
    assert (reason, reason.state) == (LimitReason.LIMIT_ZERO, LimitState.MISSING)


KOORDINATOR = {"scheduling.koordinator.sh/device-allocated": "{}"}
HAMI_CORE_OF_KOORDINATOR = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}


@pytest.mark.parametrize("has_process", [True, False])
@pytest.mark.parametrize("profile", ["standard", "full"])
def test_a_share_of_koordinator_is_unknown(container, profile, has_process):
    share = SpecContainer("main", others={"koordinator.sh/gpu-core": 50})
    container.other_pod(
        SpecContainer("sidecar"), share, annotations=KOORDINATOR, labels=HAMI_CORE_OF_KOORDINATOR
    )
    if has_process:
        container.start()
    assert container.reason(profile) is LimitReason.WAY_UNKNOWN


@pytest.mark.parametrize(
    ("profile", "reason"),
    [("standard", LimitReason.WAY_UNKNOWN), ("full", LimitReason.NO_PROCESS)],
)
def test_a_pod_of_kai_has_a_state_before_its_first_gpu_process(container, profile, reason):
    container.kai_pod(**{"gpu-fraction": "0.5"})
    assert container.reason(profile) is reason


def test_a_request_whose_allocation_no_source_has_is_unknown_and_other_use_has_no_state(container):
    container.other_pod(SpecContainer("main", {"nvidia.com/gpu": 1}))
    container.start()
    assert container.reason("standard") is LimitReason.WAY_UNKNOWN
    container.other_pod(SpecContainer("main"))
    assert container.reason("standard") is None


def test_kai_without_its_isolator_limits_nothing(container):
    container.kai_pod(**{"gpu-memory": "4096"})
    container.start(preload="")
    container.library.unlink()
    assert container.reason("full") is LimitReason.NOT_LIMITED


@pytest.mark.parametrize(("mount", "writers"), [("ro,nosuid", ()), ("rw", ((POD, "main"),))])
def test_a_library_that_a_container_can_change_is_a_finding_of_the_node(container, mount, writers):
    container.mount = mount
    container.region()
    container.start()
    assert container.reason("full") is LimitReason.LIBRARY_MAPPED
    usage = container.builder.usage(container.observation("full"))
    assert usage.library_writers == {LIBRARY: writers}


# ---------------------------------------------------------------- the demo node


def test_the_page_has_one_state_for_each_container_and_the_reason_in_its_info(bench):
    bench.sampler.sample()
    page = bench.sampler.sample()
    exported = parse(page.exposition.body(Format.TEXT).decode())
    states = [name for name in exported if name.startswith("vgpu_container_limit_state{")]
    places = [re.sub(r',?state="\w+"', "", name) for name in states]
    assert len(states) == len(set(places)) > 0
    (over,) = (name for name in states if 'pod="finetune-0"' in name)
    assert 'state="exceeded"' in over
    infos = [name for name in exported if name.startswith("vgpu_container_info{")]
    (info,) = (name for name in infos if 'pod="finetune-0"' in name)
    assert 'limit_reason="over_limit"' in info


def test_the_status_page_has_the_state_of_each_container(bench):
    bench.sampler.sample()
    html = statuspage.render(bench.sampler.sample().view, 0.0, "/metrics").decode()
    assert 'data-name="LIMIT"' in html
    assert f'<span class="bad" title="{LimitReason.OVER_LIMIT.explanation}">exceeded</span>' in html
