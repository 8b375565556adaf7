"""The join: one small node at a time, and what must be reported of it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.sampler import COLLECTORS, codecs
from exporter.view import gpu_rows
from vgpu.ledger import Statement
from vgpu.ledger.limit_files import bus_id
from vgpu.model.allocation import Share
from vgpu.model.facts import (
    ContainerName,
    Gpu,
    GpuProcess,
    GpuSample,
    Grant,
    KubeletSample,
    LimitFile,
    LimitSample,
    PodPids,
    ProcessOwner,
    ProcessSample,
    Region,
    RegionDevice,
    RegionFile,
    RegionProcess,
    RegionUse,
    ShimSample,
)
from vgpu.model.names import Phase, PodRef, Scheme, Sharing, Source
from vgpu.model.objects import Pod
from vgpu.model.reasons import Reason
from vgpu.model.units import GIB, MIB
from vgpu.schemes.kubeshare.gemini_config import client_name, split_name
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.observation import Observation, with_names
from vgpu.sources.own_checkpoint import OwnSample
from vgpu.sources.pods import PodSample, pod_sample

A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
MIG = "MIG-cccccccc-0000-0000-0000-000000000000"
POD, POD2 = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


def gpu(uuid=A, index=0, used=4 * GIB, **changes):
    info = {"name": "X", "pci_bus_id": f"00000000:{index + 1:02X}:00.0"}
    readings = {("memory_used_bytes",): float(used), ("memory_total_bytes",): float(24 * GIB)}
    return Gpu(uuid, index, info, readings, **changes)


GPU = gpu()


def driver(*processes, gpus=(GPU,), utilization=None, known=None, lost=()):
    uuids = frozenset(g.uuid for g in gpus)
    return GpuSample(
        gpus=gpus,
        lost=lost,
        processes=tuple(GpuProcess(*p) for p in processes),
        processes_known=uuids if known is None else frozenset(known),
        utilization=utilization or {},
        utilization_known=uuids,
    )


def kernel(owners=None, live=(POD,), sees_host=True, inside=None, complete=True, ended=()):
    """``inside`` is container id -> pid inside it -> host pid, of POD; None was not read."""
    found = {
        pid: ProcessOwner(cid, uid, "containerd") if cid else None for pid, cid, uid in owners or ()
    }
    return ProcessSample(
        found,
        sees_host,
        None if live is None else frozenset(live),
        ended=frozenset(ended),
        pod_pids={} if inside is None else {POD: PodPids(inside, complete)},
    )


def kubelet(grants=None, containers=()):
    return KubeletSample(
        pods={POD: PodRef(POD, "ml", "train"), POD2: PodRef(POD2, "ml", "infer")},
        containers={cid: ContainerName("ml", pod, name, uid) for cid, pod, name, uid in containers},
        grants=grants,
    )


def use(total=0, context=0, module=0, data=0, sm=0):
    return RegionUse(context, module, data, 0, total, sm)


def slot(*used, pid=1, host_pid=100, status=1):
    return RegionProcess(pid, host_pid, status, used or (use(),))


def shim(*slots, pod=POD, container="main", devices=((A, 3 * GIB, 30),), **changes):
    fields = {"recent_kernel": 2, "last_kernel_time": 1000} | changes
    region = Region(
        layout="v1.2",
        devices=tuple(RegionDevice(*d) for d in devices),
        processes=slots,
        proc_num=len(slots),
        utilization_switch=1,
        priority=1,
        major_version=1,
        minor_version=2,
        **fields,
    )
    return ShimSample((RegionFile(f"/root/{pod}_{container}/x.cache", pod, container, region),))


def share(result, container="main", device=A, pod=POD):
    found = [
        s for s in result.shares if (s.pod.uid, s.container, s.device) == (pod, container, device)
    ]
    assert len(found) == 1, result.shares
    return found[0]


def reasons(result):
    return [(COLLECTORS[source], rejection.reason) for source, rejection in result.refused]


def rows(seen, gpushare_unit_bytes=None):
    """The usage by one observation, of which a ledger is made first."""
    builder = LedgerBuilder(codecs(gpushare_unit_bytes, None), "n")
    builder.ledger(seen)
    return builder.usage(seen)


def node(**parts):
    return rows(Observation(**{"kubelet": kubelet(), **parts}))


def test_used_is_the_drivers_and_accounted_is_the_shims():
    result = node(
        gpu=driver((100, A, 2 * GIB), utilization={(100, A): 0.5}),
        shim=shim(slot(use(GIB, 100, 50, 800, 37))),
        process=kernel([(100, "c1", POD)]),
        kubelet=kubelet(containers=[("c1", "train", "main", POD)]),
    )
    row = share(result)
    assert (row.pod.namespace, row.pod.name, row.limit_bytes) == ("ml", "train", 3 * GIB)
    assert (row.used_bytes, row.processes, row.sm_utilization) == (2 * GIB, 1, 0.5)
    accounted = row.accounted
    assert (accounted.total, accounted.context, accounted.module, accounted.data) == (
        GIB,
        100,
        50,
        800,
    )
    assert accounted.other == GIB - 950
    assert accounted.sm_utilization == 0.37
    assert result.containers[0].source is Source.SHIM


def test_the_gap_is_what_the_device_uses_beyond_all_containers():
    result = node(
        gpu=driver((100, A, GIB), (7, A, MIB)),
        process=kernel([(100, "c1", POD), (7, "", "")]),
        kubelet=kubelet(containers=[("c1", "train", "main", POD)]),
    )
    assert result.devices[A].unattributed_bytes == 3 * GIB
    assert result.devices[A].unattributed_processes == 1
    assert result.devices[A].attributed_bytes == GIB


def test_an_idle_container_uses_zero_but_an_unknown_one_uses_nothing_that_we_know():
    seen = {"shim": shim(slot(host_pid=0)), "process": kernel()}
    assert share(node(gpu=driver(), **seen)).used_bytes == 0
    assert share(node(gpu=driver(), **seen)).sm_utilization == 0.0
    for unknown in (share(node(gpu=driver(known=()), **seen)), share(node(**seen))):
        assert (unknown.used_bytes, unknown.sm_utilization) == (None, None)
    assert share(node(gpu=driver(), shim=seen["shim"])).used_bytes is None


def test_nobody_is_known_to_use_zero_beside_a_process_that_the_kernel_never_had():
    """It may be any container's on that device."""
    seen = {"gpu": driver((7, A, GIB), gpus=(GPU, gpu(B, 1)))}
    region = shim(slot(use(), use()), devices=((A, 0, 0), (B, 0, 0)))
    result = node(shim=region, process=kernel(), **seen)
    assert share(result).used_bytes is share(result).sm_utilization is None
    assert share(result, device=B).used_bytes == 0
    ended = node(shim=region, process=kernel(ended=[7]), **seen)
    assert share(ended).used_bytes == 0


def test_a_holder_without_a_name_is_not_known_to_be_idle_beside_a_process_of_its_pod():
    """A limit file of KubeShare names only the pod."""
    limit = LimitFile(
        Scheme.KUBESHARE, f"/config/{A}", namespace="ml", pod="train", device=A, memory_bytes=GIB
    )
    seen = {
        "gpu": driver((100, A, GIB)),
        "limits": LimitSample((limit,)),
        "kubelet": kubelet(containers=[("c1", "train", "main", POD), ("c2", "train", "side", POD)]),
    }
    result = node(process=kernel([(100, "c1", POD)]), **seen)
    assert share(result, "").used_bytes is share(result, "").sm_utilization is None
    assert share(result, "main").used_bytes == GIB
    assert share(node(process=kernel(ended=[100]), **seen), "").used_bytes == 0


def test_the_gap_is_unknown_where_the_use_of_a_container_is():
    result = node(
        gpu=driver((100, A, GIB), (101, A, 2 * GIB)),
        process=kernel([(100, "c1", POD), (101, "c9", POD)]),
        kubelet=kubelet(containers=[("c1", "train", "main", POD)]),
    )
    assert share(result).used_bytes is None
    assert not result.devices


def test_a_display_server_of_the_host_is_in_the_gap_and_one_in_a_pod_is_the_pods():
    drawing = (9, A, MIB, True)
    result = node(
        gpu=driver((100, A, GIB, True), drawing),
        process=kernel([(100, "c1", POD), (9, "", "")]),
        kubelet=kubelet(containers=[("c1", "train", "main", POD)]),
    )
    assert share(result).used_bytes == GIB
    assert result.devices[A].unattributed_bytes == 3 * GIB
    assert result.devices[A].unattributed_processes == 1


def test_one_process_of_unknown_size_makes_the_sum_unknown_and_the_gap_too():
    result = node(
        gpu=driver((100, A, GIB), (101, A, None)),
        process=kernel([(100, "c1", POD), (101, "c1", POD)]),
        kubelet=kubelet(containers=[("c1", "train", "main", POD)]),
    )
    assert share(result).used_bytes is None
    assert share(result).processes == 2
    assert not result.devices


def test_dead_and_killed_slots_are_phantom_and_not_accounted():
    result = node(
        gpu=driver(),
        shim=shim(
            slot(use(5 * MIB), host_pid=100),
            slot(use(7 * MIB), host_pid=100, status=0),
            slot(use(11 * MIB), host_pid=999),
        ),
        process=kernel([(100, "c1", POD)], inside={}),
    )
    accounted = share(result).accounted
    assert (accounted.total, accounted.phantom, accounted.processes) == (5 * MIB, 18 * MIB, 1)


def accounts(*slots, container="main", containers=(), **of_kernel):
    """Total, phantom and processes of POD's region, by the kernel's processes."""
    result = node(
        gpu=driver(),
        shim=shim(*slots, container=container),
        process=kernel(**of_kernel),
        kubelet=kubelet(containers=containers),
    )
    accounted = share(result, container).accounted
    return accounted.total, accounted.phantom, accounted.processes


def test_a_host_pid_that_now_is_another_pods_counts_as_gone():
    strangers = [(100, "c9", POD2)]
    assert accounts(slot(use(MIB)), owners=strangers, live=(POD, POD2), inside={}) == (0, MIB, 0)


@pytest.mark.parametrize("host_pid", [2623, 0], ids=["the container's pid", "not found"])
def test_a_slot_lives_by_its_pid_inside_the_container(host_pid):
    """With NVIDIA's open kernel modules NVML names the container's pid inside of it."""
    live = slot(use(3 * GIB), pid=2623, host_pid=host_pid)
    killed = slot(use(MIB), pid=2700, host_pid=host_pid)
    strangers = [(2623, "", "")]
    inside = {"c1": {1: 812_300, 2623: 812_345}}
    assert accounts(live, killed, owners=strangers, inside=inside) == (3 * GIB, MIB, 1)


def test_a_pid_inside_another_container_of_the_pod_is_no_evidence():
    names = [("c1", "train", "main", POD), ("c2", "train", "side", POD)]
    inside = {"c1": {}, "c2": {7: 100_007}}
    result = accounts(slot(use(MIB), pid=7, host_pid=0), containers=names, inside=inside)
    assert result == (0, MIB, 0)
    unnamed = accounts(slot(use(MIB), pid=7, host_pid=0), containers=names[:1], inside=inside)
    assert unnamed == (MIB, 0, 1)


def test_what_slots_account_is_unknown_while_one_of_them_may_be_dead():
    known = slot(use(MIB), pid=1, host_pid=100)
    unclear = slot(use(GIB), pid=7, host_pid=0)
    owners = [(100, "c1", POD)]
    for seen in ({"inside": None}, {"inside": {"c1": {1: 100}}, "complete": False}):
        assert accounts(known, unclear, owners=owners, **seen) == (None, None, None)
    idle = slot(use(0), pid=7, host_pid=0)
    assert accounts(known, idle, owners=owners) == (MIB, 0, 1)


def test_one_wrapped_counter_is_absent_and_the_others_are_added_up():
    wrapped = slot(use(GIB, 100, 50, None))
    result = node(
        gpu=driver(),
        shim=shim(wrapped, slot(use(GIB, 100, 50, 800), pid=2, host_pid=101)),
        process=kernel([(100, "c1", POD), (101, "c1", POD)]),
    )
    accounted = share(result).accounted
    assert (accounted.total, accounted.context, accounted.module) == (2 * GIB, 200, 100)
    assert (accounted.data, accounted.other) == (None, None)
    assert reasons(result) == [("shim", Reason.IMPLAUSIBLE)]
    assert "data of pid 1" in result.refused[0][1].detail


def test_a_region_with_an_impossible_limit_keeps_everything_else():
    result = node(
        gpu=driver(),
        shim=shim(slot(use(MIB)), devices=((A, None, None),)),
        process=kernel([(100, "c1", POD)]),
    )
    row = share(result)
    assert (row.limit_bytes, row.unlimited, row.core_limit_percent) == (None, False, None)
    assert row.accounted.total == MIB
    assert reasons(result) == [("shim", Reason.IMPLAUSIBLE)]


def test_a_region_names_the_container_of_a_process_by_the_pid_inside():
    result = node(
        gpu=driver((812_345, A, 2 * GIB)),
        shim=shim(slot(use(GIB), pid=2623, host_pid=2623)),
        process=kernel([(812_345, "c1", POD)], inside={"c1": {2623: 812_345}}),
    )
    assert share(result).used_bytes == 2 * GIB


def test_without_the_hosts_pids_nothing_is_called_gone_and_nothing_is_attributed():
    result = node(
        gpu=driver((100, A, GIB)), shim=shim(slot(use(MIB))), process=kernel(sees_host=False)
    )
    assert share(result).accounted.total is None
    assert share(result).accounted.phantom is None
    assert share(result).used_bytes is None
    assert not result.devices


def test_a_container_without_limits_is_reported_as_unlimited():
    row = share(node(shim=shim(devices=((A, 0, 0),)), process=kernel()))
    assert (row.unlimited, row.limit_bytes, row.core_limit_percent) == (True, None, None)


def test_a_region_of_a_pod_without_a_cgroup_is_released_or_orphaned_and_not_exported():
    result = node(gpu=driver(), shim=shim(slot(use(MIB))), process=kernel(live=(POD2,)))
    assert result.shares == ()
    assert [o.pod.name for o in result.released] == ["train"]
    assert [c.phase for c in result.containers] == [Phase.RELEASED]
    stranger = "33333333-3333-3333-3333-333333333333"
    result = node(gpu=driver(), shim=shim(slot(use(MIB)), pod=stranger), process=kernel())
    assert result.shares == ()
    assert [o.pod_uid for o in result.orphans] == [stranger]


def test_names_of_the_api_server_precede_those_of_the_kubelets_folders():
    left = kubelet(grants=(), containers=[("c1", "train", "main", ""), ("c2", "infer", "main", "")])
    from_api = PodSample(
        pods=(),
        complete=False,
        names={POD: PodRef(POD, "ml", "renamed"), "u3": PodRef("u3", "ml", "static")},
        containers={"c1": ContainerName("ml", "train", "main", POD)},
    )
    both = with_names(left, from_api)
    assert both == msgspec.structs.replace(
        left, pods=left.pods | from_api.names, containers=left.containers | from_api.containers
    )
    assert both.pods[POD].name == "renamed"
    assert both.pods[POD2].name == "infer"
    assert both.containers["c1"].pod_uid == POD
    assert with_names(left, None) is left
    names = KubeletSample(
        from_api.names, from_api.containers, named=False
    )  # a dump may lack the newest
    assert with_names(None, from_api) == names
    assert with_names(None, None) is None


def test_without_cgroups_the_pods_phase_decides_and_without_both_the_region_stands():
    ended = Pod(PodRef(POD, "ml", "train"), node="n", phase="Succeeded")
    assert node(shim=shim(slot()), pods=pod_sample([ended], complete=False)).shares == ()
    assert len(node(shim=shim(slot()), pods=pod_sample([], complete=False)).shares) == 1
    assert len(node(shim=shim(slot())).shares) == 1


def test_a_device_that_the_node_does_not_have_is_refused():
    result = node(gpu=driver(), shim=shim(slot(), devices=((B, 1, 1),)), process=kernel())
    assert reasons(result) == [("shim", Reason.UNKNOWN_DEVICE)]
    assert result.shares == ()


def test_a_device_that_the_kubelet_did_not_allocate_to_the_container_is_rejected():
    grants = (Grant(POD, "main", "volcano.sh/vgpu-number", ("x",), {"NVIDIA_VISIBLE_DEVICES": A}),)
    both = (gpu(A, 0), gpu(B, 1))
    result = node(
        gpu=driver(gpus=both),
        shim=shim(slot(use(), use()), devices=((A, 1, 1), (B, 1, 1))),
        process=kernel(),
        kubelet=kubelet(grants=grants),
    )
    assert reasons(result) == [("shim", Reason.DEVICE_NOT_ALLOCATED)]
    assert result.refused[0][1].detail == B
    assert [s.device for s in result.shares] == [A]


def test_a_second_region_of_one_container_is_refused():
    one, two = shim(slot(use(MIB))), shim(slot(use(GIB)))
    other = RegionFile("/other/x.cache", POD, "main", two.files[0].region)
    owners = kernel([(100, "c1", POD)])
    result = node(gpu=driver(), shim=ShimSample((*one.files, other)), process=owners)
    assert share(result).accounted.total == MIB
    assert reasons(result) == [("shim", Reason.AMBIGUOUS)]
    assert result.refused[0][1].object_name == "/other/x.cache"


def test_a_lost_device_keeps_its_containers_and_is_reported_as_not_answering():
    owners = kernel([(100, "c1", POD)])
    seen = driver(gpus=(), lost=(A,))
    result = node(gpu=seen, shim=shim(slot(use(MIB))), process=owners)
    assert share(result).accounted.total == MIB
    assert share(result).used_bytes is None
    assert [(row.gpu.uuid, row.answers) for row in gpu_rows(seen, result)] == [(A, False)]


def test_an_allocated_container_without_a_region_is_known_from_the_checkpoint():
    env = {"NVIDIA_VISIBLE_DEVICES": A, "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m"}
    grants = (Grant(POD, "main", "volcano.sh/vgpu-number", ("x",), env),)
    result = node(gpu=driver(), process=kernel(), kubelet=kubelet(grants=grants))
    row = share(result)
    assert (row.limit_bytes, row.used_bytes, row.accounted) == (3000 * MIB, 0, None)
    assert result.containers[0].source is Source.CHECKPOINT
    assert result.containers[0].scheme is Scheme.VOLCANO


def test_a_container_whose_plugin_lifted_the_limit_is_unlimited_before_it_has_a_region():
    env = {"NVIDIA_VISIBLE_DEVICES": A, "CUDA_DEVICE_MEMORY_LIMIT_0": "0m"}
    grants = (Grant(POD, "main", "nvidia.com/gpu", (f"{A}-0",), env),)
    result = node(gpu=driver(), process=kernel(), kubelet=kubelet(grants=grants))
    assert (share(result).unlimited, share(result).limit_bytes) == (True, None)


def test_a_whole_gpu_of_nvidias_own_plugin_is_of_its_scheme():
    grants = (Grant(POD, "main", "nvidia.com/gpu", (A,), {"NVIDIA_VISIBLE_DEVICES": A}),)
    result = node(gpu=driver(), process=kernel(), kubelet=kubelet(grants=grants))
    assert (share(result).scheme, share(result).sharing) == ("nvidia", Sharing.EXCLUSIVE)


def test_a_gpushare_limit_is_known_only_when_the_operator_configured_the_unit():
    env = {
        "NVIDIA_VISIBLE_DEVICES": "0",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_POD": "3",
    }
    grants = (Grant(POD, "main", "aliyun.com/gpu-mem", ("x", "y", "z"), env),)
    seen = Observation(gpu=driver(), process=kernel(), kubelet=kubelet(grants=grants))
    assert share(rows(seen)).limit_bytes is None
    row = share(rows(seen, gpushare_unit_bytes=GIB))
    assert (row.limit_bytes, row.scheme) == (3 * GIB, Scheme.GPUSHARE)


def test_a_dead_pods_entry_in_the_checkpoint_is_no_allocation():
    grants = (Grant(POD, "main", "volcano.sh/vgpu-number", ("x",), {"NVIDIA_VISIBLE_DEVICES": A}),)
    for live in ((), None):
        result = node(gpu=driver(), process=kernel(live=live), kubelet=kubelet(grants=grants))
        assert result.shares == ()


def test_gaias_limit_file_finds_its_gpu_by_bus_id():
    limits = LimitSample(
        (
            LimitFile(
                Scheme.GAIA,
                "/vm/x/vcuda.config",
                pod_uid=POD,
                container="main",
                pci_bus_id="0000:01:00.0",
                memory_bytes=7680 * MIB,
                cores_percent=50,
                cores_request_percent=50,
            ),
        )
    )
    row = share(node(gpu=driver(), process=kernel(), limits=limits))
    assert (row.scheme, row.limit_bytes, row.core_limit_percent) == (Scheme.GAIA, 7680 * MIB, 50)


@pytest.mark.parametrize("name", ["infer", "a-model-with-a-name-that-is-too-long-for-gemini-x2x7k"])
def test_kubeshares_line_finds_its_pod_by_name_or_key(name):
    namespace, pod = split_name(client_name("ml", name))
    limits = LimitSample(
        (
            LimitFile(
                Scheme.KUBESHARE,
                "/config/A",
                namespace=namespace,
                pod=pod,
                device=A,
                memory_bytes=GIB,
                cores_percent=100,
            ),
        )
    )
    result = node(
        gpu=driver(),
        process=kernel(live=(POD2,)),
        limits=limits,
        kubelet=msgspec.structs.replace(
            kubelet(containers=[("c2", name, "web", POD2)]), pods={POD2: PodRef(POD2, "ml", name)}
        ),
    )
    assert share(result, "web", A, POD2).pod.name == name
    assert share(result, "web", A, POD2).limit_bytes == GIB


def test_two_pods_of_one_name_stay_two_rows():
    pods = {POD: PodRef(POD, "ml", "db-0"), POD2: PodRef(POD2, "ml", "db-0")}
    result = rows(
        Observation(
            gpu=driver((1, A, MIB), (2, A, GIB)),
            process=kernel([(1, "c1", POD), (2, "c2", POD2)], (POD, POD2)),
            kubelet=KubeletSample(pods=pods, containers={}),
        )
    )
    assert sorted((s.pod.uid, s.used_bytes) for s in result.shares) == [(POD, MIB), (POD2, GIB)]


def test_a_process_whose_container_has_no_name_is_attributed_to_its_pod_only():
    seen = {"gpu": driver((100, A, GIB)), "process": kernel([(100, "c1", POD)])}
    assert share(node(**seen), container="").used_bytes == GIB


def test_a_region_names_its_process_only_where_the_kernel_agrees_on_the_pod():
    seen = {"gpu": driver((100, A, GIB)), "shim": shim(slot(use(MIB)))}
    agreed = node(**seen, process=kernel([(100, "c1", POD)]))
    assert share(agreed, "main").used_bytes == GIB
    forged = node(**seen, process=kernel([(100, "c1", POD2)], (POD, POD2)))
    assert share(forged, "main").used_bytes == 0
    assert share(forged, "", A, POD2).used_bytes == GIB


def test_a_container_outside_kubernetes_is_known_by_its_id():
    result = node(gpu=driver((9, A, GIB)), process=kernel([(9, "d" * 64, "")]))
    assert share(result, "d" * 12, A, "").used_bytes == GIB


def test_a_mig_instance_is_a_device_of_its_own_and_its_gpu_has_no_attribution_gap():
    whole_gpu = gpu(used=6 * GIB)
    instance = gpu(MIG, 0, used=2 * GIB, parent=A)
    result = node(
        gpu=driver((100, MIG, GIB), gpus=(whole_gpu, instance)),
        process=kernel([(100, "c1", POD)]),
    )
    assert result.devices[MIG].unattributed_bytes == GIB
    assert A not in result.devices


@given(st.permutations(range(6)))
def test_the_order_of_the_drivers_processes_changes_nothing(order):
    processes = [(100 + i, A if i % 2 else B, (i + 1) * MIB) for i in range(6)]
    owners = [(100 + i, f"c{i // 2}", POD) for i in range(6)]
    names = [(f"c{i}", "train", f"n{i}", POD) for i in range(3)]

    def used_bytes(ordered):
        result = node(
            gpu=driver(*ordered, gpus=(gpu(A, 0), gpu(B, 1))),
            process=kernel(owners),
            kubelet=kubelet(containers=names),
        )
        return {(s.container, s.device): s.used_bytes for s in result.shares}

    assert used_bytes([processes[i] for i in order]) == used_bytes(processes)


def test_bus_ids_of_the_driver_and_of_gpu_manager_meet():
    assert bus_id("00000000:3B:00.0") == bus_id("0000:3b:00.0") == "0000:3b:00.0"
    assert bus_id("nonsense") == ""


def test_a_process_of_an_unnamed_container_makes_its_pods_zeros_unknown():
    grants = (Grant(POD, "main", "volcano.sh/vgpu-number", ("x",), {"NVIDIA_VISIBLE_DEVICES": A}),)
    result = node(
        gpu=driver((100, A, GIB)),
        process=kernel([(100, "c1", POD)]),
        kubelet=kubelet(grants=grants),
    )
    assert share(result, "").used_bytes == GIB
    assert share(result, "main").used_bytes is None
    assert share(result, "main").sm_utilization is None
    assert result.devices[A].unattributed_bytes == 3 * GIB


def test_a_pid_that_two_regions_claim_is_attributed_to_neither_and_rejected():
    region = shim(slot(use(MIB))).files[0]
    side = RegionFile("/side/x.cache", POD, "side", region.region)
    result = node(
        gpu=driver((100, A, GIB)),
        shim=ShimSample((region, side)),
        process=kernel([(100, "c1", POD)]),
    )
    assert share(result, "").used_bytes == GIB
    assert ("shim", Reason.FORGED) in reasons(result)


def test_a_process_that_ended_meanwhile_leaves_the_gap_unknown_for_once():
    result = node(gpu=driver((100, A, GIB)), process=kernel())
    assert not result.devices


def test_an_idle_region_reports_zero_utilisation_where_its_layout_has_the_field():
    assert share(node(shim=shim(), process=kernel())).accounted.sm_utilization == 0.0
    old = shim()
    region = msgspec.structs.replace(old.files[0].region, layout="p0")
    file = msgspec.structs.replace(old.files[0], region=region)
    accounted = share(node(shim=ShimSample((file,)), process=kernel())).accounted
    assert accounted.sm_utilization is None


def test_a_driver_that_missed_a_gpu_cannot_call_a_device_unknown():
    partial = msgspec.structs.replace(driver(), complete=False)
    result = node(gpu=partial, shim=shim(slot(), devices=((B, 1, 1),)), process=kernel())
    assert share(result, device=B).limit_bytes == 1
    assert result.refused == ()


def limit_file(**fields):
    fields_of_file = {"scheme": Scheme.GAIA, "path": "/f", "memory_bytes": GIB, "device": A}
    return LimitSample((LimitFile(**(fields_of_file | fields)),))


def test_without_the_driver_a_limit_by_bus_id_is_not_called_unknown():
    limits = limit_file(device="", pci_bus_id="0000:01:00.0", pod_uid=POD, container="main")
    result = node(process=kernel(), limits=limits)
    assert (result.shares, result.refused) == ((), ())


def test_an_empty_bus_id_matches_no_gpu():
    nameless = Gpu(A, 0, {}, {})
    limits = limit_file(device="", pci_bus_id="", pod_uid=POD, container="main")
    result = node(gpu=driver(gpus=(nameless,)), process=kernel(), limits=limits)
    assert result.shares == ()


def test_a_limit_files_container_is_named_by_its_id_and_a_made_up_one_is_refused():
    names = kubelet(containers=[("c1", "train", "main", POD)])
    by_id = limit_file(pod_uid=POD, container="other", container_id="c1")
    assert share(node(process=kernel(), limits=by_id, kubelet=names), "main").limit_bytes == GIB
    made_up = limit_file(pod_uid=POD, container="other")
    result = node(process=kernel(), limits=made_up, kubelet=names)
    assert (result.shares, reasons(result)) == ((), [("limits", Reason.FORGED)])


@pytest.mark.parametrize("order", [(POD, POD2), (POD2, POD)])
def test_kubeshares_line_goes_to_the_pod_of_that_name_that_lives(order):
    pods = {uid: PodRef(uid, "ml", "db-0") for uid in order}
    limits = limit_file(scheme=Scheme.KUBESHARE, namespace="ml", pod="db-0")
    seen = {"limits": limits, "kubelet": KubeletSample(pods=pods, containers={})}
    result = rows(Observation(**seen, process=kernel(live=(POD2,))))
    assert [s.pod.uid for s in result.shares] == [POD2]
    both = rows(Observation(**seen, process=kernel(live=order)))
    assert (both.shares, reasons(both)) == ((), [("limits", Reason.AMBIGUOUS)])


def test_orphans_are_unknown_where_the_names_of_pods_could_not_be_read():
    """Else the region of every pod that has ended would be called an orphan."""
    blind = KubeletSample({}, {}, named=False)
    result = node(kubelet=blind, shim=shim(), process=kernel(live=(POD2,)))
    assert (result.orphans, result.released) == (None, None)
    ended = pod_sample([Pod(PodRef(POD, "ml", "train"), phase="Failed")], complete=True)
    with_api = node(
        kubelet=with_names(blind, ended), pods=ended, shim=shim(), process=kernel(live=())
    )
    assert (with_api.orphans, [one.pod.name for one in with_api.released]) == ((), ["train"])


def test_orphans_are_unknown_where_no_source_lists_the_living_pods():
    assert node(shim=shim()).orphans is None
    assert node(process=kernel()).orphans is None
    assert node(shim=shim(), process=kernel()).orphans == ()


# ---------------------------------------------------------------- our own plugin's checkpoint


def own(*shares, pod=POD, container="main", scheme=Scheme.GPUSHARE):
    ref = PodRef(pod, "ml", "train")
    return OwnSample(
        (Statement(Source.OWN_CHECKPOINT, ref, container, shares, scheme, where="/state/x"),)
    )


VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_with_cdi_gpu_and_limit_come_from_our_own_checkpoint():
    grants = (Grant(POD, "main", "aliyun.com/gpu-mem", ("x",), VOID),)
    result = node(
        gpu=driver((100, A, GIB)),
        process=kernel([(100, "c1", POD)]),
        kubelet=kubelet(grants, containers=[("c1", "train", "main", POD)]),
        own=own(Share(A, 2 * GIB)),
    )
    row = share(result)
    assert (row.limit_bytes, row.used_bytes, row.scheme) == (2 * GIB, GIB, Scheme.GPUSHARE)
    assert result.containers[0].source is Source.OWN_CHECKPOINT


def test_a_region_that_names_another_gpu_than_we_have_bound_is_refused():
    forged = shim(devices=((B, 3 * GIB, 30),))
    gpus = driver(gpus=(GPU, gpu(B, 1)))
    grants = (Grant(POD, "main", "volcano.sh/vgpu-number", ("x",), VOID),)
    bound = own(Share(A, GIB), scheme=Scheme.VOLCANO)
    result = node(
        gpu=gpus, process=kernel(), shim=forged, kubelet=kubelet(grants=grants), own=bound
    )
    assert reasons(result) == [("shim", Reason.DEVICE_NOT_ALLOCATED)]
    assert [(row.device, row.limit_bytes) for row in result.shares] == [(A, GIB)]


def test_what_the_shim_enforces_is_the_limit_not_what_we_have_bound():
    bound = own(Share(A, GIB), scheme=Scheme.VOLCANO)
    result = node(gpu=driver(), process=kernel(), shim=shim(), own=bound)
    assert share(result).limit_bytes == 3 * GIB


@pytest.mark.parametrize("live", [(), None])
def test_what_we_have_bound_proves_no_life(live):
    result = node(gpu=driver(), process=kernel(live=live), own=own(Share(A, GIB)))
    assert (result.shares, result.containers) == ((), ())


def test_a_bound_gpu_that_the_node_does_not_have_is_rejected_as_unknown():
    result = node(gpu=driver(), process=kernel(), own=own(Share(B, GIB)))
    assert reasons(result) == [("plugin", Reason.UNKNOWN_DEVICE)]
    assert result.shares == ()
