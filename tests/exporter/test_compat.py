"""The compatibility sets, compared row by row with what the original monitors serve."""

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from exporter.allocations import allocation_totals
from exporter.compat import Compat, tables
from exporter.view import ExporterView, GpuRow
from vgpu.ledger import DeviceEntry, Holding, HoldingSum, Ledger
from vgpu.ledger.container_usage import ContainerUsage, NodeUsage, ShareUsage
from vgpu.ledger.regions import Accounted
from vgpu.metrics.render import Format, Renderer
from vgpu.model.allocation import Device, Share
from vgpu.model.facts import Gpu
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, Source
from vgpu.model.units import GIB, MIB

UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
MIG = "MIG-bbbbbbbb-0000-0000-0000-000000000000"

HOST = {"deviceidx": "0", "deviceuuid": UUID, "zone": "vGPU"}
LEGACY_HOST = {**HOST, "nodeid": "node-1", "devicetype": "NVIDIA-NVIDIA A10"}
LEGACY = {
    "podnamespace": "ml",
    "podname": "train",
    "ctrname": "main",
    "vdeviceid": "0",
    "deviceuuid": UUID,
    "zone": "vGPU",
}
HAMI_HOST = {
    "node": "node-1",
    "device_index": "0",
    "device_uuid": UUID,
    "device_type": "NVIDIA-NVIDIA A10",
    "zone": "vGPU",
}
HAMI = {
    "namespace": "ml",
    "pod": "train",
    "container": "main",
    "vdevice_index": "0",
    "device_uuid": UUID,
    "zone": "vGPU",
}
GPU = {"devID": UUID, "NodeName": "node-1"}
GAIA = {"pod_name": "old", "namespace": "ml", "node": "node-1", "container_name": "web"}

LEGACY_VDEVICE_ROWS = [
    ("vGPU_device_memory_usage_in_bytes", LEGACY, 2 * GIB),
    ("vGPU_device_memory_limit_in_bytes", LEGACY, 3 * GIB),
    ("Device_memory_desc_of_container", LEGACY, 2 * GIB),
    ("Device_utilization_desc_of_container", LEGACY, 137),
    ("Device_last_kernel_of_container", LEGACY, 60),
]

ROWS = {
    Compat.VOLCANO: [
        ("HostGPUMemoryUsage", HOST, 5 * GIB),
        ("HostCoreUtilization", HOST, 42),
        *LEGACY_VDEVICE_ROWS,
    ],
    Compat.VOLCANO_SCHEDULER: [
        ("volcano_vgpu_device_shared_number", GPU, 5),
        ("volcano_vgpu_device_allocated_memory", GPU, 640),
        ("volcano_vgpu_device_allocated_cores", GPU, 50),
        ("volcano_vgpu_device_memory_limit", GPU, 4914),
        *(
            (f"volcano_vgpu_device_{what}_allocation_for_a_certain_pod", {**GPU, **pod}, value)
            for what, value in (("memory", 128), ("core", 10))
            for pod in [{"podName": f"pod-{number}"} for number in range(5)]
        ),
    ],
    Compat.HAMI_LEGACY: [
        ("HostGPUMemoryUsage", LEGACY_HOST, 5 * GIB),
        ("HostCoreUtilization", LEGACY_HOST, 42),
        *LEGACY_VDEVICE_ROWS,
    ],
    Compat.HAMI: [
        ("hami_host_gpu_memory_used_bytes", HAMI_HOST, 5 * GIB),
        ("hami_host_gpu_utilization_ratio", HAMI_HOST, 42),
        (
            "hami_host_gpu_memory_controller_utilization_ratio",
            {k: v for k, v in HAMI_HOST.items() if k != "node"},
            7,
        ),
        ("hami_vgpu_memory_used_bytes", HAMI, 2 * GIB),
        ("hami_vgpu_memory_limit_bytes", HAMI, 3 * GIB),
        ("hami_container_device_memory_bytes", HAMI, 2 * GIB),
        ("hami_vgpu_memory_context_bytes", HAMI, 100),
        ("hami_vgpu_memory_module_bytes", HAMI, 20),
        ("hami_vgpu_memory_buffer_bytes", HAMI, 3),
        ("hami_container_device_utilization_ratio", HAMI, 137),
        ("hami_container_last_kernel_elapsed_seconds", HAMI, 60),
        (
            "hami_build_info",
            {"version": "1.2.3", "compiler": "python3.11.2", "platform": "linux/x86_64"},
            1,
        ),
    ],
    Compat.GAIA: [
        ("container_gpu_utilization", {**GAIA, "gpu": "gpu0"}, 30),
        ("container_gpu_utilization", {**GAIA, "gpu": "total"}, 30),
        ("container_gpu_memory_total", {**GAIA, "gpu_memory": "gpu0"}, 1000),
        ("container_gpu_memory_total", {**GAIA, "gpu_memory": "total"}, 1000),
        ("container_request_gpu_utilization", {**GAIA, "req_of_gpu": "total"}, 0.5),
        ("container_request_gpu_memory", {**GAIA, "req_of_gpu_memory": "total"}, 7680),
    ],
}
"""Worked by hand from the view below: name, labels, value.

Of Volcano's scheduler it is the published example, an L40S of 49140 MiB in units of 10 MiB with
five pods of 128 units: 640, where the original had 2048, since it added up its running totals.
"""


def holding(pod, namespace="ml", scheme=Scheme.VOLCANO, device=UUID, units=128):
    memory = None if units is None else units * 10 * MIB
    return Holding(
        PodRef(f"{namespace}/{pod}", namespace, pod),
        "main",
        Share(device, memory, 100),
        scheme,
        Phase.ASSIGNED,
        Source.CHECKPOINT,
        (Source.CHECKPOINT,),
    )


FIVE = tuple(holding(f"pod-{number}") for number in range(5))


def five_pods(*others, holdings=FIVE, mig=()):
    gpu = Device(UUID, 0, 49140 * MIB)
    entries = [DeviceEntry(gpu, (*holdings, *others), HoldingSum())]
    if mig:
        entries.append(DeviceEntry(Device(MIG, parent=UUID), mig, HoldingSum()))
    return allocation_totals(Ledger("node-1", tuple(entries)))


def accounted(**changes):
    fields = {"context": 100, "module": 20, "data": 3, "other": 0, "total": 2 * GIB}
    return Accounted(**(fields | {"phantom": 0, "processes": 1, "sm_utilization": 1.37} | changes))


def container(share, source, **reported):
    shares = {share.device: share}
    return ContainerUsage(
        share.pod, share.container, share.scheme, source, shares=shares, **reported
    )


def view(*extra_shares, kept=None, instances=()):
    readings = {
        ("memory_used_bytes",): 4.5 * GIB,
        ("memory_reserved_bytes",): 0.5 * GIB,
        ("memory_total_bytes",): 24.0 * GIB,
        ("utilization_ratio",): 0.42,
        ("memory_utilization_ratio",): 0.07,
    }
    hami = ShareUsage(
        UUID,
        PodRef("u1", "ml", "train"),
        "main",
        Scheme.VOLCANO,
        vdevice=0,
        limit_bytes=3 * GIB,
        used_bytes=9 * GIB,
        accounted=accounted(),
    )
    gaia = ShareUsage(
        UUID,
        PodRef("u2", "ml", "old"),
        "web",
        Scheme.GAIA,
        limit_bytes=7680 * MIB,
        core_request_percent=50,
        used_bytes=1000 * MIB,
        sm_utilization=0.3,
    )
    containers = (
        container(hami, Source.SHIM, last_kernel_time=940),
        container(gaia, Source.LIMIT_FILE),
        *(container(share, Source.SHIM) for share in extra_shares),
    )
    return ExporterView(
        timestamp=1000.0,
        node="node-1",
        interval=15.0,
        usage=NodeUsage(containers),
        collectors=(),
        calls={},
        xids=(),
        build={"version": "1.2.3", "python_version": "3.11.2", "platform": "linux/x86_64"},
        own={},
        gpus=(GpuRow(Gpu(UUID, 0, {"name": "NVIDIA A10"}, readings)), *instances),
        allocations=kept or five_pods(),
        volcano_unit_bytes=10 * MIB,
    )


def served(name, breakdown=False, seen=None):
    text = Renderer(tables.SETS[name](breakdown)).render(seen or view()).body(Format.TEXT).decode()
    families = list(parse(text))
    return families, [(s.name, s.labels, s.value) for f in families for s in f.samples]


@pytest.mark.parametrize("name", list(tables.SETS))
def test_each_set_serves_exactly_the_originals_rows(name):
    families, rows = served(name)
    assert rows == ROWS[name]
    assert {family.type for family in families} == {"gauge"}


def test_the_breakdown_comes_back_as_labels_when_asked_for():
    _, rows = served(Compat.VOLCANO, breakdown=True)
    labels = {**LEGACY, "context": "100", "module": "20", "data": "3", "offset": "0"}
    assert ("Device_memory_desc_of_container", labels, 2 * GIB) in rows


def test_a_container_whose_pod_has_no_name_is_left_out_and_counted():
    nameless = ShareUsage(UUID, PodRef("u3", "", ""), "main", accounted=accounted(), vdevice=0)
    assert served(Compat.VOLCANO, seen=view(nameless))[1] == ROWS[Compat.VOLCANO]
    assert tables.nameless(view(nameless).usage, [Compat.VOLCANO]) == 1
    assert tables.nameless(view(nameless).usage, [Compat.NONE]) == 0


@pytest.mark.parametrize(
    ("name", "family"),
    [
        (Compat.VOLCANO, "vGPU_device_memory_limit_in_bytes"),
        (Compat.HAMI_LEGACY, "vGPU_device_memory_limit_in_bytes"),
        (Compat.HAMI, "hami_vgpu_memory_limit_bytes"),
    ],
)
@pytest.mark.parametrize(("unlimited", "expected"), [(True, [0]), (False, [])])
def test_an_unknown_limit_is_not_exported_as_unlimited(name, family, unlimited, expected):
    refused = ShareUsage(
        UUID,
        PodRef("u3", "ml", "liar"),
        "main",
        vdevice=0,
        unlimited=unlimited,
    )
    refused.accounted = accounted()
    _, rows = served(name, seen=view(refused))
    assert [value for at, labels, value in rows if at == family and "liar" in labels.values()] == (
        expected
    )


def scheduled(kept=None, **fields):
    """What the scheduler's set reports, by name and, of pods, by their name."""
    _, rows = served(Compat.VOLCANO_SCHEDULER, seen=view(kept=kept or five_pods(**fields)))
    prefix = "volcano_vgpu_device_"
    return {(name.removeprefix(prefix), at.get("podName")): value for name, at, value in rows}


POD_MEMORY = "memory_allocation_for_a_certain_pod"


def test_pods_of_one_name_in_two_namespaces_are_one_series_with_their_sum():
    exported = scheduled(holdings=(holding("web", "a"), holding("web", "b")))
    assert exported[POD_MEMORY, "web"] == 256
    assert exported["allocated_memory", None] == 256
    assert exported["shared_number", None] == 2


@pytest.mark.parametrize("finished", [False, True])
def test_a_pod_counts_at_its_peak_in_the_schedulers_sums(finished):
    """Its init container uses what its app container will use; one that has ended may not be the
    last one."""
    init = msgspec.structs.replace(
        holding("web", units=300), container="fetch", kind=ContainerKind.INIT
    )
    ledger = five_pods(holdings=(init, holding("web"))).ledger
    done = {("ml/web", "fetch")} if finished else set()
    exported = scheduled(allocation_totals(ledger, done))
    assert exported["allocated_memory", None] == exported[POD_MEMORY, "web"] == 300
    assert exported["shared_number", None] == 1
    assert exported["allocated_cores", None] == 10


def test_the_scheduler_of_volcano_knows_of_volcanos_pods_alone():
    exported = scheduled(holdings=(holding("web"), holding("old", scheme=Scheme.GAIA)))
    assert exported["allocated_memory", None] == 128
    assert (POD_MEMORY, "old") not in exported


def test_a_gpu_that_nobody_shares_is_exported_as_zero():
    exported = scheduled(holdings=())
    assert exported["shared_number", None] == exported["allocated_memory", None] == 0


def test_a_sum_of_which_a_part_is_unknown_is_absent():
    exported = scheduled(holdings=(holding("web"), holding("mystery", units=None)))
    assert ("allocated_memory", None) not in exported
    assert (POD_MEMORY, "mystery") not in exported
    assert exported[POD_MEMORY, "web"] == 128


def test_what_is_held_of_a_mig_instance_is_held_of_its_gpu():
    exported = scheduled(holdings=(), mig=(holding("web", device=MIG),))
    assert exported["allocated_memory", None] == exported[POD_MEMORY, "web"] == 128


def test_a_mig_instance_in_a_container_has_its_info_metric():
    info = {"mig_profile": "1g.10gb", "gpu_instance_id": "7", "compute_instance_id": "0"}
    share = ShareUsage(
        MIG,
        PodRef("u4", "ml", "mig"),
        "main",
        accounted=accounted(),
        vdevice=0,
    )
    instances = (GpuRow(Gpu(MIG, 0, info, {}, parent=UUID)),)
    _, rows = served(Compat.HAMI, seen=view(share, instances=instances))
    infos = [labels for name, labels, _ in rows if name == "hami_mig_device_info"]
    assert infos == [
        {
            **HAMI,
            "pod": "mig",
            "device_uuid": MIG,
            "mig_uuid": MIG,
            "profile": "1g.10gb",
            "gpu_instance_id": "7",
            "compute_instance_id": "0",
        }
    ]
    _, rows = served(Compat.HAMI_LEGACY, seen=view(share, instances=instances))
    infos = [labels for name, labels, _ in rows if name == "MigInfo"]
    assert infos == [{**LEGACY, "podname": "mig", "deviceuuid": MIG, "instanceid": "7"}]


def test_layouts_without_utilisation_or_kernel_times_leave_those_series_out():
    share = ShareUsage(
        UUID,
        PodRef("u5", "ml", "p0"),
        "main",
        accounted=accounted(sm_utilization=None),
        vdevice=0,
    )
    _, rows = served(Compat.HAMI, seen=view(share))
    names = {name for name, labels, _ in rows if labels.get("pod") == "p0"}
    assert "hami_vgpu_memory_used_bytes" in names
    assert "hami_container_device_utilization_ratio" not in names
    assert "hami_container_last_kernel_elapsed_seconds" not in names
