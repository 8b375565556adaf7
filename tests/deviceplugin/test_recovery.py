"""Who holds what after a start, in every state in which the last one may have left the node."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.contradictions import disagreements, of_allocations, of_now
from deviceplugin.allocate.ended_pods import GRACE_SECONDS, MOMENT_SECONDS
from deviceplugin.model import AllocationConflict
from deviceplugin.recovery.recovered_state import RecoverySources, claims_of, recover
from tests.deviceplugin.allocation_values import (
    GPUS,
    INIT,
    NAMED,
    NODE,
    ROLE,
    A,
    B,
    C,
    assignment,
    pod,
    replace,
    share,
)
from tests.deviceplugin.node_model import NodeModel, region_report
from vgpu.ledger import ConflictKind, Evidence, Ledger, Malformed, Statement, merge
from vgpu.ledger.conflicts import Conflict as Disagreement
from vgpu.ledger.from_api import claim_statements
from vgpu.model.admitted_pod import AdmittedPod, Binding
from vgpu.model.allocation import Allocation, Share
from vgpu.model.facts import RegionDevice
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, Source
from vgpu.model.objects import Container, Pod
from vgpu.model.units import GIB
from vgpu.schemes.gpushare.annotations import ACK_ASSIGNED, ALLOCATION, ASSIGNED, INDEX
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.gpushare.node import NAMES

APP = ContainerKind.APP
LATE = 1000.0 + 2 * GRACE_SECONDS
TRAIN = (("main", APP, (share(C, 1), share(A, 2))), ("side", APP, (share(B, 3),)))
"""Its devices are not in the order of their names."""


def world(*pods, **options):
    """A node on which the containers of these pods are bound and run, by UID."""
    node = NodeModel(GPUS, **options)
    assert node.boot(())
    for uid, containers in pods:
        node.create(uid, containers, "")
    for place in node.admittable():
        node.admit(*place, heard=True)
    node.bind(None)
    for place in node.startable():
        assert node.start(*place)
    return node


def own(node, back=1):
    """Our checkpoint as it was saved so often before."""
    return node.saved[-back] if len(node.saved) >= back else ()


def sources_of(node, kept=(), *, table=True, **changes):
    whole = RecoverySources(
        node.ledger(kept, table=table),
        tuple(node.table.values()) if table else None,
        tuple(node.pods.values()) if node.api else None,
        node.live_pods(),
        frozenset(node.specs),
    )
    return replace(whole, **changes)


def recovered(node, kept=(), **options):
    return recover(ROLE.codec, node.devices, kept, sources_of(node, kept, **options), node.now)


def held(allocation_state, uid):
    return {each.container: each.shares for each in allocation_state.admitted_pods[uid].allocations}


def bindings(allocation_state):
    """(UID, container) -> name and shares."""
    return {
        (uid, one.container): (one.name, one.shares)
        for uid, admitted_pod in allocation_state.admitted_pods.items()
        for one in admitted_pod.bindings
    }


# ---------------------------------------------------------------- our own checkpoint


def test_with_our_own_checkpoint_the_allocation_state_is_the_one_before():
    node = world(("p", TRAIN), ("q", TRAIN[1:]))
    recovery = recovered(node, own(node))
    assert recovery.allocation_state == node.state.allocation_state
    assert (recovery.conflicts, recovery.unsettled) == ((), frozenset())


@pytest.mark.parametrize("reboot", [False, True])
def test_without_it_every_container_is_bound_again_to_the_same_under_the_same_name(reboot):
    """After a reboot what was written is gone with it."""
    node = world(("p", TRAIN), ("q", (*TRAIN[1:], ("fetch", INIT, (share(B, 1),)))))
    before, written = bindings(node.state.allocation_state), dict(node.specs)
    if reboot:
        for place in [*node.running]:
            node.stop(*place)
        node.specs = {}
    node.kill()
    assert node.boot(())
    assert all(
        admitted_pod.foreign for admitted_pod in node.state.allocation_state.admitted_pods.values()
    )
    node.bind(None)
    assert bindings(node.state.allocation_state) == before
    assert node.specs == written
    assert not any(
        admitted_pod.foreign for admitted_pod in node.state.allocation_state.admitted_pods.values()
    )


def test_one_that_is_behind_is_made_up_for_by_the_others():
    node = world(("p", TRAIN))
    node.create("q", TRAIN[1:], "")
    node.admit("q", "side", heard=True)
    node.bind(None)
    node.start("q", "side")
    behind = own(node, back=2)
    assert [admitted_pod.pod.uid for admitted_pod in behind] == ["p"]
    recovery = recovered(node, behind)
    assert held(recovery.allocation_state, "q") == {"side": (share(B, 3),)}
    assert recovery.allocation_state.capacity == node.state.allocation_state.capacity


def test_one_that_is_ahead_of_the_kubelets_keeps_its_pods():
    node = world(("p", TRAIN))
    kept = own(node)
    node.table = {}
    assert recovered(node, kept).allocation_state == node.state.allocation_state


def test_our_own_checkpoint_has_what_the_kubelet_does_not_report():
    node = world(("p", TRAIN))
    assert recovered(node, own(node), table=False).allocation_state == node.state.allocation_state


def test_a_name_that_belongs_to_another_container_in_the_kubelets_table_is_rejected():
    node = world(("p", TRAIN[1:]), ("q", TRAIN[1:]))
    of_q = node.table["q", "side"].name
    (admitted_pod,) = (one for one in own(node) if one.pod.uid == "p")
    wrong = replace(admitted_pod, bindings=(replace(admitted_pod.bindings[0], name=of_q),))
    recovery = recovered(node, (wrong,))
    assert recovery.allocation_state.admitted_pods["p"].bindings == ()
    assert any(of_q in one.detail for one in recovery.conflicts)


def test_of_two_bindings_under_one_name_only_one_is_kept():
    both = tuple(Binding(name, "n1", (share(A, 1),), 1.0) for name in ("main", "side"))
    node = world(("p", TRAIN))
    (admitted_pod,) = own(node)
    recovery = recovered(node, (replace(admitted_pod, bindings=both),), assignments=())
    assert [one.container for one in recovery.allocation_state.admitted_pods["p"].bindings] == [
        "main"
    ]


# ---------------------------------------------------------------- who has left meanwhile


def test_an_admitted_pod_that_has_left_meanwhile_is_dropped():
    node = world(("p", TRAIN), ("q", TRAIN[1:]))
    kept = own(node)
    for place in (("q", "side"),):
        node.stop(*place)
    node.remove("q")
    node.now = LATE
    assert recovered(node, kept).allocation_state.admitted_pods.keys() == {"p"}


def test_a_pod_that_was_deleted_just_before_holds_nothing_as_soon_as_the_kubelet_forgets_it():
    node = world(("p", TRAIN), ("q", TRAIN[1:]))
    kept = own(node)
    node.stop("q", "side")
    node.remove("q")
    node.now += MOMENT_SECONDS
    assert recovered(node, kept).allocation_state.admitted_pods.keys() == {"p", "q"}
    node.forget_the_dead()
    assert recovered(node, kept).allocation_state.admitted_pods.keys() == {"p"}


@pytest.mark.parametrize("cgroups", [True, False])
def test_a_pod_whose_container_runs_is_kept_whatever_its_object_contains(cgroups):
    node = world(("p", TRAIN), cgroups=cgroups)
    node.remove("p")
    node.now = LATE
    node.table = {}
    assert bindings(recovered(node, own(node)).allocation_state) == bindings(
        node.state.allocation_state
    )


def test_while_the_api_server_is_not_heard_nobody_is_dropped():
    node = world(("p", TRAIN))
    kept = own(node)
    for place in [*node.running]:
        node.stop(*place)
    node.remove("p")
    node.now, node.api = LATE, False
    assert recovered(node, kept).allocation_state.admitted_pods.keys() == {"p"}


# ---------------------------------------------------------------- the API server is not heard


def test_with_the_checkpoint_it_is_not_needed():
    node = world(("p", TRAIN))
    node.api = False
    recovery = recovered(node, own(node))
    assert (recovery.allocation_state, recovery.unsettled) == (
        node.state.allocation_state,
        frozenset(),
    )


def test_without_either_somebody_is_unsettled_until_it_is_heard():
    node = world(("p", TRAIN))
    for place in [*node.running]:
        node.stop(*place)
    node.api = False
    assert recovered(node).unsettled == {"p"}
    node.api = True
    recovery = recovered(node)
    assert recovery.unsettled == frozenset()
    assert held(recovery.allocation_state, "p") == {name: shares for name, _, shares in TRAIN}


def test_a_container_that_runs_is_found_without_either():
    """Its region and its processes are evidence of it."""
    node = world(("p", TRAIN[1:]))
    node.api = False
    recovery = recovered(node, written=frozenset())
    assert held(recovery.allocation_state, "p") == {"side": (share(B, 3),)}


def test_one_that_has_run_was_bound_whatever_has_become_of_what_was_written():
    node = world(("p", TRAIN[1:]))
    node.stop("p", "side")
    recovery = recovered(node, written=frozenset())
    assert held(recovery.allocation_state, "p") == {"side": (share(B, 3),)}


@pytest.mark.parametrize("table", [True, False])
def test_where_the_kubelet_reports_nothing_a_started_pod_holds_its_claim(table):
    """Only its init container runs, which is not in the claim.

    The kubelet's checkpoint cannot be read, or it has begun a new one.
    """
    node = NodeModel(GPUS, cgroups=False, processes=False)
    assert node.boot(())
    node.create("p", (*TRAIN[1:], ("fetch", INIT, (share(B, 1),))), "")
    for place in node.admittable():
        node.admit(*place, heard=True)
    node.bind(None)
    assert node.start("p", "fetch")
    node.forget()
    assert held(recovered(node, table=table).allocation_state, "p") == {"side": (share(B, 3),)}


# ---------------------------------------------------------------- others' pods


@pytest.mark.parametrize("cgroups", [True, False])
def test_a_pod_of_the_original_plugin_is_admitted_on_the_gpu_that_it_really_has(cgroups):
    node = NodeModel(GPUS, cgroups=cgroups)
    node.original("p", [("main", APP, (share(A, 2),))], "", (share(B, 2),))
    recovery = recovered(node)
    assert recovery.allocation_state.admitted_pods["p"].foreign
    assert held(recovery.allocation_state, "p") == {"main": (share(B, 2),)}
    assert recovery.allocation_state.capacity.free(A) == AllocationState.of(GPUS).capacity.free(A)
    assert any("different devices" in one.detail for one in recovery.conflicts)


def test_one_that_agrees_with_its_claim_has_its_devices_in_the_claims_order():
    node = NodeModel(GPUS)
    node.original("p", [TRAIN[0]], "", ())
    recovery = recovered(node)
    assert held(recovery.allocation_state, "p") == {"main": TRAIN[0][2]}
    assert recovery.conflicts == ()


def test_one_that_has_not_started_is_admitted_by_its_annotations():
    """The kubelet may start it at any moment, with what the original has answered."""
    node = NodeModel(GPUS)
    node.original("p", [TRAIN[0]], "", ())
    node.stop("p", "main")
    node.table = {}
    assert held(recovered(node).allocation_state, "p") == {"main": TRAIN[0][2]}


def test_what_is_only_promised_is_nobodys_yet():
    node = NodeModel(GPUS)
    node.create("p", TRAIN, "")
    assert recovered(node).allocation_state == AllocationState.of(GPUS)


def test_who_was_refused_is_not_admitted_though_the_kubelet_has_its_answer():
    """Else it would have by a restart what there was no room for."""
    node = world(("p", (("main", APP, (share(A, 7),)),)))
    node.create("q", (("main", APP, (share(A, 7),)),), "")
    node.admit("q", "main", heard=True)
    node.bind(None)
    assert node.state.refusals.keys() == {("q", "main")}
    assert recovered(node).allocation_state.admitted_pods.keys() == {"p"}


def test_what_gpu_manager_remembers_is_taken_over_with_the_pods_names():
    node = NodeModel(GPUS)
    node.create("p", TRAIN[1:], "web")
    remembered = AdmittedPod(
        PodRef("p", "", ""), (Allocation("side", (share(B, 3),), Phase.ASSIGNED),), foreign=True
    )
    dead = replace(remembered, pod=PodRef("dead", "", ""))
    recovery = recovered(node, (remembered, dead))
    assert recovery.allocation_state.admitted_pods.keys() == {"p"}
    assert recovery.allocation_state.admitted_pods["p"].pod == PodRef("p", "team", "web")
    assert held(recovery.allocation_state, "p") == {"side": (share(B, 3),)}


def test_what_we_know_ourselves_comes_before_what_another_remembers():
    node = world(("p", TRAIN))
    (admitted_pod,) = own(node)
    other = AdmittedPod(
        admitted_pod.pod, (Allocation("main", (share(B, 9),), Phase.ASSIGNED),), foreign=True
    )
    for kept in ((admitted_pod, other), (other, admitted_pod)):
        assert (
            recovered(node, kept).allocation_state.admitted_pods["p"].bindings
            == admitted_pod.bindings
        )


def test_too_much_is_a_conflict_and_no_failure():
    node = NodeModel(GPUS)
    for uid in "pq":
        node.original(uid, [("main", APP, (share(A, 7),))], "", ())
    recovery = recovered(node)
    assert recovery.allocation_state.unbooked == {"q"}
    assert any(
        "more than there is" in one.detail for one in of_allocations(recovery.allocation_state)
    )


def test_a_lost_gpu_is_still_whose_it_was():
    node = world(("p", TRAIN))
    node.devices = GPUS[1:]
    recovery = recovered(node)
    assert held(recovery.allocation_state, "p")["main"] == TRAIN[0][2]
    assert any(A in one.detail for one in of_allocations(recovery.allocation_state))
    assert (
        recovery.allocation_state.with_devices(GPUS)[0].capacity
        == node.state.allocation_state.capacity
    )


# ---------------------------------------------------------------- what is really in use


def test_a_gpu_in_use_that_was_not_allocated_is_held_in_addition():
    node = world(("p", TRAIN[1:]))
    node.running["p", "side"].shares = (share(B, 3), share(C, 3))
    recovery = recovered(node, own(node))
    assert [one.device for one in recovery.allocation_state.admitted_pods["p"].beside] == [C]
    assert held(recovery.allocation_state, "p") == {"side": (share(B, 3),)}
    assert bindings(recovery.allocation_state) == bindings(node.state.allocation_state)
    assert any(
        "was not allocated" in one.detail and C in one.detail
        for one in of_allocations(recovery.allocation_state)
    )


def test_a_gpu_held_in_addition_is_determined_again_each_time():
    node = world(("p", TRAIN[1:]))
    (admitted_pod,) = own(node)
    assert (
        recovered(node, (replace(admitted_pod, beside=(share(C, 3),)),)).allocation_state
        == node.state.allocation_state
    )


# ---------------------------------------------------------------- what is only claimed


def forged(monkeypatch, *devices):
    """From now on tenants write into their regions what they like."""

    def region(uid, container, one):
        return replace(
            region_report(uid, container, one),
            region=replace(region_report(uid, container, one).region, devices=devices),
        )

    monkeypatch.setattr("tests.deviceplugin.node_model.region_report", region)


HUGE = RegionDevice(C, 9 * GIB, 100)


@pytest.mark.parametrize("kept", [True, False], ids=["with our checkpoint", "without"])
@pytest.mark.parametrize("devices", [(HUGE,), (HUGE, RegionDevice(B, GIB, 5))])
@pytest.mark.parametrize("processes", [True, False], ids=["at work", "idle"])
def test_a_forged_region_is_no_conflict_and_takes_nobodys_room(
    monkeypatch, kept, devices, processes
):
    node = world(("p", TRAIN[1:]), processes=processes)
    forged(monkeypatch, *devices)
    recovery = recovered(node, own(node) if kept else ())
    assert (recovery.conflicts, of_allocations(recovery.allocation_state)) == ((), ())
    assert recovery.allocation_state.capacity == node.state.allocation_state.capacity
    assert {one.pod.uid for one in recovery.remarks} == {"p"}


def fetching(*, begun=True, ended=False, **options):
    """A node with a pod whose init container uses what its app container was promised."""
    node = NodeModel(GPUS, **options)
    assert node.boot(())
    node.create("p", (*TRAIN[1:], ("fetch", INIT, (share(B, 1),))), "")
    for place in node.admittable():
        node.admit(*place, heard=True)
    node.bind(None)
    if begun:
        assert node.start("p", "fetch")
    if ended:
        node.stop("p", "fetch")
    return node


@pytest.mark.parametrize("devices", [(HUGE,), (HUGE, RegionDevice(B, GIB, 5))])
@pytest.mark.parametrize("processes", [True, False], ids=["at work", "idle"])
def test_a_forged_region_of_an_init_container_takes_nobodys_room_either(
    monkeypatch, devices, processes
):
    """It was promised nothing of its own; our checkpoint, which knows its share, is lost."""
    node = fetching(processes=processes)
    forged(monkeypatch, *devices)
    recovery = recovered(node)
    assert (recovery.conflicts, of_allocations(recovery.allocation_state)) == ((), ())
    assert recovery.allocation_state.capacity == node.state.allocation_state.capacity
    assert held(recovery.allocation_state, "p") == {"side": (share(B, 3),)}


@pytest.mark.parametrize("ended", [True, False])
def test_an_init_container_that_does_not_run_is_no_conflict_where_our_checkpoint_is_lost(ended):
    """No other source names the device of its share: it is its app container's."""
    node = fetching(begun=ended, ended=ended)
    recovery = recovered(node)
    assert (recovery.conflicts, recovery.unsettled) == ((), frozenset())
    assert recovery.allocation_state.capacity == node.state.allocation_state.capacity


def test_a_forged_limit_is_no_conflict(monkeypatch):
    node = world(("p", TRAIN[1:]))
    forged(monkeypatch, RegionDevice(B, 2**53, 100))
    recovery = recovered(node, own(node))
    assert (recovery.conflicts, of_allocations(recovery.allocation_state)) == ((), ())
    assert [one.pod.uid for one in recovery.remarks] == ["p"]


def test_what_the_driver_confirms_is_a_conflict(monkeypatch):
    node = world(("p", TRAIN[1:]))
    node.running["p", "side"].shares = (share(C, 3),)
    recovery = recovered(node, own(node))
    assert any("different devices" in one.detail for one in recovery.conflicts)
    assert [one.device for one in recovery.allocation_state.admitted_pods["p"].beside] == [C]


@pytest.mark.parametrize("amounts", [(B, 9), (C, 3)], ids=["more", "another GPU"])
def test_an_annotation_that_was_edited_since_is_no_conflict(amounts):
    node = world(("p", TRAIN[1:]))
    edited = pod("p", share(*amounts)).annotations["volcano.sh/vgpu-ids-new"]
    annotations = {**node.pods["p"].annotations, "volcano.sh/vgpu-ids-new": edited}
    node.pods["p"] = replace(node.pods["p"], annotations=annotations)
    recovery = recovered(node, own(node))
    assert (recovery.conflicts, of_allocations(recovery.allocation_state)) == ((), ())
    assert {one.pod.uid for one in recovery.remarks} == {"p"}


@pytest.mark.parametrize(
    ("sources", "counted"),
    [
        ((Source.ANNOTATIONS, Source.OWN_CHECKPOINT), False),
        ((Source.ANNOTATIONS, Source.ANNOTATIONS), False),
        ((Source.CHECKPOINT, Source.CHECKPOINT), True),
    ],
    ids=["one annotation", "two annotations", "the kubelet"],
)
def test_a_slice_that_only_an_annotation_has_twice_is_no_conflict(sources, counted):
    """Whoever may annotate a pod of their own may write another pod's MIG slot there."""
    statements = tuple(
        Statement(
            source,
            PodRef(uid, "team", uid),
            "main",
            (share(A, 1),),
            Scheme.VOLCANO,
            slices=(("MIG slot", (f"{A}[2-1]",)),),
        )
        for uid, source in zip(("forger", "victim"), sources, strict=True)
    )
    twice = Disagreement(ConflictKind.DOUBLE_BOOKED, A, statements=statements)
    found, remarks = disagreements(
        Ledger("n", (), conflicts=(twice,)), Scheme.VOLCANO, {"forger", "victim"}
    )
    assert (bool(found), bool(remarks)) == (counted, not counted)


def test_who_merely_waits_contradicts_nobody():
    """For room, and for a GPU that is not there; both have been answered, and hold nothing."""
    node = world(("p", (("main", APP, (share(A, 7),)),)))
    node.create("q", (("main", APP, (share(A, 7),)),), "")
    node.admit("q", "main", heard=True)
    node.create("r", (("main", APP, (share(B, 7),)),), "")
    node.devices = tuple(gpu for gpu in GPUS if gpu.uuid != B)
    node.bind(None)
    recovery = recovered(node, own(node))
    assert recovery.allocation_state.admitted_pods.keys() == {"p"}
    assert (recovery.conflicts, of_allocations(recovery.allocation_state)) == ((), ())


def test_a_conflict_of_two_is_over_when_one_of_them_has_left():
    two = AllocationConflict(None, "the same slice", frozenset({"p", "q"}))
    one = AllocationConflict(PodRef("p", "team", "p"), "another GPU")
    assert of_now((two, one), {"p", "q"}) == (two, one)
    assert of_now((two, one), {"p"}) == (one,)
    assert of_now((two, one), {"q"}) == ()
    assert of_now((AllocationConflict(None, "of nobody"),), {"p"}) == ()


# ---------------------------------------------------------------- other schemes' claims


def gpushare(annotations, shares, devices=GPUS, **fields):
    """What is recovered in gpushare's language of one pod, to which the kubelet gave this."""
    one = Pod(
        PodRef("p", "team", "web"),
        node=NODE,
        annotations=annotations,
        containers=(Container("main", {NAMES.memory: 4}),),
        phase="Running",
        **fields,
    )
    codec = Gpushare()
    claim = codec.claim(one)
    statements = [*claim_statements(one, claim)] if claim else []
    granted = Statement(Source.CHECKPOINT, one.ref, "main", shares, Scheme.GPUSHARE)
    evidence = Evidence(
        node=NODE,
        devices=devices,
        statements=(*statements, granted),
        pods=(one,),
        pods_complete=True,
        read=frozenset({Source.CHECKPOINT}),
    )
    seen = RecoverySources(merge(evidence), (assignment(one),), (one,), written=frozenset({"n1"}))
    return recover(codec, devices, (), seen, 5.0)


FOUR = (Share("", 4 * GIB),)


def test_a_claim_by_index_is_kept_by_uuid():
    recovery = gpushare({INDEX: "1", ASSIGNED: "true"}, FOUR)
    assert held(recovery.allocation_state, "p") == {"main": (Share(B, 4 * GIB, None),)}


def test_an_answer_of_ours_is_as_large_as_the_claim_though_the_kubelet_only_counts():
    """It counts 4 units, of 2 GPUs; which GPU has how many only the claim knows."""
    uneven = {ALLOCATION: '{"0":{"0":1,"2":3}}', ACK_ASSIGNED: "true"}
    recovery = gpushare(uneven, (Share("", 2 * GIB),) * 2, labels={NAMES.count: "2"})
    assert held(recovery.allocation_state, "p") == {
        "main": (Share(A, GIB, None), Share(C, 3 * GIB, None))
    }


def test_on_the_only_gpu_no_source_has_to_name_the_device():
    recovery = gpushare({}, FOUR, devices=GPUS[:1])
    assert held(recovery.allocation_state, "p") == {"main": (Share(A, 4 * GIB, None),)}
    assert not recovery.unsettled


def test_on_one_of_several_gpus_it_is_unsettled_and_a_conflict():
    recovery = gpushare({}, FOUR)
    assert recovery.unsettled == {"p"}
    assert not recovery.allocation_state.admitted_pods
    assert any("no source names the device" in one.detail for one in recovery.conflicts)


@pytest.mark.parametrize(
    ("annotations", "node"), [({"volcano.sh/bind-phase": "failed"}, NODE), ({}, "other")]
)
def test_a_claim_that_has_failed_or_is_for_another_node_is_no_evidence(annotations, node):
    one = pod("p", annotations=annotations)
    assert claims_of(ROLE.codec, one, NAMED, node) == {}
    assert claims_of(ROLE.codec, pod("p"), NAMED, NODE).keys() == {"main"}


# ---------------------------------------------------------------- anything at all

_RANDOM = Random(11)
UIDS = ("p", "q", "r")
CONTAINERS = ("main", "side", "")


def any_share():
    device = _RANDOM.choice((A, B, C, "0", "2", "GPU-gone", ""))
    return Share(device, _RANDOM.choice((None, GIB, 9 * GIB, -1)), _RANDOM.choice((None, 0, 700)))


def any_shares():
    return tuple(any_share() for _ in range(_RANDOM.randint(0, 3)))


def any_statement():
    source = _RANDOM.choice([*Source])
    process = source is Source.PROCESS
    return Statement(
        source,
        PodRef(_RANDOM.choice(UIDS), "", ""),
        _RANDOM.choice(CONTAINERS),
        (Share(_RANDOM.choice((A, B, C))),) if process else any_shares(),
        scheme=Scheme.NONE if process else _RANDOM.choice((Scheme.VOLCANO, Scheme.GAIA)),
        phase=Phase.ASSIGNED if process else _RANDOM.choice([*Phase]),
        since=_RANDOM.choice((None, 1.0)),
        alive=process,
        node=_RANDOM.choice(("", NODE, "other")),
    )


def any_admitted_pod():
    uid = _RANDOM.choice(UIDS)
    return AdmittedPod(
        PodRef(uid, "team", uid),
        tuple(Allocation(one, any_shares(), Phase.ASSIGNED) for one in ("main", "side")),
        tuple(
            Binding(one, _RANDOM.choice(("n1", "n2", "n3")), any_shares(), 1.0)
            for one in _RANDOM.sample(("main", "side"), _RANDOM.randint(0, 2))
        ),
        since=_RANDOM.choice((0.0, 5.0)),
        foreign=_RANDOM.random() < 0.3,
        beside=any_shares(),
    )


def any_pod(uid):
    fields = {"state": _RANDOM.choice(("Pending", "Running", "Failed"))}
    if _RANDOM.random() < 0.3:
        fields["annotations"] = {"volcano.sh/vgpu-ids-new": "nonsense"}
    return replace(pod(uid, share(A, 1), **fields), deleted_at=_RANDOM.choice((None, 1.0)))


STATEMENTS = st.lists(st.sampled_from([any_statement() for _ in range(2000)]), max_size=8)
ADMITTED_PODS = st.lists(st.sampled_from([any_admitted_pod() for _ in range(500)]), max_size=3)
PODS = st.none() | st.lists(
    st.sampled_from([any_pod(uid) for uid in UIDS for _ in range(20)]), max_size=4
)
LIVE = st.none() | st.frozensets(st.sampled_from(UIDS))
ASSIGNMENTS = st.none() | st.lists(
    st.sampled_from(
        [
            assignment(pod(uid), container, name, ids=(uid + container,))
            for uid in UIDS
            for container in ("main", "side")
            for name in ("", "n1", "n2")
        ]
    ),
    max_size=4,
)


@given(STATEMENTS, ADMITTED_PODS, PODS, LIVE, ASSIGNMENTS)
def test_whatever_is_found_something_is_recovered(statements, kept, pods, live, assignments):
    """Never an exception; every name is one container's; who is on the allocation state has proper
    shares.
    """
    evidence = Evidence(
        node=NODE,
        devices=GPUS,
        statements=tuple(statements),
        pods=tuple(pods or ()),
        pods_complete=pods is not None,
        live_pods=live,
        malformed=(Malformed(None, "", Scheme.VOLCANO, "nonsense"),),
        read=frozenset(one.source for one in statements),
    )
    seen = RecoverySources(
        merge(evidence),
        None if assignments is None else tuple(assignments),
        None if pods is None else tuple(pods),
        live,
        frozenset({"n1"}),
    )
    recovery = recover(ROLE.codec, GPUS, kept, seen, 100.0)
    names = [
        one.name
        for admitted_pod in recovery.allocation_state.admitted_pods.values()
        for one in admitted_pod.bindings
    ]
    assert len(set(names)) == len(names)
    allocation_state, _ = AllocationState.over(
        GPUS, recovery.allocation_state.admitted_pods.values()
    )
    assert allocation_state == recovery.allocation_state
    owners = {one.name: (one.pod_uid, one.container) for one in assignments or () if one.name}
    for uid, admitted_pod in recovery.allocation_state.admitted_pods.items():
        assert all(
            owners.get(one.name, (uid, one.container)) == (uid, one.container)
            for one in admitted_pod.bindings
        )
    shown = {one.pod.uid for one in statements if one.alive and one.source is Source.PROCESS}
    sure = {admitted_pod.pod.uid for admitted_pod in kept if not admitted_pod.foreign} & shown
    assert sure <= recovery.allocation_state.admitted_pods.keys()
