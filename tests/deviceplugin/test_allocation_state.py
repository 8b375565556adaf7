"""The plugin's allocation state: no GPU is overcommitted, and each pod gets its reservation."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.capacity import CapacityError
from deviceplugin.reasons import BindRefusal, BindRefused
from tests.deviceplugin.allocation_values import (
    GPUS,
    INIT,
    ROLE,
    SIDECAR,
    A,
    B,
    C,
    assignment,
    claimed,
    made,
    pod,
    replace,
    share,
)
from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.allocation import Allocation, Share
from vgpu.model.names import ContainerKind, Phase, PodRef
from vgpu.model.objects import MIRROR, ContainerState, Status
from vgpu.model.units import GIB

APP = ContainerKind.APP
UIDS = "pqrstuvw"


def admitted(allocation_state, one, now=1.0):
    return allocation_state.admitted(one, claimed(one), now)


def bound(allocation_state, one, container="main", name="n1", now=2.0):
    return allocation_state.bound(
        assignment(one, container, name), one, ROLE.codec.requests(one), now
    )


def refusal(change, *arguments):
    with pytest.raises(BindRefused) as error:
        change(*arguments)
    return error.value


def unhealthy(*uuids):
    return tuple(replace(gpu, healthy=gpu.uuid not in uuids) for gpu in GPUS)


def without(*uuids):
    return tuple(gpu for gpu in GPUS if gpu.uuid not in uuids)


# ---------------------------------------------------------------- admission


def test_an_admitted_pod_holds_the_shares_of_its_claim():
    allocation_state = admitted(
        AllocationState.of(GPUS), pod("p", share(A, 4, 30), share(B, 4, 30))
    )
    assert allocation_state.capacity.free(A).memory_bytes == 6 * GIB
    assert allocation_state.capacity.free(B).cores_milli == 700
    assert allocation_state.admitted_pods["p"].pod.name == "pod-p"


def test_admitting_again_changes_nothing_whatever_the_annotations_say_now():
    allocation_state = admitted(AllocationState.of(GPUS), pod("p", share(A, 4)))
    assert (
        allocation_state.admitted(pod("p"), claimed(pod("p", share(B, 9))), 9.0) is allocation_state
    )


def test_a_gpu_may_be_called_by_its_index():
    allocation = Allocation("main", (Share("1", GIB, 100),), Phase.ASSIGNED)
    allocation_state = AllocationState.of(GPUS).admitted(pod("p"), (allocation,), 1.0)
    assert allocation_state.admitted_pods["p"].shares == (Share(B, GIB, 100),)


def test_an_index_that_two_gpus_have_names_neither():
    twins = (GPUS[0], replace(GPUS[1], index=0))
    allocation = Allocation("main", (Share("0", GIB, 100),), Phase.ASSIGNED)
    error = refusal(AllocationState.of(twins).admitted, pod("p"), (allocation,), 1.0)
    assert error.why is BindRefusal.UNKNOWN_DEVICE


def test_two_gpus_of_one_uuid_are_no_allocation_state():
    with pytest.raises(CapacityError):
        AllocationState.of((GPUS[0], GPUS[0]))


@pytest.mark.parametrize(
    ("held", "asked"),
    [
        (share(A, 7), share(A, 4)),  # memory
        (share(A, 1, 60), share(A, 1, 50)),  # cores
    ],
)
def test_what_does_not_fit_is_refused_and_names_the_holders(held, asked):
    allocation_state = admitted(AllocationState.of(GPUS), pod("p", held))
    error = refusal(admitted, allocation_state, pod("q", asked))
    assert error.why is BindRefusal.NO_ROOM
    assert A in str(error)
    assert "team/pod-p" in str(error)
    assert "team/pod-q" in str(error)


def test_what_does_not_fit_is_reported_in_amounts_for_people():
    allocation_state = admitted(AllocationState.of(GPUS), pod("p", share(A, 7, 60)))
    assert "asked 4.0 GiB, free 3.0 GiB" in str(
        refusal(admitted, allocation_state, pod("q", share(A, 4)))
    )
    assert "asked 50 %, free 40 %" in str(
        refusal(admitted, allocation_state, pod("q", share(A, 1, 50)))
    )


def test_a_gpu_takes_no_more_shares_than_it_is_cut_into():
    allocation_state = AllocationState.of(GPUS)
    for uid in "pqr":
        allocation_state = admitted(allocation_state, pod(uid, share(A, 1, 1)))
    assert refusal(admitted, allocation_state, pod("s", share(A, 1, 1))).why is BindRefusal.NO_ROOM


def test_a_gpu_that_is_not_there_is_named_with_those_that_are():
    allocation_state = AllocationState.of(without(C))
    error = refusal(allocation_state.admitted, pod("p"), claimed(pod("p", share(C, 1))), 1.0)
    assert error.why is BindRefusal.UNKNOWN_DEVICE
    assert {A, B} <= {word.strip(",") for word in str(error).split()}


def test_nobody_is_admitted_to_an_unhealthy_gpu():
    allocation_state, _ = AllocationState.of(GPUS).with_devices(unhealthy(B))
    error = refusal(admitted, allocation_state, pod("p", share(A, 1), share(B, 1)))
    assert (error.why, error.final) == (BindRefusal.UNHEALTHY_DEVICE, False)


def test_less_than_nothing_is_no_amount():
    allocation = Allocation("main", (Share(A, -GIB, 0),), Phase.ASSIGNED)
    error = refusal(AllocationState.of(GPUS).admitted, pod("p"), (allocation,), 1.0)
    assert error.why is BindRefusal.MALFORMED


def test_a_refusal_changes_nothing():
    allocation_state = admitted(AllocationState.of(GPUS), pod("p", share(A, 7)))
    again = admitted(AllocationState.of(GPUS), pod("p", share(A, 7)))
    refusal(admitted, allocation_state, pod("q", share(A, 4), share(B, 4)))
    assert allocation_state == again


def test_a_pod_of_the_same_name_is_another_pod():
    allocation_state = admitted(AllocationState.of(GPUS), pod("old", share(A, 7), name="web-0"))
    new = pod("new", share(A, 7), name="web-0")
    assert refusal(admitted, allocation_state, new).why is BindRefusal.NO_ROOM
    assert admitted(allocation_state.without("old"), new).admitted_pods.keys() == {"new"}


# ---------------------------------------------------------------- leaving


def test_who_leaves_gives_everything_back():
    allocation_state = admitted(AllocationState.of(GPUS), pod("p", share(A, 7)))
    assert allocation_state.without("p") == AllocationState.of(GPUS)


def test_who_is_not_there_cannot_leave():
    allocation_state = AllocationState.of(GPUS)
    assert allocation_state.without("p") is allocation_state


# ---------------------------------------------------------------- who is there already


def overbooked():
    """Two pods that hold more of GPU A than there is, the second one of GPU B, too."""
    first = admitted(AllocationState.of(GPUS), pod("p", share(A, 7)), 1.0).admitted_pods["p"]
    second = admitted(
        AllocationState.of(GPUS), pod("q", share(A, 7), share(B, 1)), 2.0
    ).admitted_pods["q"]
    return AllocationState.over(GPUS, (second, first))


def test_of_those_who_hold_too_much_the_last_is_a_conflict():
    allocation_state, conflicts = overbooked()
    assert allocation_state.admitted_pods.keys() == {"p", "q"}
    assert allocation_state.unbooked == {"q"}
    assert [one.pod.uid for one in conflicts] == ["q"]
    assert A in conflicts[0].detail


def test_an_overcommitted_gpu_is_not_allocated():
    allocation_state, _ = overbooked()
    for gpu in (A, B):
        error = refusal(admitted, allocation_state, pod("r", share(gpu, 1)))
        assert error.why is BindRefusal.NO_ROOM
        assert "team/pod-q" in str(error)
    assert "r" in admitted(allocation_state, pod("r", share(C, 1))).admitted_pods


@pytest.mark.parametrize("leaver", ["p", "q"])
def test_when_enough_pods_have_left_the_gpus_are_allocated_again(leaver):
    allocation_state = overbooked()[0].without(leaver)
    assert not allocation_state.unbooked
    assert admitted(allocation_state, pod("r", share(A, 3))).admitted_pods.keys() > {"r"}


def test_an_admitted_pod_keeps_its_other_gpus_while_one_is_lost():
    allocation_state = admitted(AllocationState.of(GPUS), pod("p", share(A, 7), share(B, 7)))
    lost, conflicts = allocation_state.with_devices(without(A))
    assert [A in one.detail for one in conflicts] == [True]
    assert refusal(admitted, lost, pod("q", share(B, 4))).why is BindRefusal.NO_ROOM
    assert "r" in admitted(lost, pod("r", share(B, 3))).admitted_pods


def test_a_gpu_that_comes_back_is_held_by_whom_it_was():
    allocation_state = admitted(AllocationState.of(GPUS), pod("p", share(A, 7)))
    back, conflicts = allocation_state.with_devices(without(A))[0].with_devices(GPUS)
    assert (back, conflicts) == (allocation_state, ())


def test_a_gpu_that_became_smaller_is_not_allocated_until_its_shares_fit():
    allocation_state = admitted(AllocationState.of(GPUS), pod("p", share(A, 7)))
    smaller = (replace(GPUS[0], memory_bytes=4 * GIB), *GPUS[1:])
    shrunk, conflicts = allocation_state.with_devices(smaller)
    assert len(conflicts) == 1
    assert refusal(admitted, shrunk, pod("q", share(A, 1))).why is BindRefusal.NO_ROOM
    assert shrunk.with_devices(GPUS) == (allocation_state, ())


def test_what_is_used_beside_is_held_too():
    admitted_pod = replace(
        admitted(AllocationState.of(GPUS), pod("p")).admitted_pods["p"], beside=(share(B, 8),)
    )
    allocation_state, conflicts = AllocationState.over(GPUS, (admitted_pod,))
    assert not conflicts
    assert refusal(admitted, allocation_state, pod("q", share(B, 3))).why is BindRefusal.NO_ROOM


# ---------------------------------------------------------------- binding


def test_a_container_is_bound_to_its_own_shares_in_their_order():
    one = made("p", [("main", APP, (share(B, 1), share(A, 2))), ("side", APP, (share(C, 3),))])
    allocation_state = bound(admitted(AllocationState.of(GPUS), one), one, "side", "n2")
    allocation_state = bound(allocation_state, one, "main", "n1")
    assert allocation_state.binding_of(assignment(one, "main", "n1")).devices == (B, A)
    assert allocation_state.binding_of(assignment(one, "side", "n2")).shares == (share(C, 3),)


def test_binding_again_changes_nothing():
    one = pod("p")
    allocation_state = bound(admitted(AllocationState.of(GPUS), one), one)
    assert bound(allocation_state, one, now=99.0) is allocation_state


def test_a_container_that_is_answered_again_keeps_its_shares_and_has_one_binding():
    one = pod("p")
    allocation_state = bound(admitted(AllocationState.of(GPUS), one), one, name="n1")
    ill, _ = allocation_state.with_devices(unhealthy(A))
    allocation_state = bound(ill, one, name="n2")
    assert allocation_state.binding_of(assignment(one, name="n1")) is None
    assert allocation_state.binding_of(assignment(one, name="n2")).shares == (share(A, 2),)
    assert len(allocation_state.admitted_pods["p"].bindings) == 1


def test_a_name_that_another_container_is_bound_to_is_refused():
    allocation_state = AllocationState.of(GPUS)
    for uid in "pq":
        allocation_state = admitted(allocation_state, pod(uid, share(A, 1)))
    allocation_state = bound(allocation_state, pod("p", share(A, 1)), name="n1")
    error = refusal(bound, allocation_state, pod("q", share(A, 1)), "main", "n1")
    assert error.why is BindRefusal.INTERNAL
    assert "team/pod-p main" in str(error)


def test_a_container_without_a_request_is_not_bound():
    one = made("p", [("main", APP, (share(A, 1),)), ("log", APP, ())])
    allocation_state = admitted(AllocationState.of(GPUS), one)
    assert refusal(bound, allocation_state, one, "log").why is BindRefusal.NOT_ASKED
    assert refusal(bound, allocation_state, one, "nobody").why is BindRefusal.NOT_ASKED


def test_more_devices_promised_than_asked_for_are_refused_for_good():
    one = pod("p", share(A, 1), share(B, 1))
    asks_one = replace(one, containers=pod("p", share(A, 1)).containers)
    error = refusal(bound, admitted(AllocationState.of(GPUS), one), asks_one)
    assert (error.why, error.final) == (BindRefusal.OTHER_COUNT, True)


@pytest.mark.parametrize(
    ("devices", "why"),
    [(unhealthy(A), BindRefusal.UNHEALTHY_DEVICE), (without(A), BindRefusal.UNKNOWN_DEVICE)],
)
def test_nobody_begins_on_a_gpu_that_is_ill_or_lost(devices, why):
    one = pod("p")
    allocation_state, _ = admitted(AllocationState.of(GPUS), one).with_devices(devices)
    error = refusal(bound, allocation_state, one)
    assert (error.why, error.final) == (why, False)


def test_a_name_of_nobody_finds_no_binding():
    one = pod("p")
    allocation_state = bound(admitted(AllocationState.of(GPUS), one), one)
    assert allocation_state.binding_of(assignment(one, name="")) is None
    assert allocation_state.binding_of(assignment(pod("q"), name="n1")) is None
    assert allocation_state.binding_of(assignment(one, "other", name="n1")) is None


def test_a_foreign_admitted_pod_is_ours_once_a_container_of_it_is_bound():
    one = pod("p")
    foreign = replace(admitted(AllocationState.of(GPUS), one).admitted_pods["p"], foreign=True)
    allocation_state, _ = AllocationState.over(GPUS, (foreign,))
    assert bound(allocation_state, one).admitted_pods["p"].foreign is False


# ---------------------------------------------------------------- init containers


def test_an_init_container_uses_the_devices_of_the_containers_after_it():
    asked, given = share(B, 2, 20), share(B, 4, 30)
    one = made("p", [("main", APP, (given,)), ("fetch", INIT, (asked,))])
    allocation_state = bound(admitted(AllocationState.of(GPUS), one), one, "fetch")
    assert allocation_state.binding_of(assignment(one, "fetch")).shares == (asked,)
    assert allocation_state.capacity.free(B).memory_bytes == 6 * GIB


@pytest.mark.parametrize("kind", [INIT, SIDECAR])
def test_what_the_containers_after_it_do_not_have_is_promised_to_nobody(kind):
    larger = share(B, 4) if kind is SIDECAR else share(B, 5)
    one = made("p", [("main", APP, (share(B, 4),)), ("fetch", kind, (larger,))])
    assert (
        refusal(bound, admitted(AllocationState.of(GPUS), one), one, "fetch").why
        is BindRefusal.NO_CLAIM
    )


def test_an_init_container_does_not_share_with_a_sidecar():
    """That one runs meanwhile."""
    one = made("p", [("proxy", SIDECAR, (share(A, 4),)), ("fetch", INIT, (share(A, 4),))])
    allocations = (Allocation("proxy", (share(A, 4),), Phase.ASSIGNED),)
    allocation_state = AllocationState.of(GPUS).admitted(one, allocations, 1.0)
    assert refusal(bound, allocation_state, one, "fetch").why is BindRefusal.NO_CLAIM
    assert bound(allocation_state, one, "proxy").binding_of(assignment(one, "proxy"))


# ---------------------------------------------------------------- in any order

_RANDOM = Random(5)


def some_shares(most):
    """Of different GPUs and sizes."""
    return tuple(
        share(_RANDOM.choice((A, B, C)), _RANDOM.randint(1, 6), _RANDOM.choice((0, 10, 60)))
        for _ in range(_RANDOM.randint(1, most))
    )


# Made beforehand, so that a thousand examples are cheap to draw.
claims = st.sampled_from([some_shares(2) for _ in range(400)])
pods = st.sampled_from([pod(uid, *some_shares(3)) for uid in UIDS for _ in range(50)])
devices = st.builds(
    lambda lost, ill: tuple(
        replace(gpu, healthy=gpu.uuid != ill) for gpu in GPUS if gpu.uuid != lost
    ),
    st.sampled_from((A, B, "", "")),
    st.sampled_from((B, C, "", "")),
)
steps = st.lists(st.one_of(pods, st.sampled_from(UIDS), devices), max_size=25)


def walked(todo):
    """A allocation state after these steps: pods come, UIDs leave, tuples are the GPUs from then
    on.
    """
    allocation_state = AllocationState.of(GPUS)
    for now, step in enumerate(todo):
        if isinstance(step, str):
            allocation_state = allocation_state.without(step)
        elif isinstance(step, tuple):
            allocation_state, _ = allocation_state.with_devices(step)
        else:
            try:
                allocation_state = allocation_state.admitted(step, claimed(step), float(now))
            except BindRefused:
                continue
    return allocation_state


@given(steps)
def test_no_gpu_is_allocated_beyond_its_capacity(todo):
    allocation_state = walked(todo)
    for gpu in GPUS:
        held = [
            s
            for t in allocation_state.admitted_pods.values()
            for s in t.shares
            if s.device == gpu.uuid
        ]
        assert sum(s.memory_bytes for s in held) <= gpu.memory_bytes
        assert sum(s.cores_milli for s in held) <= gpu.cores_milli
        assert len(held) <= gpu.slots


@given(steps)
def test_an_allocation_state_of_the_same_pods_is_the_same(todo):
    allocation_state = walked(todo)
    assert (
        AllocationState.over(
            allocation_state.devices, reversed(allocation_state.admitted_pods.values())
        )[0]
        == allocation_state
    )
    assert allocation_state.with_devices(allocation_state.devices)[0] == allocation_state


NEWCOMER = pod("new")
REFUSED_THERE = {BindRefusal.NO_ROOM, BindRefusal.UNKNOWN_DEVICE, BindRefusal.UNHEALTHY_DEVICE}
found_there = st.lists(st.tuples(st.sampled_from(UIDS), claims, st.floats(0, 5)), max_size=8)


@given(found_there, st.lists(st.sampled_from(UIDS), max_size=4), devices)
def test_whoever_holds_gpus_already_the_allocation_state_stays_in_order(found, leavers, there):
    """Also where more is held than there is: then nothing more is allocated, and it heals."""
    admitted_pods = [
        AdmittedPod(
            PodRef(uid, "team", uid), (Allocation("main", of, Phase.ASSIGNED),), since=since
        )
        for uid, of, since in found
    ]
    allocation_state, _ = AllocationState.over(there, admitted_pods)
    for uid in leavers:
        allocation_state = allocation_state.without(uid)
        assert (
            allocation_state
            == AllocationState.over(there, allocation_state.admitted_pods.values())[0]
        )
    for one in {
        one.device
        for uid in allocation_state.unbooked
        for one in allocation_state.admitted_pods[uid].shares
    }:
        newcomer = Allocation("main", (Share(one, 0, 0),), Phase.ASSIGNED)
        assert refusal(allocation_state.admitted, NEWCOMER, (newcomer,), 9.0).why in REFUSED_THERE
    for uid in list(allocation_state.admitted_pods):
        allocation_state = allocation_state.without(uid)
    assert allocation_state == AllocationState.of(there)


# ---------------------------------------------------------------- init containers with shares


def promised(*containers):
    """Allocations as HAMi promises them since 2.9: (name, shares), init containers too."""
    return tuple(Allocation(name, shares, Phase.ASSIGNED) for name, shares in containers)


def with_init(uid, init, main, *, statuses=(), kind=INIT):
    """A pod whose init container and app container were promised so many GiB of A, and these."""
    containers = [("fetch", kind, (share(A, init),)), ("main", APP, (share(A, main),))]
    allocations = promised(("fetch", (share(A, init),)), ("main", (share(A, main),)))
    return replace(made(uid, containers), statuses=statuses), allocations


def succeeded(at):
    return Status(
        "fetch", ContainerState.TERMINATED, kind=INIT, reason="Completed", finished_at=float(at)
    )


def free_gib(allocation_state):
    return allocation_state.capacity.free(A).memory_bytes / GIB


def test_an_init_container_and_the_app_container_after_it_may_each_have_the_whole_gpu():
    allocation_state = AllocationState.of(GPUS).admitted(*with_init("p", 10, 10), 1.0)
    assert free_gib(allocation_state) == 0


def test_a_sidecar_holds_beside_the_app_container():
    error = refusal(AllocationState.of(GPUS).admitted, *with_init("p", 6, 6, kind=SIDECAR), 1.0)
    assert error.why is BindRefusal.NO_ROOM


def test_what_an_init_container_held_is_free_once_it_has_succeeded():
    one, allocations = with_init("p", 8, 3)
    allocation_state = AllocationState.of(GPUS).admitted(one, allocations, 1.0)
    assert free_gib(allocation_state) == 2
    assert refusal(
        allocation_state.admitted, pod("q"), promised(("main", (share(A, 6),))), 2.0
    ).why is (BindRefusal.NO_ROOM)
    assert allocation_state.seen([one], 0) is allocation_state
    ended = replace(one, statuses=(succeeded(100),))
    after = allocation_state.seen([ended], 50)
    assert free_gib(after) == 7
    assert after.seen([one], 50) is after
    admitted_too = after.admitted(pod("q"), promised(("main", (share(A, 6),))), 2.0)
    assert free_gib(admitted_too) == 1


def test_an_init_container_that_succeeded_before_the_node_started_runs_again():
    one, allocations = with_init("p", 8, 3, statuses=(succeeded(100),))
    allocation_state = AllocationState.of(GPUS).admitted(one, allocations, 1.0)
    assert free_gib(allocation_state.seen([one], 101)) == 2


@pytest.mark.parametrize(("second_at", "left_gib"), [(50, 2), (120, 7)])
def test_after_a_boot_the_last_init_container_decides_not_the_first_that_has_run_again(
    second_at, left_gib
):
    """The kubelet shows the old status of those that have yet to run again."""
    containers = [("fetch", INIT, (share(A, 1),)), ("unpack", INIT, (share(A, 8),))]
    one = made("p", [*containers, ("main", APP, (share(A, 3),))])
    allocations = promised(
        ("fetch", (share(A, 1),)), ("unpack", (share(A, 8),)), ("main", (share(A, 3),))
    )
    statuses = (succeeded(110), replace(succeeded(second_at), name="unpack"))
    allocation_state = AllocationState.of(GPUS).admitted(one, allocations, 1.0)
    assert free_gib(allocation_state.seen([replace(one, statuses=statuses)], 100)) == left_gib


@pytest.mark.parametrize(
    "status",
    [
        replace(succeeded(100), reason="Error"),
        replace(succeeded(100), state=ContainerState.RUNNING),
        replace(succeeded(100), name="main", kind=APP),
    ],
    ids=["failed", "runs", "another container"],
)
def test_an_init_container_that_has_not_succeeded_holds(status):
    one, allocations = with_init("p", 8, 3, statuses=(status,))
    assert free_gib(AllocationState.of(GPUS).admitted(one, allocations, 1.0).seen([one], 0)) == 2


def test_a_pod_that_pretends_to_be_a_static_one_releases_nothing():
    static = {MIRROR: "0" * 32}
    one, allocations = with_init("p", 8, 3)
    allocation_state = AllocationState.of(GPUS).admitted(
        replace(one, annotations=static), allocations, 1.0
    )
    other = replace(
        one, ref=PodRef("q", "evil", "pod-q"), annotations=static, statuses=(succeeded(100),)
    )
    assert other.kubelet_uid == "0" * 32
    assert allocation_state.seen([other], 0) is allocation_state


def test_a_pod_of_a_plugin_that_knew_no_kinds_holds_the_sum_until_its_spec_is_seen():
    one, allocations = with_init("p", 4, 4)
    admitted_pod = AdmittedPod(one.ref, tuple(reversed(allocations)), since=1.0)
    allocation_state, conflicts = AllocationState.over(GPUS, [admitted_pod])
    assert not conflicts
    assert free_gib(allocation_state) == 2
    assert free_gib(allocation_state.seen([one], 0)) == 6
