"""Every kind of conflict: when there is one, what it names, and when there is none."""

import msgspec
import pytest

from tests.ledger.ledger_values import (
    GPUS,
    KUBELET,
    NODE,
    A,
    B,
    C,
    entry,
    evidence,
    kinds,
    pod,
    ref,
    statement_of,
    where,
)
from vgpu.ledger import ConflictKind, Malformed, Wanted, merge
from vgpu.ledger.statements import GIVERS
from vgpu.model.allocation import Device, Request, Share
from vgpu.model.names import ContainerKind, PodRef, Scheme, Source
from vgpu.model.objects import Container
from vgpu.model.units import GIB
from vgpu.schemes.nvidia.grant import NVIDIA

TWO_PODS = (pod("u1"), pod("u2"))


def test_every_kind_is_explained():
    assert len({kind.explanation for kind in ConflictKind}) == len(ConflictKind)


# ---------------------------------------------------------------- of one container


def test_the_plugin_gave_another_gpu_than_the_scheduler_chose():
    """volcano-vgpu-device-plugin#133: the annotation's GPU is not the one in use."""
    annotation, answer = (
        statement_of(Source.ANNOTATIONS, A, 2),
        statement_of(Source.CHECKPOINT, B, 2),
    )
    ledger = merge(evidence(annotation, answer))
    (conflict,) = ledger.conflicts
    assert conflict.kind is ConflictKind.GPU_DIFFERS
    assert (conflict.pod, conflict.container, conflict.device) == (ref("u1"), "main", B)
    assert conflict.statements == (answer, annotation)


def test_a_region_that_names_other_gpus_than_the_kubelet_gave_adds_no_holder():
    """A tenant can write his region; what the plugin made visible he cannot change."""
    forged = statement_of(Source.SHIM, "", shares=tuple(Share(gpu.uuid, 2 * GIB) for gpu in GPUS))
    ledger = merge(evidence(forged, statement_of(Source.CHECKPOINT, A, 2)))
    assert where(ledger) == {("u1", "main"): [A]}
    assert kinds(ledger) == [ConflictKind.FILE_DIFFERS]


FORGED = statement_of(Source.SHIM, B, 2)
ALLOCATED = statement_of(Source.CHECKPOINT, A, 2)


def test_a_file_that_the_driver_confirms_is_evidence():
    process = statement_of(Source.PROCESS, B)
    (conflict,) = merge(evidence(FORGED, ALLOCATED, process)).conflicts
    assert conflict.kind is ConflictKind.GPU_DIFFERS
    assert set(conflict.statements) == {FORGED, ALLOCATED, process}


@pytest.mark.parametrize(
    "better", [ALLOCATED, statement_of(Source.ANNOTATIONS, A, 2), statement_of(Source.PROCESS, A)]
)
def test_a_file_alone_is_no_evidence_against_anybody(better):
    (conflict,) = merge(evidence(FORGED, better)).conflicts
    assert conflict.kind is ConflictKind.FILE_DIFFERS


def test_a_file_does_not_hide_that_others_differ():
    ledger = merge(evidence(FORGED, ALLOCATED, statement_of(Source.ANNOTATIONS, C, 2)))
    assert kinds(ledger) == [ConflictKind.GPU_DIFFERS]


def test_limits_that_may_be_another_containers_and_name_different_gpus_are_kept():
    process = statement_of(Source.PROCESS, A, container="side")
    region = statement_of(Source.SHIM, A, 2)
    file = statement_of(Source.LIMIT_FILE, B, 2, scheme=Scheme.GAIA)
    ledger = merge(
        evidence(process, region, file, statement_of(Source.CHECKPOINT, A, 2, container="side"))
    )
    assert where(ledger) == {("u1", "side"): [A]}
    (conflict,) = ledger.conflicts
    assert (conflict.kind, conflict.container) == (ConflictKind.FILE_DIFFERS, "main")
    assert (conflict.pod, conflict.statements) == (ref("u1"), (region, file))


def test_another_size_in_another_source():
    ledger = merge(
        evidence(statement_of(Source.ANNOTATIONS, A, 2), statement_of(Source.CHECKPOINT, A, 3))
    )
    assert kinds(ledger) == [ConflictKind.SIZE_DIFFERS]
    assert entry(ledger, A).held.memory_bytes == 3 * GIB


def test_cores_differ_by_whole_percents():
    def cores(one, other):
        statements = (
            statement_of(Source.ANNOTATIONS, A, cores=one),
            statement_of(Source.CHECKPOINT, A, cores=other),
        )
        return kinds(merge(evidence(*statements)))

    assert cores(250, 260) == [ConflictKind.SIZE_DIFFERS]
    assert cores(255, 260) == []
    assert cores(250, None) == []


@pytest.mark.parametrize("source", [Source.SHIM, Source.LIMIT_FILE])
def test_another_limit_than_was_allocated(source):
    allocation = statement_of(Source.ANNOTATIONS, A, 2, cores=300)

    def limit(gib, cores):
        return merge(evidence(allocation, statement_of(source, A, gib, cores=cores)))

    assert kinds(limit(2, 300)) == []
    assert kinds(limit(3, 300)) == [ConflictKind.LIMIT_DIFFERS]
    assert kinds(limit(None, 300)) == [ConflictKind.LIMIT_DIFFERS]
    assert kinds(limit(2, None)) == [ConflictKind.LIMIT_DIFFERS]
    assert entry(limit(3, 300), A).held.memory_bytes == 2 * GIB


@pytest.mark.parametrize("others", [(), (statement_of(Source.PROCESS, A),)])
def test_a_share_of_which_the_plugin_lifted_the_limit_holds_the_whole_device(others):
    granted = statement_of(Source.CHECKPOINT, A, limits=(0,))
    unlimited = statement_of(Source.SHIM, A)
    ledger = merge(evidence(granted, unlimited, *others))
    assert entry(ledger, A).free_memory_bytes == 0
    assert kinds(ledger) == []
    two = msgspec.structs.replace(granted, shares=(Share(A), Share(B, GIB)), limits=(0, GIB))
    ledger = merge(evidence(two, *others))
    assert entry(ledger, A).free_memory_bytes == 0
    assert entry(ledger, B).held.memory_bytes == GIB


def test_no_limit_is_right_for_a_whole_device_or_without_reserved_cores():
    unlimited = statement_of(Source.SHIM, A)
    assert (
        kinds(merge(evidence(statement_of(Source.ANNOTATIONS, A, 10, cores=1000), unlimited))) == []
    )
    assert kinds(merge(evidence(statement_of(Source.ANNOTATIONS, A, 10, cores=0), unlimited))) == []
    assert kinds(merge(evidence(statement_of(Source.ANNOTATIONS, A), unlimited))) == []


def test_annotations_that_were_made_for_another_node_do_not_place_the_pod_on_this_one():
    """volcano#5532; the index or UUID means a GPU of the other node."""
    drifted = statement_of(Source.ANNOTATIONS, "0", 2, node="node-1")
    ledger = merge(evidence(drifted))
    assert [holding.share for holding in ledger.unplaced] == [Share("", 2 * GIB, None)]
    (conflict,) = ledger.conflicts
    assert conflict.kind is ConflictKind.NODE_DIFFERS
    assert conflict.detail == "node-1"
    assert conflict.statements == (drifted,)
    assert kinds(merge(evidence(msgspec.structs.replace(drifted, node=NODE)))) == []


def test_a_gpu_that_the_node_does_not_have():
    ledger = merge(evidence(statement_of(Source.ANNOTATIONS, "GPU-sold", 2)))
    assert [holding.share.device for holding in ledger.unplaced] == ["GPU-sold"]
    assert [(c.kind, c.device) for c in ledger.conflicts] == [
        (ConflictKind.DEVICE_MISSING, "GPU-sold")
    ]


def test_where_not_all_devices_are_known_none_is_missing():
    statement = statement_of(Source.ANNOTATIONS, "GPU-new", 2)
    ledger = merge(evidence(statement, devices_complete=False))
    assert [holding.share.device for holding in ledger.unplaced] == ["GPU-new"]
    assert ledger.conflicts == ()


@pytest.mark.parametrize("known", [GPUS, GPUS[1:]], ids=["described", "not described"])
def test_a_gpu_that_fell_off_the_bus_keeps_its_holders(known):
    statement = statement_of(Source.CHECKPOINT, A, 2)
    ledger = merge(evidence(statement, devices=known, lost=frozenset({A})))
    assert entry(ledger, A).lost
    assert [holding.pod.uid for holding in entry(ledger, A).holdings] == ["u1"]
    assert kinds(ledger) == [ConflictKind.DEVICE_MISSING]


def test_an_unhealthy_gpu_keeps_its_holders():
    gpus = (Device(uuid=A, healthy=False),)
    ledger = merge(evidence(statement_of(Source.CHECKPOINT, A, 2), devices=gpus))
    assert len(entry(ledger, A).holdings) == 1
    assert kinds(ledger) == [ConflictKind.DEVICE_UNHEALTHY]


# ---------------------------------------------------------------- of several pods


def test_the_same_device_id_in_two_living_pods():
    """kubernetes#75880: after its checkpoint was lost the kubelet gives the slice again."""
    ids = (("r/gpu", ("a", "b")),)
    one = statement_of(Source.CHECKPOINT, A, 2, slices=ids)
    other = statement_of(Source.POD_RESOURCES, A, 2, uid="u2", slices=(("r/gpu", ("b", "c")),))
    ledger = merge(evidence(one, other, pods=TWO_PODS))
    (conflict,) = ledger.conflicts
    assert conflict.kind is ConflictKind.DOUBLE_BOOKED
    assert conflict.device == A
    assert conflict.detail == "r/gpu: b"
    assert set(conflict.statements) == {one, other}


def test_ids_are_of_their_resource_and_of_living_pods():
    def ledger(other, **around):
        one = statement_of(Source.CHECKPOINT, A, slices=(("r/gpu", ("a",)),))
        return merge(evidence(one, other, **({"pods": TWO_PODS} | around)))

    same = statement_of(Source.CHECKPOINT, A, uid="u2", slices=(("r/gpu", ("a",)),))
    assert kinds(ledger(same)) == [ConflictKind.DOUBLE_BOOKED]
    assert kinds(ledger(same, pods=(pod("u1"), pod("u2", "Failed")))) == []
    elsewhere = msgspec.structs.replace(same, slices=(("r/memory", ("a",)),))
    assert kinds(ledger(elsewhere)) == []


def test_app_containers_take_over_the_slices_of_their_pods_init_containers():
    ids = (("r/gpu", ("a",)),)
    statements = [
        statement_of(Source.CHECKPOINT, A, container=name, slices=ids) for name in ("main", "init")
    ]
    assert kinds(merge(evidence(*statements))) == []


def test_many_shared_ids_are_counted_rather_than_listed():
    ids = (("r/memory", tuple(f"id-{i:03}" for i in range(500))),)
    statements = [statement_of(Source.CHECKPOINT, A, uid=uid, slices=ids) for uid in ("u1", "u2")]
    (conflict,) = merge(evidence(*statements, pods=TWO_PODS)).conflicts
    assert conflict.detail.startswith("r/memory: id-000, id-001, ")
    assert conflict.detail.endswith("id-007 and 492 more")


def test_more_than_the_device_has():
    statements = [
        statement_of(Source.ANNOTATIONS, A, 6, uid=uid, cores=600) for uid in ("u1", "u2")
    ]
    ledger = merge(evidence(*statements, pods=TWO_PODS))
    (conflict,) = ledger.conflicts
    assert conflict.kind is ConflictKind.OVERCOMMITTED
    assert conflict.device == A
    assert conflict.detail == ("12.0 GiB of 10.0 GiB memory; 120 % of 100 % cores")
    assert conflict.statements == tuple(statements)
    assert entry(ledger, A).free_memory_bytes == 0
    assert entry(ledger, A).free_cores_milli == 0


def test_more_shares_than_the_device_is_split_into():
    gpus = (Device(uuid=A, slots=1),)
    statements = [statement_of(Source.ANNOTATIONS, A, uid=uid) for uid in ("u1", "u2")]
    (conflict,) = merge(evidence(*statements, pods=TWO_PODS, devices=gpus)).conflicts
    assert conflict.detail == "2 of 1 shares"


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        (ContainerKind.INIT, 6),  # runs to its end before the other
        (ContainerKind.SIDECAR, 11),  # runs beside it
        (ContainerKind.APP, 11),
    ],
)
def test_containers_that_run_one_after_another_need_their_device_once(kind, held):
    two = pod("u1", containers=(Container("main"), Container("side", kind=kind)))
    statements = [
        statement_of(Source.ANNOTATIONS, A, 5),
        statement_of(Source.ANNOTATIONS, A, 6, container="side"),
    ]
    ledger = merge(evidence(*statements, pods=(two,)))
    assert entry(ledger, A).held.memory_bytes == held * GIB
    assert (ConflictKind.OVERCOMMITTED in kinds(ledger)) == (held > 10)


# ---------------------------------------------------------------- processes and requests


def test_a_process_of_a_container_without_allocation_is_a_conflict():
    process = statement_of(Source.PROCESS, A, container="side")
    ledger = merge(evidence(process, statement_of(Source.CHECKPOINT, B, 2)))
    assert where(ledger) == {("u1", "main"): [B], ("u1", "side"): [A]}
    (conflict,) = ledger.conflicts
    assert conflict.kind is ConflictKind.PROCESS_WITHOUT_ALLOCATION
    assert (conflict.device, conflict.container) == (A, "side")


NOT_ASKED = {"read": frozenset(Source) - frozenset(KUBELET)}


@pytest.mark.parametrize(
    "silent",
    [NOT_ASKED, *({"incomplete": frozenset({source})} for source in Source if source in GIVERS)],
    ids=["the kubelet is not read", *(source.value for source in Source if source in GIVERS)],
)
def test_a_process_without_allocation_is_no_conflict_where_a_source_is_incomplete(silent):
    process = statement_of(Source.PROCESS, A, container="side")
    ledger = merge(evidence(process, statement_of(Source.OWN_CHECKPOINT, B, 2), **silent))
    assert where(ledger) == {("u1", "main"): [B], ("u1", "side"): [A]}
    assert ledger.conflicts == ()
    docker = statement_of(Source.PROCESS, A, pod=PodRef("", "", ""), container="0123456789ab")
    assert kinds(merge(evidence(docker, **silent))) == [ConflictKind.PROCESS_WITHOUT_ALLOCATION]


def test_a_process_outside_of_kubernetes_holds_its_gpu_by_the_id_of_its_container():
    docker = statement_of(Source.PROCESS, A, pod=PodRef("", "", ""), container="0123456789ab")
    ledger = merge(evidence(docker))
    assert where(ledger) == {("", "0123456789ab"): [A]}
    assert kinds(ledger) == [ConflictKind.PROCESS_WITHOUT_ALLOCATION]


def test_a_process_in_no_container_holds_nothing_and_is_a_conflict():
    host = statement_of(Source.PROCESS, A, pod=PodRef("", "", ""), container="", where="pid 7")
    ledger = merge(evidence(host))
    assert where(ledger) == {}
    (conflict,) = ledger.conflicts
    assert conflict.kind is ConflictKind.PROCESS_WITHOUT_ALLOCATION
    assert (conflict.device, conflict.pod, conflict.statements) == (A, None, (host,))


def test_a_process_of_an_unnamed_container_is_of_the_one_that_has_its_device():
    process = statement_of(Source.PROCESS, A, container="")
    ledger = merge(evidence(process, statement_of(Source.CHECKPOINT, A, 2)))
    assert where(ledger) == {("u1", "main"): [A]}
    assert ledger.conflicts == ()
    (holding,) = ledger.holdings
    assert holding.sources == (Source.PROCESS, Source.CHECKPOINT)
    elsewhere = merge(evidence(process, statement_of(Source.CHECKPOINT, B, 2)))
    assert where(elsewhere) == {("u1", "main"): [B], ("u1", ""): [A]}
    assert kinds(elsewhere) == [ConflictKind.PROCESS_WITHOUT_ALLOCATION]


def test_a_share_of_the_whole_pod_is_that_of_its_containers():
    """KubeShare's; kernel and region name containers."""
    claim = statement_of(Source.ANNOTATIONS, A, 2, container="")
    running = statement_of(Source.PROCESS, A, container="side")
    ledger = merge(evidence(claim, running))
    assert where(ledger) == {("u1", ""): [A]}
    assert ledger.conflicts == ()


def test_a_limit_of_the_whole_pod_is_that_of_its_only_container_with_a_share():
    claim = statement_of(Source.ANNOTATIONS, A, 2)
    ledger = merge(evidence(claim, statement_of(Source.LIMIT_FILE, A, 3, container="")))
    assert where(ledger) == {("u1", "main"): [A]}
    assert kinds(ledger) == [ConflictKind.LIMIT_DIFFERS]


def test_a_region_in_a_folder_of_the_wrong_container_is_not_a_second_holder():
    """HAMi#3079: the plugin names the folder after the init container."""
    region = statement_of(Source.SHIM, A, 6, container="init")
    ledger = merge(evidence(region, statement_of(Source.CHECKPOINT, A, 6)))
    assert where(ledger) == {("u1", "main"): [A]}
    assert ledger.conflicts == ()


def test_a_misnamed_region_is_no_source_for_other_devices_of_its_pod():
    region = statement_of(Source.SHIM, A, 6, container="init")
    gpus = statement_of(Source.CHECKPOINT, "", shares=(Share(A, 6 * GIB), Share(B, 6 * GIB)))
    on = {h.share.device: h.sources for h in merge(evidence(region, gpus)).holdings}
    assert on == {A: (Source.CHECKPOINT, Source.SHIM), B: (Source.CHECKPOINT,)}


def wants(*, resource="r/gpu", running=True, container="main"):
    request = Request(container, 1, memory_bytes=GIB)
    return (Wanted(ref("u1"), request, Scheme.VOLCANO, resource, running),)


@pytest.mark.parametrize("statements", [(), (statement_of(Source.ANNOTATIONS, A, 1),)])
def test_a_running_container_without_a_device_of_the_kubelet_is_a_conflict(statements):
    """kubernetes#116125: a kubelet that lost its checkpoint admits the pod without a device."""
    ledger = merge(evidence(*statements, wanted=wants()))
    (conflict,) = ledger.conflicts
    assert conflict.kind is ConflictKind.RUNNING_WITHOUT_DEVICE
    assert (conflict.pod, conflict.container) == (ref("u1"), "main")
    assert conflict.statements == statements


@pytest.mark.parametrize("source", KUBELET)
def test_one_statement_of_the_kubelet_is_enough_to_have_a_device(source):
    assert kinds(merge(evidence(statement_of(source, ""), wanted=wants()))) == []


@pytest.mark.parametrize(
    ("wanted", "read"),
    [
        (wants(running=False), frozenset(Source)),  # it may still get one
        (wants(resource=""), frozenset(Source)),  # KubeShare's pods get theirs otherwise
        (wants(), frozenset({Source.ANNOTATIONS})),  # the kubelet was not asked
    ],
)
def test_missing_data_is_no_evidence_of_a_missing_device(wanted, read):
    assert kinds(merge(evidence(wanted=wanted, read=read))) == []


def test_an_incomplete_checkpoint_is_no_evidence_of_a_missing_device():
    asked = frozenset({Source.ANNOTATIONS, Source.CHECKPOINT})
    facts = evidence(wanted=wants(), read=asked, incomplete=frozenset({Source.CHECKPOINT}))
    assert kinds(merge(facts)) == []


def test_a_request_without_a_holding_waits():
    wanted = wants(running=False)
    assert merge(evidence(wanted=wanted)).waiting == wanted
    for container in ("main", ""):
        statement = statement_of(Source.ANNOTATIONS, A, 1, container=container)
        assert merge(evidence(statement, wanted=wanted)).waiting == ()
    whole = wants(container="", resource="")
    assert merge(evidence(statement_of(Source.ANNOTATIONS, A, 1), wanted=whole)).waiting == ()


def test_what_cannot_be_read_is_a_conflict_in_words():
    broken = Malformed(ref("u1"), "main", Scheme.GAIA, "key: not a number: 'x'")
    ledger = merge(evidence(malformed=(broken, broken)))
    (conflict,) = ledger.conflicts
    assert (conflict.kind, conflict.pod) == (ConflictKind.MALFORMED, ref("u1"))
    assert conflict.detail == "key: not a number: 'x'"
    assert ledger.malformed == (broken,)


# ---------------------------------------------------------------- resources under other names


def test_a_grant_of_an_unknown_resource_is_no_missing_device():
    """The kubelet has allocated something of a GPU by a name that no codec knows."""
    working = statement_of(Source.PROCESS, A)
    asking = Wanted(ref("u1"), Request("main", 1), Scheme.VOLCANO, "nvidia.com/gpu", running=True)
    accused = merge(evidence(working, wanted=(asking,)))
    assert set(kinds(accused)) >= {
        ConflictKind.PROCESS_WITHOUT_ALLOCATION,
        ConflictKind.RUNNING_WITHOUT_DEVICE,
    }
    unread = merge(evidence(working, wanted=(asking,), unread_grants=frozenset({"u1"})))
    assert kinds(unread) == []


def test_a_pod_that_requests_an_unknown_resource_has_not_ended_though_no_list_has_it():
    """The list of pods that share GPUs has only pods that request a known resource."""
    slices = (("nvidia.com/vgpu", ("a-0",)),)
    granted = statement_of(Source.CHECKPOINT, A, 3, slices=slices)
    live = merge(evidence(granted, pods=(), live_pods=frozenset({"u1"})))
    assert (where(live), kinds(live)) == ({("u1", "main"): [A]}, [])
    known = msgspec.structs.replace(granted, slices=(("nvidia.com/gpu", ("a-0",)),))
    ended = merge(evidence(known, pods=(), live_pods=frozenset({"u1"})))
    assert kinds(ended) == [ConflictKind.OUTLIVES_POD]


# ---------------------------------------------------------------- other GPU schedulers


def others(uid):
    return pod(uid, labels={"runai-gpu-group": "g"})


def test_a_process_of_another_schedulers_pod_is_no_conflict():
    working = statement_of(Source.PROCESS, A)
    ledger = merge(evidence(working, pods=(others("u1"),)))
    assert kinds(ledger) == []
    (excused,) = ledger.of_other_schedulers
    assert excused.kind is ConflictKind.PROCESS_WITHOUT_ALLOCATION
    assert kinds(merge(evidence(working))) == [ConflictKind.PROCESS_WITHOUT_ALLOCATION]


def test_another_schedulers_reservation_beside_its_tenants_is_no_double_booking():
    reserved = statement_of(Source.CHECKPOINT, A, scheme=NVIDIA)
    tenant = statement_of(Source.SHIM, A, 2, uid="u2")
    assert kinds(merge(evidence(reserved, tenant, pods=(others("u1"), others("u2"))))) == []
    with_ours = merge(evidence(reserved, tenant, pods=(others("u1"), pod("u2"))))
    assert ConflictKind.DOUBLE_BOOKED in kinds(with_ours)
