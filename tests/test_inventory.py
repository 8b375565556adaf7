"""Who holds what, who waits and why, and what still fits, from the API server's objects."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import sample_cluster as sample
from tests.support.registers import hami_register, volcano_register
from tests.support.sample_cluster import GIB, HOUR, NOW
from vgpu.inventory import (
    Objects,
    Units,
    WaitingReason,
    available_bytes,
    inventory,
    of_node,
    only_node,
    only_pods,
    only_scheme,
)
from vgpu.kube.dump import decode_dump
from vgpu.ledger import ConflictKind
from vgpu.model.names import Phase, PodRef, Scheme
from vgpu.model.objects import MalformedObject
from vgpu.model.units import MIB


def objects(*items):
    dump = decode_dump(json.dumps(sample.dump(items)).encode())
    return Objects(dump.nodes, dump.pods, dump.share_pods, dump.unhealthy)


def found(*items, **units):
    return inventory(objects(*items), Units(**units))


def holders(inventory_):
    return {
        (view.node.name, entry.device.name, holding.pod.name)
        for view in inventory_.nodes
        for entry in view.ledger.devices
        for holding in entry.holdings
    }


def only_pending(inventory_):
    (one,) = inventory_.pending
    return one


# ---------------------------------------------------------------- who holds


def test_every_scheme_of_a_cluster_is_read():
    inventory_view = found(*sample.items())
    assert {view.node.name: view.schemes for view in inventory_view.nodes} == {
        "a100-1": (Scheme.VOLCANO,),
        "a100-2": (Scheme.VOLCANO,),
        "a100-3": (Scheme.VOLCANO,),
        "gaia-1": (Scheme.GAIA,),
        "infer-1": (Scheme.GPUSHARE,),
        "kube-1": (Scheme.KUBESHARE,),
    }
    assert ("a100-1", sample.uuid(2), "infer-llama-0") in holders(inventory_view)
    assert ("infer-1", "0", "binpack-1") in holders(inventory_view)
    assert ("gaia-1", "1", "vcuda-whole") in holders(inventory_view)
    assert ("kube-1", sample.uuid(31), "jupyter-0") in holders(inventory_view)


def test_a_finished_pod_holds_nothing_and_does_not_wait():
    inventory_view = found(
        sample.volcano_node("n", 1),
        sample.volcano_pod("done", "n", 1, 1000, state=sample.FINISHED),
    )
    assert not holders(inventory_view)
    assert not inventory_view.pending


def test_hamis_pods_are_read_and_those_of_nvidias_own_plugin_are_not():
    gpu = sample.uuid(1)
    register = hami_register(gpu, mib=46068, model="NVIDIA-L40S")
    inventory_view = found(
        sample.node("hami", {"nvidia.com/gpu": 10}, register),
        sample.node("nvidia", {"nvidia.com/gpu": 8}),
        sample.pod(
            "shares",
            "hami",
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000},
            {
                "hami.io/vgpu-devices-allocated": f"{gpu},NVIDIA,1000,0:;",
                "hami.io/vgpu-node": "hami",
            },
        ),
        sample.pod("has-a-whole-card", "nvidia", {"nvidia.com/gpu": 1}),
        sample.pod("forgotten-by-hami", "hami", {"nvidia.com/gpu": 1}),
    )
    assert holders(inventory_view) == {("hami", gpu, "shares")}
    assert [one.pod.name for one in inventory_view.pending] == ["forgotten-by-hami"]
    (whole,) = [devices for devices in inventory_view.nvidia if devices.node == "nvidia"]
    assert [(each.pod.name, each.number) for each in whole.holders] == [("has-a-whole-card", 1)]


def test_nodes_without_shared_gpus_are_left_out():
    assert not found(sample.node("n"), sample.node("m", {"nvidia.com/gpu": 8})).nodes


def test_a_node_that_only_pods_name_is_shown_as_unknown():
    inventory_view = found(sample.gaia_pod("lost", "gone", 50, 30, 0))
    (view,) = inventory_view.nodes
    assert (view.node.name, view.known) == ("gone", False)
    assert [holding.pod.name for holding in view.ledger.holdings] == ["lost"]


def test_a_virtual_gpu_is_the_gpu_that_another_share_pod_on_it_names():
    served = sample.share_pod("first", "n", "0.4", GIB, gpuid="vgpu1", gpu=31)
    waits = sample.share_pod("second", "n", "0.2", GIB, gpuid="vgpu1")
    inventory_view = found(sample.kubeshare_node("n", 31), served, sample.real_pod(served), waits)
    assert holders(inventory_view) == {
        ("n", sample.uuid(31), "first"),
        ("n", sample.uuid(31), "second"),
    }


def test_a_virtual_gpu_that_nobody_knows_yet_is_no_missing_gpu():
    inventory_view = found(
        sample.kubeshare_node("n", 31), sample.share_pod("new", "n", "0.2", GIB, gpuid="vgpu1")
    )
    (view,) = inventory_view.nodes
    assert [holding.share.device for holding in view.ledger.unplaced] == [""]
    assert not view.ledger.conflicts
    assert only_pending(inventory_view).reason is WaitingReason.NOT_ASSIGNED


# ---------------------------------------------------------------- who waits

NO_ROOM = "0/1 nodes are available: 1 Insufficient volcano.sh/vgpu-memory."
PROMISED = sample.gpushare_pod("p", "n", 4, 1, assigned=False, phase="Pending", age=60)
VOLCANO = sample.volcano_node("n", 1, healthy=(True, False))
GPUSHARE = sample.gpushare_node("n")


@pytest.mark.parametrize(
    ("items", "reason", "detail", "since"),
    [
        (
            [VOLCANO, sample.pod("p", limits=sample.volcano_limits(1), unschedulable=NO_ROOM)],
            WaitingReason.UNSCHEDULABLE,
            NO_ROOM,
            NOW - HOUR,
        ),
        (
            [VOLCANO, sample.pod("p", limits=sample.volcano_limits(1))],
            WaitingReason.NOT_SCHEDULED,
            "",
            NOW - HOUR,
        ),
        ([GPUSHARE, sample.gpushare_pod("p", "n", 4, phase="Pending", age=9)],
            WaitingReason.NO_ANNOTATION, "", NOW - 9),
        ([GPUSHARE, sample.gpushare_pod("p", "n", 4)], WaitingReason.RUNNING_WITHOUT, "", None),
        (
            [GPUSHARE, sample.gpushare_pod("p", "n", 4, "x", phase="Pending")],
            WaitingReason.UNREADABLE,
            "ALIYUN_COM_GPU_MEM_IDX: not a GPU's index: 'x'",
            None,
        ),
        (
            [GPUSHARE, PROMISED],
            WaitingReason.NOT_ASSIGNED,
            "",
            NOW - 60,
        ),
        (
            [VOLCANO, sample.volcano_pod("p", "n", 2, 1000, bind="allocating", age=60)],
            WaitingReason.DEVICE_UNHEALTHY,
            "",
            NOW - 60,
        ),
        (
            [GPUSHARE, sample.unhealthy("n", "0,1"), PROMISED],
            WaitingReason.DEVICE_UNHEALTHY,
            "",
            NOW - 60,
        ),
        (
            [GPUSHARE, sample.gpushare_pod("p", "n", 4, 7, phase="Pending", age=60)],
            WaitingReason.DEVICE_MISSING,
            "",
            NOW - 60,
        ),
        (
            [VOLCANO, sample.volcano_pod("p", "n", 1, 1000, bind="failed", age=60)],
            WaitingReason.FAILED,
            "",
            NOW - 60,
        ),
    ],
)  # fmt: skip
def test_why_a_pod_waits(items, reason, detail, since):
    one = only_pending(found(*items))
    assert (one.pod.name, one.reason, one.detail) == ("p", reason, detail)
    assert since is None or one.since == since


def test_a_gpu_of_a_node_that_cannot_be_read_is_not_called_missing():
    node = sample.volcano_node("n", 1)
    node["metadata"]["annotations"]["volcano.sh/node-vgpu-register"] = "broken:"
    promised = sample.volcano_pod("p", "n", 1, 1000, bind="allocating", age=60)
    assert only_pending(found(node, promised)).reason is WaitingReason.NOT_ASSIGNED


def test_a_request_that_its_scheme_does_not_allow_waits_as_unreadable():
    limits = {"tencent.com/vcuda-core": 150}
    one = only_pending(found(sample.gaia_node("n"), sample.pod("p", limits=limits)))
    assert (one.reason, one.scheme, one.request) == (WaitingReason.UNREADABLE, Scheme.GAIA, None)
    assert "must be multiple of 100" in one.detail


def test_a_promise_to_a_pod_that_is_not_bound_waits_there():
    pod = sample.volcano_pod("p", "n", 1, 1000, bind="allocating", unschedulable="bind failed")
    del pod["spec"]["nodeName"]
    pod["status"]["containerStatuses"] = []
    one = only_pending(found(VOLCANO, pod))
    assert (one.reason, one.node, one.detail) == (WaitingReason.NOT_BOUND, "n", "bind failed")


def test_a_container_that_runs_does_not_wait_though_its_annotations_say_assumed():
    inventory_view = found(GPUSHARE, sample.gpushare_pod("p", "n", 4, 1, assigned=False))
    assert not inventory_view.pending
    (holding,) = inventory_view.nodes[0].ledger.holdings
    assert holding.phase is Phase.ASSUMED


def test_the_only_gpu_of_a_gpushare_node_needs_no_annotation():
    inventory_view = found(sample.gpushare_node("n", gpus=1), sample.gpushare_pod("p", "n", 4))
    assert holders(inventory_view) == {("n", "0", "p")}
    assert not inventory_view.pending


# ---------------------------------------------------------------- what fits


def capacity(*items):
    (one,) = found(*items).free_capacities
    return one


def test_fragmented_free_memory_is_not_usable():
    """Two GPUs with 6 GiB each: 12 GiB are free, and none are for 8 GiB."""
    pods = [sample.volcano_pod(f"p{gpu}", "n", gpu, 46068 - 6144) for gpu in (1, 2)]
    waits = sample.pod("waits", limits=sample.volcano_limits(8192), unschedulable=NO_ROOM)
    free = capacity(sample.volcano_node("n", 1), *pods, waits)
    assert free.free_bytes == 12 * GIB
    assert (free.fits, free.usable_bytes) == (0, 0)
    assert free.probe.pending.name == "waits"


def test_without_a_waiting_pod_the_most_common_share_is_tried():
    pods = [sample.volcano_pod(f"p{n}", "n", 1, 8192) for n in range(2)]
    free = capacity(sample.volcano_node("n", 1), *pods, sample.volcano_pod("big", "n", 2, 20000))
    assert (free.probe.memory_bytes, free.probe.pending) == (8 * GIB, None)
    assert free.fits == (46068 - 2 * 8192) // 8192 + (46068 - 20000) // 8192
    assert free.usable_bytes == free.fits * 8 * GIB


def test_the_largest_of_the_waiting_requests_is_tried():
    waiting = [
        sample.pod(f"p{memory}", limits=sample.volcano_limits(memory), unschedulable=NO_ROOM)
        for memory in (1000, 30000, 2000)
    ]
    assert capacity(sample.volcano_node("n", 1), *waiting).probe.pending.name == "p30000"


def test_cores_and_shares_that_have_run_out_leave_no_room():
    all_cores = sample.volcano_pod("p", "n", 1, 1024, 100)
    waits = sample.pod("w", limits=sample.volcano_limits(1024, 10), unschedulable=NO_ROOM)
    assert capacity(sample.volcano_node("n", 1, healthy=(True,)), all_cores, waits).fits == 0
    shares = [sample.volcano_pod(f"p{n}", "n", 1, 1024) for n in range(10)]
    assert capacity(sample.volcano_node("n", 1, healthy=(True,)), *shares).fits == 0


@pytest.mark.parametrize("state", [{"ready": False}, {"cordoned": True}, {"healthy": (False,)}])
def test_gpus_to_which_nothing_may_go_have_no_room(state):
    waits = sample.pod("w", limits=sample.volcano_limits(1024), unschedulable=NO_ROOM)
    free = capacity(sample.volcano_node("n", 1, **{"healthy": (True,), **state}), waits)
    assert (free.fits, free.usable_bytes) == (0, 0)
    assert free.free_bytes == 46068 * MIB


@pytest.mark.parametrize(("cores", "pods"), [(100, 2), (200, 1)])
def test_whole_gpus_fit_where_nothing_is_held(cores, pods):
    """A pod with two GPUs needs both at once."""
    waits = sample.pod("w", limits={"tencent.com/vcuda-core": cores}, unschedulable=NO_ROOM)
    held = sample.gaia_pod("p", "n", 10, 1, 0)
    free = capacity(sample.gaia_node("n", gpus=3), held, waits)
    assert (free.fits, free.usable_bytes) == (pods, 30 * GIB)


def test_nothing_held_and_nothing_waiting_gives_no_probe():
    assert capacity(sample.volcano_node("n", 1)).probe is None


# ---------------------------------------------------------------- units, and the notes about them


@pytest.mark.parametrize(
    ("units", "bytes_of_a_gpu"),
    [(15, 15 * GIB), (141, 141 * GIB), (1024, 1024 * MIB), (81559, 81559 * MIB)],
)
def test_gpushares_unit_follows_from_the_size_of_the_gpus_and_is_reported(units, bytes_of_a_gpu):
    """141 GiB are a GPU of today; the original would take it for 141 MiB."""
    inventory_view = found(sample.gpushare_node("n", gpus=2, units=units))
    assert inventory_view.nodes[0].ledger.devices[0].device.memory_bytes == bytes_of_a_gpu
    (note,) = inventory_view.notes
    assert f"n has {units} of them" in note
    assert "--gpushare.memory-unit" in note


def test_a_unit_that_is_set_is_not_talked_about():
    inventory_view = found(sample.gpushare_node("n", units=22), gpushare_unit=GIB)
    assert inventory_view.notes == ()


def test_nodes_that_cannot_have_the_same_unit_are_named():
    inventory_view = found(
        sample.gpushare_node("a", units=22), sample.gpushare_node("b", units=22000)
    )
    assert "a has only 22 a GPU" in inventory_view.notes[0]


def test_volcanos_factor_counts_and_a_missing_one_is_noticed():
    node = sample.node("n", annotations=volcano_register(sample.uuid(1), amount=44))
    assert "44 MiB" in found(node).notes[0]
    inventory_view = found(node, volcano_factor=1024)
    assert inventory_view.notes == ()
    assert inventory_view.nodes[0].ledger.devices[0].device.memory_bytes == 44 * GIB


# ---------------------------------------------------------------- a part of it


def test_one_scheme_alone():
    inventory_view = only_scheme(found(*sample.items()), Scheme.GPUSHARE)
    assert [view.node.name for view in inventory_view.nodes] == ["infer-1"]
    assert {one.scheme for one in inventory_view.pending} == {Scheme.GPUSHARE}
    assert [capacity.scheme for capacity in inventory_view.free_capacities] == [Scheme.GPUSHARE]


def test_one_node_alone_with_its_room_for_what_waits_anywhere():
    here = of_node(objects(*sample.items()), "a100-1")
    inventory_view = only_node(inventory(here, Units()), "a100-1")
    assert [view.node.name for view in inventory_view.nodes] == ["a100-1"]
    assert [one.pod.name for one in inventory_view.pending] == ["infer-llama-1"]
    (one,) = inventory_view.free_capacities
    assert (one.gpus, one.probe.pending.name) == (2, "train-gpt-0")
    everything = {each for each in holders(found(*sample.items())) if each[0] == "a100-1"}
    assert holders(inventory_view) == everything


def test_conflicts_are_kept():
    inventory_view = found(
        sample.volcano_node("n", 1, healthy=(True,)),
        *(sample.volcano_pod(f"p{n}", "n", 1, 30000) for n in range(2)),
    )
    kinds = [conflict.kind for conflict in inventory_view.nodes[0].ledger.conflicts]
    assert kinds == [ConflictKind.OVERCOMMITTED]


WORDS = st.sampled_from(
    [
        "",
        "0",
        "1",
        "x",
        "true",
        ";",
        ":",
        "18446744073709551615",
        "-1",
        "0.5",
        "GPU-1",
        "{}",
        "é\x1b",
    ]
)
KEYS = st.sampled_from(
    [
        "ALIYUN_COM_GPU_MEM_IDX",
        "ALIYUN_COM_GPU_MEM_ASSIGNED",
        "scheduler.framework.gpushare.allocation",
        "tencent.com/predicate-gpu-idx-0",
        "tencent.com/gpu-assigned",
        "volcano.sh/vgpu-ids-new",
        "volcano.sh/bind-phase",
        "hami.io/vgpu-devices-allocated",
        "kubeshare/gpu_request",
        "kubeshare/GPUID",
        "volcano.sh/node-vgpu-register",
        "kubeshare/gpu_info",
    ]
)
RESOURCES = st.sampled_from(
    ["aliyun.com/gpu-mem", "aliyun.com/gpu-count", "tencent.com/vcuda-core", "nvidia.com/gpu"]
)
ANNOTATIONS = st.dictionaries(KEYS, WORDS, max_size=4)
LIMITS = st.dictionaries(RESOURCES, st.integers(0, 400), max_size=3)


@given(
    pods=st.lists(st.tuples(st.sampled_from(["", "n", "other"]), LIMITS, ANNOTATIONS), max_size=4),
    nodes=st.lists(st.tuples(LIMITS, ANNOTATIONS), max_size=2),
    unhealthy=WORDS,
)
def test_whatever_nodes_and_pods_say_there_is_an_inventory(pods, nodes, unhealthy):
    items = [
        *(sample.node("nm"[n], *fields) for n, fields in enumerate(nodes)),
        *(sample.pod(f"p{n}", *fields) for n, fields in enumerate(pods)),
        sample.unhealthy("n", unhealthy),
    ]
    inventory_view = found(*items)
    for one in inventory_view.free_capacities:
        assert 0 <= one.usable_bytes <= one.free_bytes
    assert len({view.node.name for view in inventory_view.nodes}) == len(inventory_view.nodes)


# ---------------------------------------------------------------- one view with the scheduler


def hami_pod(name, on, gpu, mib, **options):
    annotations = {
        "hami.io/vgpu-node": on,
        "hami.io/vgpu-devices-to-allocate": f"{gpu},NVIDIA,{mib},0:;",
        "hami.io/vgpu-devices-allocated": f"{gpu},NVIDIA,{mib},0:;",
    }
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    return sample.pod(name, options.pop("bound", on), limits, annotations, **options)


HAMI_GPU = sample.uuid(3)
HAMI_NODE = sample.node(
    "hami", {"nvidia.com/gpu": 10}, hami_register(HAMI_GPU, mib=46068, model="NVIDIA-L40S")
)


def test_hamis_and_volcanos_gpus_are_never_added_up():
    wants = sample.pod("w", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 40000})
    capacities = found(
        sample.volcano_node("volcano", 1), HAMI_NODE, hami_pod("h", "hami", HAMI_GPU, 1000), wants
    ).free_capacities
    assert [(each.system, each.scheme, each.gpus) for each in capacities] == [
        ("volcano", Scheme.VOLCANO, 2),
        ("hami", Scheme.VOLCANO, 1),
    ]
    assert [None if each.probe is None else each.fits for each in capacities] == [None, 1]


def test_a_gpu_that_is_reserved_for_a_pod_without_a_node_is_not_free_and_the_pod_is_named():
    reserved = hami_pod("r", "hami", HAMI_GPU, 40000, bound="", state={})
    wants = sample.pod("w", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10000})
    (view,) = (shown := found(HAMI_NODE, reserved, wants)).nodes
    assert view.free_bytes == 6068 * MIB
    assert [(each.pod.name, each.reason.value) for each in view.standing] == [("r", "reserved")]
    assert [each.fits for each in shown.free_capacities] == [0]


def test_a_node_of_several_systems_is_closed_and_counts_its_gpus_once():
    annotations = {
        **hami_register(HAMI_GPU, mib=46068),
        **volcano_register(HAMI_GPU, amount=46068),
    }
    shown = found(
        sample.node("mixed", {"nvidia.com/gpu": 10, "volcano.sh/vgpu-number": 10}, annotations),
        sample.pod("w", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}),
    )
    counted = [(each.system, each.gpus, each.fits) for each in shown.free_capacities]
    assert counted == [("volcano", 1, 0), ("hami", 0, 0)]
    (apart,) = shown.free_capacities[0].apart
    assert (apart.reason.value, apart.names) == ("mixed_node", ("mixed",))
    (view,) = shown.nodes
    assert (view.systems, view.placement.closed.value) == (("volcano", "hami"), "mixed_node")


def test_a_pod_that_cannot_be_read_closes_its_node():
    dump = objects(HAMI_NODE)
    broken = MalformedObject("Pod", PodRef("", "ml", "odd"), "spec.containers: no list", "hami")
    shown = inventory(msgspec.structs.replace(dump, malformed=(broken,)), Units())
    (view,) = shown.nodes
    assert view.placement.closed.value == "unreadable"
    assert "spec.containers" in view.detail
    assert [apart.reason.value for apart in shown.free_capacities[0].apart] == ["unreadable"]


def test_shares_on_an_unknown_gpu_make_what_is_free_an_upper_bound():
    shares = [
        sample.share_pod(name, "n", "0.4", size * GIB, gpuid="vgpu1")
        for name, size in (("a", 1), ("b", 2))
    ]
    items = [each for share in shares for each in (share, sample.real_pod(share))]
    shown = found(sample.kubeshare_node("n", 31), *items)
    (view,) = shown.nodes
    assert (view.maybe_held.memory_bytes, len(view.maybe_held.pods)) == (3 * GIB, 2)
    (entry,) = view.ledger.devices
    assert view.maybe_held_of(entry).memory_bytes == 3 * GIB
    assert shown.free_capacities[0].maybe_held == view.maybe_held


def test_a_pod_for_which_its_request_is_kept_free_makes_nothing_an_upper_bound():
    lost = sample.volcano_pod("lost", "n", 77, 1000)
    (view,) = found(sample.volcano_node("n", 1), lost).nodes
    assert [each.pod.name for each in view.standing] == ["lost"]
    assert (view.kept_bytes, view.maybe_held.memory_bytes) == (1000 * MIB, 0)


def test_a_filter_changes_no_sum_of_a_node():
    items = (
        sample.volcano_node("n", 1),
        sample.volcano_pod("a", "n", 1, 1000),
        sample.volcano_pod("b", "n", 2, 2000),
    )
    whole = found(*items)
    part = only_pods(whole, lambda pod: pod.name == "a")
    (before,), (after,) = whole.nodes, part.nodes
    assert len(after.ledger.devices) == 1
    assert len(after.full_ledger.devices) == 2
    assert (after.free_bytes, after.kept_bytes) == (before.free_bytes, before.kept_bytes)
    assert available_bytes(after) == available_bytes(before)


@pytest.mark.parametrize(("restarts", "state"), [(0, {"running": {}}), (3, {"waiting": {}})])
def test_a_share_of_kubeshare_is_allocated_once_its_pod_has_run(restarts, state):
    """Also where nothing names the GPU yet, and the pod's owner is not known."""
    share = sample.share_pod("a", "n", "0.4", GIB, gpuid="vgpu1")
    pod = sample.real_pod(share)
    del pod["metadata"]["ownerReferences"]
    (status,) = pod["status"]["containerStatuses"]
    status |= {"state": state, "restartCount": restarts}
    (view,) = found(sample.kubeshare_node("n", 31), pod).nodes
    (holding,) = view.ledger.unplaced
    assert holding.phase is Phase.ASSIGNED
