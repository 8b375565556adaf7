"""Nodes that users have reported: the page of the exporter over the driver's answers and folders.

The driver is the C library of the tests, all other sources are files as the kernel, the kubelet and
the sharing library make them.
"""

import json
from pathlib import Path

import msgspec
import pytest

from exporter.compat import Compat
from exporter.flags import ExporterOptions
from exporter.main import make_sampler
from tests.deviceplugin.admitting_kubelet import checksum
from tests.support.live import parse
from tests.support.nvml_fake import Device, FakeDriver, Fault, Mig, Process, mig_uuid, uuid
from tests.support.regions import a_process, a_region, write
from tests.support.waiting import WAIT_SECONDS
from vgpu.metrics.render import Format
from vgpu.model.facts import RegionDevice
from vgpu.model.units import GIB, MIB
from vgpu.sources.nvml import NvmlSource
from vgpu.sources.runtime import HOST_PID_NAMESPACE

GPU, OTHER = uuid(0), uuid(1)


class ReportedNode:
    """A node's folders, and the page of an exporter that reads them."""

    def __init__(self, folder):
        self.folder = folder
        self.driver = FakeDriver(folder)
        self._grants = []
        namespace = folder / "proc/self/ns/pid"
        namespace.parent.mkdir(parents=True)
        namespace.symlink_to(HOST_PID_NAMESPACE)
        self.process(1)
        self._write("cgroup/cgroup.controllers")
        (folder / "cgroup/kubepods.slice").mkdir()
        for name in ("log/containers", "log/pods", "shim"):
            (folder / name).mkdir(parents=True)

    def pod(self, number, name, *devices, container="main"):
        """A running pod with one container, to which the kubelet has allocated the devices."""
        uid, container_id = f"{number:08x}-1111-4111-8111-{number:012x}", f"{number:064x}"
        self._write(f"log/pods/ml_{name}_{uid}/{container}/0.log")
        self._write(f"log/containers/{f'{name}_ml_{container}-{container_id}'[:251]}.log")
        self._write(f"cgroup/{self._cgroup(number)}/cgroup.procs")
        self._grants.append(
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": "nvidia.com/gpu",
                "DeviceIDs": {"-1": list(devices)},
                "AllocResp": "",
            }
        )
        return uid

    def process(self, pid, pod=None, *, inside=None):
        """A process of the host, or of a pod with its pid inside the container."""
        cgroup = "init.scope" if pod is None else self._cgroup(pod)
        self._write(f"proc/{pid}/cgroup", f"0::/{cgroup}\n")
        if inside is not None:
            self._write(f"proc/{pid}/status", f"Name:\tpython\nNSpid:\t{pid}\t{inside}\n")

    def region(self, uid, *processes, device=GPU, container="main"):
        """The file of HAMi-core for a container with one device."""
        region = a_region("v1.2", devices=1, processes=processes)
        devices = (RegionDevice(device, 12 * GIB, 30),)
        self._write(f"shim/{uid}_{container}/x.cache")
        path = self.folder / f"shim/{uid}_{container}/x.cache"
        write(path, msgspec.structs.replace(region, devices=devices))

    def page(self, monkeypatch, compat=(), **options):
        """The series of one sample: its text -> value."""
        self.driver.load(monkeypatch)
        data = {"PodDeviceEntries": self._grants, "RegisteredDevices": {}}
        self._write("checkpoint", json.dumps({"Data": data, "Checksum": checksum(data)}))
        where = {
            "shim_root": (str(self.folder / "shim"),),
            "kubelet_log_dir": str(self.folder / "log/pods"),
            "kubelet_checkpoint": str(self.folder / "checkpoint"),
            "path_procfs": str(self.folder / "proc"),
            "path_cgroupfs": str(self.folder / "cgroup"),
        }
        for name in ("limits_gaia_dir", "limits_kubeshare_dir", "limits_mps_dir"):
            where[name] = str(self.folder / name)
        where["plugin_state_dir"] = str(self.folder / "plugin")
        settings = ExporterOptions(
            node_name="n", sample_timeout=WAIT_SECONDS, compat=compat, **where, **options
        )
        sampler = make_sampler(settings, NvmlSource())
        try:
            body = sampler.sample().exposition.body(Format.TEXT, gzip=False)
        finally:
            sampler.stop()
        return parse(body.decode())

    def _cgroup(self, number):
        uid = f"{number:08x}_1111_4111_8111_{number:012x}"
        return f"kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{number:064x}.scope"

    def _write(self, path, content=""):
        target = Path(self.folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)


@pytest.fixture
def node(tmp_path):
    return ReportedNode(tmp_path)


def values(page, metric, **labels):
    """The values of a metric's series by the pod's name, where all these labels match."""
    found = {}
    for series, value in page.items():
        name, _, rest = series.partition("{")
        if name == metric and all(f'{key}="{label}"' in rest for key, label in labels.items()):
            found[rest.partition('pod="')[2].partition('"')[0]] = value
    return found


USED, SM = "vgpu_container_memory_used_bytes", "vgpu_container_sm_utilization_ratio"
ACCOUNTED = "vgpu_container_memory_accounted_bytes"


def test_a_gpu_without_memory_of_its_own_keeps_the_use_of_its_containers(node, monkeypatch):
    """GB10 answers with success and 0 bytes."""
    node.pod(1, "vllm", GPU)
    node.process(1000, pod=1)
    node.driver.write(
        devices=[Device(GPU, total=0, used=0, reserved=0, memory_util=0, gpu_util=55)],
        processes=[Process(GPU, 1000, used=40 * GIB, sm=50)],
    )
    page = node.page(monkeypatch)
    assert values(page, USED) == {"vllm": 40 * GIB}
    assert values(page, SM) == {"vllm": 0.5}
    assert not [series for series in page if series.startswith("vgpu_gpu_memory_")]
    assert not [series for series in page if series.startswith("vgpu_collector_rejected{")]


def test_without_a_process_list_neither_memory_nor_utilisation_is_known(node, monkeypatch):
    """Not supported (WSL, a guest of vGPU), an error, and an entry that cannot be."""
    gpus = [uuid(number) for number in range(4)]
    for number, gpu in enumerate(gpus):
        node.pod(number + 1, f"train-{number}", gpu)
        node.process(1000 + number, pod=number + 1)
    processes = [Process(gpu, 1000 + number, sm=90) for number, gpu in enumerate(gpus)]
    node.driver.write(
        devices=[Device(gpu, gpu_util=95) for gpu in gpus],
        processes=[*processes, Process(gpus[3], 0, used=0)],
        faults=[
            Fault("nvmlDeviceGetComputeRunningProcesses_v3", 3, times=0, device=gpus[1]),
            Fault("nvmlDeviceGetComputeRunningProcesses_v3", 999, times=0, device=gpus[2]),
        ],
    )
    page = node.page(monkeypatch)
    assert values(page, USED) == {"train-0": GIB}
    assert values(page, SM) == {"train-0": 0.9}
    assert len([s for s in page if s.startswith("vgpu_gpu_utilization_ratio{")]) == 4


@pytest.mark.parametrize("host_pid", [2623, 0], ids=["the container's pid", "not found"])
def test_open_kernel_modules_leave_a_live_container_its_accounted_memory(
    node, monkeypatch, host_pid
):
    uid = node.pod(1, "notebook", GPU)
    node.process(812_345, pod=1, inside=2623)
    node.process(2623)  # of the host
    live, killed = a_process("v1.2", pid=2623, devices=1), a_process("v1.2", pid=77, devices=1)
    node.region(uid, *(msgspec.structs.replace(slot, host_pid=host_pid) for slot in (live, killed)))
    node.driver.write(devices=[Device(GPU)], processes=[Process(GPU, 812_345, used=3 * GIB)])
    page = node.page(monkeypatch, metrics_detail=("accounting",), compat=(Compat.VOLCANO,))
    assert values(page, ACCOUNTED) == {"notebook": 1336 * MIB}
    assert values(page, "vgpu_container_memory_phantom_bytes") == {"notebook": 1336 * MIB}
    assert [v for s, v in page.items() if s.startswith("vGPU_device_memory_usage_in_bytes{")] == [
        1336 * MIB
    ]


def test_without_the_hosts_pids_nothing_is_accounted_by_liveness(node, monkeypatch):
    """As in the profile minimal: absent, neither 0 nor with the memory of killed processes."""
    uid = node.pod(1, "notebook", GPU)
    node.region(uid, a_process("v1.2", devices=1))
    namespace = node.folder / "proc/self/ns/pid"
    namespace.unlink()
    namespace.symlink_to("pid:[4026532000]")
    node.driver.write(devices=[Device(GPU)])
    page = node.page(monkeypatch, compat=(Compat.VOLCANO,))
    assert values(page, ACCOUNTED) == {}
    assert not [s for s in page if s.startswith("vGPU_device_memory_usage_in_bytes{")]
    assert values(page, "vgpu_container_memory_limit_bytes") == {"notebook": 12 * GIB}


def test_a_display_server_on_a_gpu_in_mig_mode_hides_no_containers_memory(node, monkeypatch):
    instance = mig_uuid(1)
    node.pod(1, "train", instance)
    node.process(1000, pod=1)
    node.process(900)
    node.driver.write(
        devices=[Device(GPU, mig=1), Mig(GPU, instance, gi=3, ci=0, name="NVIDIA MIG 3g.40gb")],
        processes=[Process(GPU, 1000, gi=3, ci=0), Process(GPU, 900, used=MIB, type="G")],
    )
    page = node.page(monkeypatch)
    assert values(page, USED) == {"train": GIB}
    assert not [series for series in page if series.startswith("vgpu_collector_rejected{")]


def test_a_display_server_of_the_host_is_in_the_gap_and_no_conflict(node, monkeypatch):
    node.process(900)
    node.process(901)
    drawing = Process(GPU, 900, used=64 * MIB, type="G")
    node.driver.write(devices=[Device(GPU, used=64 * MIB)], processes=[drawing])
    page = node.page(monkeypatch)
    conflict = 'vgpu_allocation_conflicts{type="process_without_allocation"}'
    assert page[conflict] == 0
    gap = {s.partition("{")[0]: v for s, v in page.items() if s.startswith("vgpu_gpu_memory_unatt")}
    assert gap == {"vgpu_gpu_memory_unattributed_bytes": 64 * MIB}
    computing = Process(GPU, 901, used=64 * MIB)
    node.driver.write(devices=[Device(GPU, used=128 * MIB)], processes=[drawing, computing])
    assert node.page(monkeypatch)[conflict] == 1


def test_a_container_with_a_long_name_has_it(node, monkeypatch):
    pod = "train-" + "x" * 200
    node.pod(1, pod, GPU)
    node.process(1000, pod=1)
    node.driver.write(devices=[Device(GPU)], processes=[Process(GPU, 1000)])
    assert values(node.page(monkeypatch), USED, container="main") == {pod: GIB}


def test_nobody_is_idle_beside_a_process_of_an_unknown_container(node, monkeypatch):
    """On its GPU only."""
    node.pod(1, "train", GPU)
    node.pod(2, "idle", OTHER)
    node.driver.write(
        devices=[Device(GPU), Device(OTHER)], processes=[Process(GPU, 4711, used=GIB)]
    )
    assert values(node.page(monkeypatch), USED) == {"idle": 0}
