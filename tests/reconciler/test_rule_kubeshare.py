"""Holder pods that nobody needs, and SharePods that their device manager has abandoned."""

import itertools

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, Edit, Evict, ObjectKind, UnusedGuard
from reconciler.plan import make_plan
from reconciler.policy import Mode, Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.kubeshare import kubeshare
from tests.reconciler.samples import (
    CODECS_IN_USE,
    HOUR,
    NOW,
    ended,
    holder,
    pod,
    real_pod,
    replace,
    share_pod,
    snapshot,
    terminating,
)
from vgpu.model.names import Phase, PodRef
from vgpu.model.objects import (
    BOUND_DEVICE,
    BOUND_REASON,
    SHARE_POD,
    Container,
    ContainerState,
    Status,
)
from vgpu.schemes.kubeshare.node import HOLDER_UUID, KEEP_IDLE
from vgpu.schemes.kubeshare.sharepod import GPUID, PREFIX

APPLY = Policy(modes={Rule.KUBESHARE: Mode.APPLY})
REQUEST = f"{PREFIX}gpu_request"


def find(*objects, **fields):
    return list(kubeshare(ClusterIndex(snapshot(*objects, **fields), CODECS_IN_USE), Policy()))


def only(*objects):
    (finding,) = find(*objects)
    return finding


# ---------------------------------------------------------------- holders


def test_a_holder_without_a_share_pod_is_evicted_and_frees_its_gpu():
    keeper = holder()
    finding = only(keeper)
    assert (finding.rule, finding.cause) == (Rule.KUBESHARE, Cause.ORPHANED_HOLDER)
    guards = (UnusedGuard("gpu-1", "abcde"),)
    assert finding.action == Evict(keeper.ref, keeper.resource_version, guards)
    assert (finding.effect, finding.since) == (Effect.RECOVERY, None)
    assert finding.grace == Policy().ages.orphan
    assert (finding.object_ref.kind, finding.object_ref.uid) == (ObjectKind.POD, keeper.ref.uid)
    assert "abcde" in finding.evidence[0]


@pytest.mark.parametrize("name", ["kubeshare-vgpu-gpu-1-abcde", "kubeshare-dummypod-gpu-1-abcde"])
def test_a_holder_is_known_by_its_name_where_it_has_no_labels(name):
    keeper = holder()
    ref = PodRef(keeper.ref.uid, "kube-system", name)
    assert only(replace(keeper, labels={}, ref=ref)).cause is Cause.ORPHANED_HOLDER


@pytest.mark.parametrize(
    "user",
    [
        share_pod(),
        share_pod(served=False, bound=False),
        replace(share_pod(served=False, bound=False), node=""),
        ended(share_pod(restart_policy="Always"), "Failed"),
        ended(share_pod(restart_policy="OnFailure"), "Failed"),
        terminating(share_pod()),
        real_pod(share_pod()),
    ],
    ids=["served", "waiting", "unbound", "failed", "retried", "terminating", "its pod alone"],
)
def test_a_holder_that_somebody_needs_is_not_found(user):
    assert find(holder(), user) == []


@pytest.mark.parametrize(
    "user",
    [
        share_pod(gpuid="other"),
        replace(share_pod(), node="gpu-2"),
        ended(share_pod(restart_policy="OnFailure")),
        ended(share_pod(restart_policy="Never"), "Failed"),
        ended(real_pod(share_pod())),
    ],
    ids=["other GPU", "other node", "done", "failed for good", "its ended pod alone"],
)
def test_a_share_pod_that_does_not_use_the_gpu_does_not_keep_its_holder(user):
    found = [each for each in find(holder(), user) if each.cause is Cause.ORPHANED_HOLDER]
    assert len(found) == 1


@pytest.mark.parametrize(
    "limits",
    [
        ({},),
        ({"nvidia.com/gpu": 2},),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1},),
        ({"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 1}),
    ],
)
def test_a_pod_that_asks_for_anything_but_one_gpu_is_no_holder_of_kubeshares(limits):
    containers = tuple(Container(f"c{at}", one) for at, one in enumerate(limits))
    assert find(replace(holder(), containers=containers)) == []


def test_a_holder_elsewhere_or_of_no_gpu_or_that_has_ended_is_not_found():
    keeper = holder()
    elsewhere = replace(keeper, ref=PodRef("u", "ml", keeper.ref.name))
    nameless = replace(
        keeper,
        ref=PodRef("u", "kube-system", "kubeshare-vgpu-x"),
        labels={f"{PREFIX}role": "dummyPod"},
    )
    assert find(elsewhere) == find(nameless) == find(ended(keeper, "Failed")) == []


def test_without_all_share_pods_nothing_is_found():
    objects = (holder(), share_pod("stuck", served=False, gpuid="ghost", bound=False))
    assert find(*objects, complete=frozenset({Coverage.PODS, Coverage.NODES})) == []


def test_the_plan_evicts_an_orphan_only_after_it_was_one_in_every_look_of_the_grace():
    keeper, user = holder(), share_pod()
    plan, memory = make_plan(snapshot(keeper), APPLY, ReconcilerState(), CODECS_IN_USE)
    assert [entry.skip for entry in plan.skipped] == [SkipReason.TOO_YOUNG]
    _, memory = make_plan(snapshot(keeper, user), APPLY, memory, CODECS_IN_USE)
    plan, memory = make_plan(snapshot(keeper, now=NOW + HOUR), APPLY, memory, CODECS_IN_USE)
    assert [entry.skip for entry in plan.skipped] == [SkipReason.TOO_YOUNG]
    plan, _ = make_plan(snapshot(keeper, now=NOW + 2 * HOUR), APPLY, memory, CODECS_IN_USE)
    assert [entry.finding.object_ref.uid for entry in plan.actions] == [keeper.ref.uid]
    plan, _ = make_plan(snapshot(keeper, now=NOW + 2 * HOUR), Policy(), memory, CODECS_IN_USE)
    assert [entry.skip for entry in plan.skipped] == [SkipReason.RULE_MODE_PLAN]


# ---------------------------------------------------------------- stuck


def sharers(requests, *, gpuid="abcde"):
    """SharePods of one virtual GPU in this order; the last one has no pod."""
    last = len(requests) - 1
    return [
        share_pod(
            f"share-{at}",
            gpuid=gpuid,
            served=at < last,
            bound=at < last,
            annotations={REQUEST: request},
            age=HOUR - at,
        )
        for at, request in enumerate(requests)
    ]


EXACT = [
    ("0.2", "0.4", "0.3", "0.1"),
    ("0.4", "0.2", "0.3", "0.1"),
    ("0.05",) * 20,
    ("0.04",) * 25,
    ("0.02",) * 50,
    ("0.01",) * 100,
]


@pytest.mark.parametrize("requests", EXACT, ids=lambda requests: f"{len(requests)}x{requests[-1]}")
def test_decimals_that_fit_but_not_in_floating_point_are_placed_again(requests):
    pods = sharers(requests)
    finding = only(holder(), *pods)
    stuck = pods[-1]
    assert (finding.cause, finding.effect) == (Cause.FLOAT_SUM, Effect.RECOVERY)
    assert finding.grace == Policy().ages.assumed
    assert finding.object_ref.kind is ObjectKind.SHARE_POD
    assert finding.action == Edit(
        finding.object_ref, stuck.resource_version, {GPUID: "abcde"}, {GPUID: None}, unbind="gpu-1"
    )
    assert any("= 1.0, but 1.0000000000000" in line for line in finding.evidence)


@pytest.mark.parametrize("requests", [("0.1",) * 10, ("0.25",) * 4, ("0.2",) * 5])
def test_decimals_that_fit_in_floating_point_too_wait_for_something_else(requests):
    assert find(holder(), *sharers(requests)) == []


@pytest.mark.parametrize("requests", [("0.05",) * 21, ("0.5", "0.6"), ("0.2", "0.4", "0.3", "0.2")])
def test_what_does_not_fit_is_refused_rightly(requests):
    assert find(holder(), *sharers(requests)) == []


def test_a_share_pod_that_has_its_pod_is_not_stuck():
    *served, stuck = sharers(EXACT[0])
    assert find(holder(), *served, stuck, real_pod(stuck)) == []
    marked = replace(stuck, annotations=stuck.annotations | {SHARE_POD: "made"})
    assert find(holder(), *served, marked) == []


def test_a_share_pod_whose_virtual_gpu_has_no_holder_is_placed_again():
    stuck = share_pod("stuck", gpuid="ghost", served=False, bound=False)
    finding = only(stuck)
    assert finding.cause is Cause.VANISHED_GPUID
    assert (finding.action.before, finding.action.after) == ({GPUID: "ghost"}, {GPUID: None})
    assert (finding.action.unbind, finding.grace) == ("gpu-1", Policy().ages.assumed)
    elsewhere = holder(node="gpu-2", gpuid="ghost")
    causes = [each.cause for each in find(stuck, elsewhere)]
    assert Cause.VANISHED_GPUID in causes


def test_a_holder_in_any_phase_is_one_and_so_may_be_one_that_cannot_be_read():
    stuck = share_pod("stuck", gpuid="ghost", served=False, bound=False)
    nameless = replace(
        holder(),
        ref=PodRef("u", "kube-system", "kubeshare-vgpu-x"),
        labels={f"{PREFIX}role": "dummyPod"},
    )
    assert find(stuck, ended(holder(gpuid="ghost"), "Failed")) == find(stuck, nameless) == []


def test_a_share_pod_of_our_own_controllers_is_theirs_to_place_again():
    stuck = share_pod("stuck", gpuid="ghost", served=False, bound=False)
    assert find(stuck)
    annotations = {**stuck.annotations, BOUND_REASON: "HolderPending"}
    assert find(replace(stuck, annotations=annotations)) == []


def test_a_holder_that_our_own_controllers_may_keep_idle_is_theirs():
    kept = holder()
    assert find(kept)
    assert find(replace(kept, annotations={**kept.annotations, KEEP_IDLE: "true"})) == []


@pytest.mark.parametrize("held", ["", "GPU-one"])
def test_share_pods_of_one_virtual_gpu_on_two_gpus_are_reported(held):
    one, two = (share_pod(name, gpuid="abcde") for name in ("one", "two"))
    one = replace(one, annotations={**one.annotations, BOUND_DEVICE: "GPU-one"})
    two = replace(two, annotations={**two.annotations, BOUND_DEVICE: "GPU-two"})
    keeper = holder()
    keeper = replace(keeper, annotations={**keeper.annotations, HOLDER_UUID: held})
    findings = [each for each in find(keeper, one, two) if each.cause is Cause.SPLIT_VIRTUAL_GPU]
    names = [each.object_ref.name for each in findings]
    assert names == (["two"] if held else ["one", "two"])
    assert all(each.action is None for each in findings)
    assert "GPU-one" in findings[-1].evidence[1]


def test_a_share_pod_that_is_not_placed_waits_for_its_scheduler():
    fresh = share_pod("fresh", served=False, bound=False)
    without = {key: text for key, text in fresh.annotations.items() if key != GPUID}
    assert find(replace(fresh, annotations=without)) == find(replace(fresh, node="")) == []


def test_a_share_pod_that_is_over_needs_no_gpu_any_more():
    stuck = share_pod("stuck", gpuid="ghost", served=False, bound=False, restart_policy="Never")
    assert find(ended(stuck)) == []


def test_a_name_that_its_user_chose_is_not_taken_away():
    finding = only(share_pod("stuck", gpuid="my-gpu", served=False, bound=False))
    assert (finding.cause, finding.action) == (Cause.VANISHED_GPUID, None)


def test_the_plan_places_a_stuck_share_pod_again_after_its_grace():
    stuck = share_pod("stuck", gpuid="ghost", served=False, bound=False)
    _, memory = make_plan(snapshot(stuck), APPLY, ReconcilerState(), CODECS_IN_USE)
    plan, _ = make_plan(snapshot(stuck, now=NOW + HOUR), APPLY, memory, CODECS_IN_USE)
    assert [entry.finding.object_ref.uid for entry in plan.actions] == [stuck.ref.uid]


# ---------------------------------------------------------------- recreated for ever


def test_a_share_pod_that_completes_and_is_started_again_is_reported_with_advice():
    done = Status("main", ContainerState.TERMINATED, reason="Completed", restarts=7)
    finding = only(holder(), replace(share_pod(), statuses=(done,)))
    assert (finding.cause, finding.action) == (Cause.COMPLETED_FOR_EVER, None)
    assert finding.object_ref.kind is ObjectKind.SHARE_POD
    assert "7 times" in finding.evidence[0]
    assert "OnFailure" in finding.evidence[-1]
    made = replace(real_pod(share_pod()), statuses=(done,))
    assert only(holder(), share_pod(), made).cause is Cause.COMPLETED_FOR_EVER


def test_a_share_pod_that_backs_off_after_completion_is_reported_too():
    backing_off = Status(
        "main", ContainerState.WAITING, reason="CrashLoopBackOff", last_reason="Completed"
    )
    found = only(holder(), replace(share_pod(), statuses=(backing_off,)))
    assert found.cause is Cause.COMPLETED_FOR_EVER
    crashing = replace(backing_off, last_reason="Error")
    assert find(holder(), replace(share_pod(), statuses=(crashing,))) == []


@pytest.mark.parametrize("policy", ["OnFailure", "Never"])
def test_a_share_pod_that_may_end_is_let_end(policy):
    done = ended(share_pod(restart_policy=policy))
    assert [each.cause for each in find(holder(), done)] == [Cause.ORPHANED_HOLDER]


def test_a_share_pod_that_fails_is_not_one_that_completes():
    failed = Status("main", ContainerState.TERMINATED, reason="Error", restarts=7)
    assert find(holder(), replace(share_pod(), statuses=(failed,))) == []


def test_healthy_pods_of_kubeshare_and_of_others_are_not_found():
    asked = share_pod()
    assert find(holder(), asked, real_pod(asked), pod(), pod("other", "hami")) == []


# ---------------------------------------------------------------- whatever is there

GPUIDS = st.sampled_from(["abcde", "ghost", "", "\0", "é" * 99])
REQUESTS = st.sampled_from(["0.1", "0.05", "1", "", "x", "1e9", "-1", "0", "999." + "9" * 18])
SHARERS = st.builds(
    lambda at, gpuid, request, served, node, phase, policy: replace(
        share_pod(f"share-{at}", gpuid=gpuid, served=served, bound=served),
        annotations={
            **share_pod(gpuid=gpuid, served=served, bound=served).annotations,
            REQUEST: request,
        },
        node=node,
        phase=phase,
        restart_policy=policy,
    ),
    st.integers(0, 9),
    GPUIDS,
    REQUESTS,
    st.booleans(),
    st.sampled_from(["", "gpu-1", "gpu-2"]),
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    st.sampled_from(["Always", "OnFailure", "Never", "\0"]),
)
HOLDERS = st.builds(
    lambda node, gpuid, bound: replace(holder(node, gpuid), node=node if bound else ""),
    st.sampled_from(["gpu-1", "gpu-2"]),
    GPUIDS,
    st.booleans(),
)


@for_all(st.lists(SHARERS | HOLDERS, max_size=8), st.randoms(use_true_random=False))
def test_whatever_is_there_the_order_does_not_matter_and_nothing_that_is_used_goes(objects, random):
    unique = [*{each.ref.uid: each for each in objects}.values()]
    found = sorted(find(*unique), key=lambda each: (each.object_ref.key, each.cause))
    random.shuffle(unique)
    assert sorted(find(*unique), key=lambda each: (each.object_ref.key, each.cause)) == found
    real = [real_pod(each) for each in unique if SHARE_POD in each.annotations]
    for finding in find(*unique, *real):
        assert finding.evidence
        if finding.cause is Cause.ORPHANED_HOLDER:
            keeper = next(each for each in unique if each.ref.uid == finding.object_ref.uid)
            users = itertools.chain(unique, real)
            assert not any(
                each.annotations.get(GPUID) == keeper.labels[GPUID]
                and each.node == keeper.node
                and each.phase in ("Pending", "Running")
                for each in users
            )
        else:
            assert finding.action is None


def test_promised_but_unserved_is_what_the_samples_say():
    assert share_pod(served=False).annotations[SHARE_POD] == ""
    assert share_pod(claim=Phase.ASSUMED).phase == "Pending"
