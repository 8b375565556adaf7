"""Where Volcano's scheduler would put pods, and how much it likes a node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from vgpu.model.allocation import Allocation, Claim, Device, Request, Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme
from vgpu.model.objects import Pod
from vgpu.model.units import MIB
from vgpu.placement.candidate import CandidateNode, PlacementWishes, PodDemand, UsedGpu, with_shares
from vgpu.placement.hami import HamiDialect
from vgpu.placement.result import UNRESOLVABLE, Placement, PlacementReason
from vgpu.placement.volcano import (
    UPSTREAM,
    SchedulingPolicy,
    SpreadScore,
    VolcanoDialect,
    VolcanoRules,
    volcano_wishes,
)
from vgpu.placement.volcano_mig import Geometry, Instance, choose, slots

POD = PodRef("uid-1", "ml", "train-0")


def with_claims(gpus, held):
    """The GPUs with every share of the claims in use, each with the PodGroup of its pod.

    Volcano's scheduler counts a pod once for each GPU when it rebuilds its allocation records, so
    that it overcommits: that is a defect of its own.
    """
    in_use = tuple(gpus)
    for claim, group in held:
        shares = (share for allocation in claim.allocations for share in allocation.shares)
        in_use = with_shares(in_use, shares, (group,) if group else ())
    return in_use


def gpu(name="GPU-0", memory=100, slots=10, **taken):
    """A GPU; ``memory`` and ``taken['memory']`` in MiB, ``taken['cores']`` in percent."""
    device = Device(name, memory_bytes=memory * MIB, slots=slots, model="NVIDIA L40S")
    if "memory_taken" in taken:
        taken["memory_bytes"] = taken.pop("memory_taken") * MIB
    if "cores" in taken:
        taken["cores_milli"] = taken.pop("cores") * 10
    return UsedGpu(device, **taken)


def ask(memory=None, cores=0, count=1, container="c", **more):
    """Memory in MiB, cores in percent."""
    return Request(
        container,
        count,
        memory_bytes=None if memory is None else memory * MIB,
        cores_milli=cores * 10,
        **more,
    )


def put(request, *gpus, mode="hami-core", wanted=None, **options):
    node = CandidateNode("n1", gpus, mode)
    requests = request if isinstance(request, tuple) else (request,)
    demand = PodDemand(POD, requests, wanted or PlacementWishes())
    return VolcanoDialect(**options).choose(demand, node)


def chosen(result):
    """The devices of each container."""
    return [[share.device for share in each.shares] for each in result.allocations]


THREE = (
    gpu("GPU-0", memory_taken=10, users=3),
    gpu("GPU-1", memory_taken=30, users=1),
    gpu("GPU-2", memory_taken=20, users=2),
)


# ---------------------------------------------------------------- order


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (SchedulingPolicy.BINPACK, ["GPU-1", "GPU-2", "GPU-0"]),
        (SchedulingPolicy.SPREAD, ["GPU-1", "GPU-2", "GPU-0"]),
        (SchedulingPolicy.NONE, ["GPU-2", "GPU-1", "GPU-0"]),
    ],
)
def test_gpus_are_tried_in_the_policys_order(policy, order):
    assert chosen(put(ask(1, count=3), *THREE, policy=policy)) == [order]


@pytest.mark.parametrize("policy", [SchedulingPolicy.BINPACK, SchedulingPolicy.SPREAD])
def test_among_equals_the_first_gpu_is_tried_first(policy):
    gpus = [gpu(f"GPU-{number}") for number in range(3)]
    assert chosen(put(ask(1), *gpus, policy=policy)) == [["GPU-0"]]


def test_spread_and_binpack_differ_where_users_and_memory_differ():
    gpus = (gpu("GPU-0", memory_taken=50, users=1), gpu("GPU-1", memory_taken=10, users=2))
    assert chosen(put(ask(1), *gpus, policy=SchedulingPolicy.BINPACK)) == [["GPU-0"]]
    assert chosen(put(ask(1), *gpus, policy=SchedulingPolicy.SPREAD)) == [["GPU-0"]]
    turned = (gpus[0], structs.replace(gpus[1], users=0))
    assert chosen(put(ask(1), *turned, policy=SchedulingPolicy.BINPACK)) == [["GPU-0"]]
    assert chosen(put(ask(1), *turned, policy=SchedulingPolicy.SPREAD)) == [["GPU-1"]]


def test_each_container_is_placed_on_what_those_before_it_left():
    requests = (ask(60, container="a"), ask(60, container="b"), ask(40, container="c"))
    result = put(requests, gpu("GPU-0"), gpu("GPU-1"), policy=SchedulingPolicy.BINPACK)
    assert chosen(result) == [["GPU-0"], ["GPU-1"], ["GPU-0"]]
    assert [each.memory_bytes // MIB for each in result.gpus] == [100, 60]
    assert [each.users for each in result.gpus] == [2, 1]


def test_the_choice_is_what_the_annotations_will_say():
    result = put(ask(60, cores=30, count=2, container="train"), gpu("GPU-0"), gpu("GPU-1"))
    shares = (Share("GPU-1", 60 * MIB, 300), Share("GPU-0", 60 * MIB, 300))
    assert result.allocations == (Allocation("train", shares, Phase.ASSUMED),)


def test_init_containers_are_not_looked_at():
    setup = ask(10**6, count=5, container="setup", kind=ContainerKind.INIT)
    assert [each.container for each in put((ask(1), setup), gpu()).allocations] == ["c"]


# ---------------------------------------------------------------- GPUs that are skipped


@pytest.mark.parametrize(
    ("request_", "only", "wanted", "skip"),
    [
        (ask(1), gpu(slots=2, users=2), PlacementWishes(), PlacementReason.SLOTS),
        (ask(11), gpu(memory_taken=90), PlacementWishes(), PlacementReason.MEMORY),
        (ask(1, cores=50), gpu(cores=60, users=1), PlacementWishes(), PlacementReason.CORES),
        (ask(1, cores=101), gpu(), PlacementWishes(), PlacementReason.CORES),
        (ask(1, cores=100), gpu(users=1), PlacementWishes(), PlacementReason.EXCLUSIVE),
        (ask(1), gpu(cores=100, users=1), PlacementWishes(), PlacementReason.EXCLUSIVELY_USED),
        (ask(1), gpu(), PlacementWishes(use_types=("A100",)), PlacementReason.TYPE),
        (ask(1), gpu(), PlacementWishes(avoid_types=("t4", "l40")), PlacementReason.TYPE),
        (
            ask(1),
            gpu(),
            PlacementWishes(use_types=("nvidia-",), avoid_types=("L40S",)),
            PlacementReason.TYPE,
        ),
        (ask(1), gpu(), PlacementWishes(use_uuids=("GPU-9",)), PlacementReason.UUID),
        (ask(1), gpu(), PlacementWishes(avoid_uuids=("GPU-0",)), PlacementReason.UUID),
        (
            ask(1),
            gpu(groups=frozenset({"ml/job"})),
            PlacementWishes(groups=("ml/job",), apart=("ml/job",)),
            PlacementReason.POD_GROUP,
        ),
        (
            ask(1),
            UsedGpu(Device("GPU-0", slots=1, memory_bytes=MIB, healthy=False)),
            PlacementWishes(),
            PlacementReason.UNHEALTHY,
        ),
    ],
)
def test_a_gpu_is_passed_over_with_its_reason(request_, only, wanted, skip):
    refused = put(request_, only, wanted=wanted)
    assert refused.skipped == (("GPU-0", skip),)
    assert refused.container == "c"
    fine = gpu("GPU-1")
    if skip not in (PlacementReason.TYPE, PlacementReason.UUID) and request_.cores_milli <= 1000:
        assert chosen(put(request_, fine, only, wanted=wanted)) == [["GPU-1"]]


@pytest.mark.parametrize(
    ("request_", "only", "wanted"),
    [
        (ask(10), gpu(memory_taken=90), PlacementWishes()),
        (ask(1, cores=40), gpu(cores=60, users=1), PlacementWishes()),
        (ask(1, cores=100), gpu(), PlacementWishes()),
        (ask(1), gpu(cores=99, users=1), PlacementWishes()),
        (ask(1), gpu(slots=3, users=2), PlacementWishes()),
        (ask(1), gpu(), PlacementWishes(use_types=("A100", "l40s"))),
        (ask(1), gpu(), PlacementWishes(use_types=("nvidia-",), avoid_types=("A100",))),
        (ask(1), gpu(), PlacementWishes(avoid_types=("A100",))),
        (ask(1), gpu(), PlacementWishes(use_uuids=("GPU-1", "GPU-0"))),
        (ask(1), gpu(groups=frozenset({"ml/job"})), PlacementWishes(groups=("ml/job",))),
        (
            ask(1),
            gpu(groups=frozenset({"ml/job"})),
            PlacementWishes(groups=("other/job",), apart=("other/job",)),
        ),
    ],
)
def test_a_gpu_that_just_fits_is_taken(request_, only, wanted):
    assert chosen(put(request_, only, wanted=wanted)) == [["GPU-0"]]


def test_containers_of_one_pod_may_share_a_gpu_that_their_group_must_not():
    wanted = PlacementWishes(groups=("ml/job",), apart=("ml/job",))
    result = put((ask(1, container="a"), ask(1, container="b")), gpu(), wanted=wanted)
    assert chosen(result) == [["GPU-0"], ["GPU-0"]]
    refused = put(ask(1), *result.gpus, wanted=wanted)
    assert refused.skipped == (("GPU-0", PlacementReason.POD_GROUP),)


def test_the_scheduler_itself_avoids_no_type_where_types_to_use_are_named():
    """Volcano's ``checkGPUtype`` (v1.15.1, ``utils.go:220``) returns before it reads the second."""
    wanted = PlacementWishes(use_types=("L40S",), avoid_types=("L40S",))
    assert chosen(put(ask(1), gpu(), wanted=wanted, rules=UPSTREAM)) == [["GPU-0"]]


def test_the_scheduler_itself_chooses_unhealthy_gpus():
    ill = UsedGpu(Device("GPU-0", memory_bytes=MIB, healthy=False))
    assert chosen(put(ask(1), ill, rules=UPSTREAM)) == [["GPU-0"]]


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("request_", "unit", "memory"),
    [
        (ask(), MIB, 49140),
        (ask(memory_percent=100), MIB, 49140),
        (ask(memory_percent=33), MIB, 16216),
        (ask(memory_percent=33), 10 * MIB, 16210),  # 4914 units, of which 1621
        (ask(1024), MIB, 1024),
    ],
)
def test_a_percentage_is_of_each_gpu_in_whole_units(request_, unit, memory):
    result = put(request_, gpu(memory=49140), unit_bytes=unit)
    assert result.allocations[0].shares[0].memory_bytes == memory * MIB


def test_a_percentage_is_of_each_gpu_by_itself():
    """Older versions took the first GPU's memory for the others too."""
    result = put(ask(memory_percent=50, count=2), gpu("GPU-0", 100), gpu("GPU-1", 40))
    assert [share.memory_bytes // MIB for share in result.allocations[0].shares] == [20, 50]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("request_", "wanted", "reason", "message"),
    [
        (
            ask(1),
            PlacementWishes(mode="mig"),
            PlacementReason.SHARING_MODE,
            "pod required sharing mode mig is not the same as the node mode hami-core",
        ),
        (
            ask(1, count=3),
            PlacementWishes(),
            PlacementReason.TOO_FEW_GPUS,
            "no enough gpu cards on node n1",
        ),
        (
            ask(1),
            PlacementWishes(use_uuids=("GPU-7", "GPU-8"), avoid_uuids=("GPU-{}",)),
            PlacementReason.UUID,
            (
                'no GPU matches UUID constraints volcano.sh/vgpu-use-gpuuuid="GPU-7,GPU-8",'
                ' volcano.sh/vgpu-nouse-gpuuuid="GPU-{}" on node n1'
            ),
        ),
        (
            ask(1, count=2),
            PlacementWishes(use_uuids=("GPU-0",)),
            PlacementReason.NO_FITTING_GPU,
            "not enough gpu fitted on this node",
        ),
        (
            ask(101),
            PlacementWishes(),
            PlacementReason.NO_FITTING_GPU,
            "not enough gpu fitted on this node",
        ),
    ],
)
def test_a_node_is_refused_in_the_schedulers_words(request_, wanted, reason, message):
    refused = put(request_, gpu("GPU-0"), gpu("GPU-1"), wanted=wanted)
    assert (refused.reason, refused.message) == (reason, message)


def test_the_container_that_does_not_fit_is_named():
    refused = put((ask(60, container="a"), ask(60, container="b")), gpu())
    assert (refused.container, refused.skipped) == ("b", (("GPU-0", PlacementReason.MEMORY),))


# ---------------------------------------------------------------- scores


@pytest.mark.parametrize(
    ("policy", "rules", "score"),
    [
        (SchedulingPolicy.BINPACK, VolcanoRules(), 60.0 + 40.0),
        (SchedulingPolicy.BINPACK, VolcanoRules(weight=3), 3 * (60.0 + 40.0)),
        (SchedulingPolicy.SPREAD, VolcanoRules(), 100.0),
        (SchedulingPolicy.SPREAD, VolcanoRules(spread_score=SpreadScore.AFTER), 0.0),
        (SchedulingPolicy.SPREAD, UPSTREAM, 0.0),
        (SchedulingPolicy.NONE, VolcanoRules(), 0.0),
    ],
)
def test_a_node_is_scored_by_the_gpus_that_would_be_taken(policy, rules, score):
    """Binpack counts the memory in use, this pod's included; spread the GPUs that were idle."""
    gpus = (gpu("GPU-0", memory_taken=20, users=1), gpu("GPU-1"))
    result = put(ask(40, count=2), *gpus, policy=policy, rules=rules)
    assert result.preference == score


def test_a_gpu_without_memory_adds_nothing():
    assert put(ask(0), gpu(memory=0), policy=SchedulingPolicy.BINPACK).preference == 0.0


# ---------------------------------------------------------------- allocation records


def test_five_pods_of_a_published_scrape_take_their_allocated_amounts():
    """E5: 5 x 128 units are 640, not the 2048 of the scrape; 50 percent; 5 shares; of 4914."""
    unit = 10 * MIB
    l40s = UsedGpu(Device("GPU-0", memory_bytes=4914 * unit, slots=10))
    claims = [claim(f"uid-{number}", Share("GPU-0", 128 * unit, 100)) for number in range(5)]
    (full,) = with_claims((l40s,), [(each, "") for each in claims])
    assert full.users == 5
    assert full.cores_milli // 10 == 50
    assert full.memory_bytes // unit == 640
    assert full.capacity_bytes // unit == 4914


def test_every_container_of_a_pod_counts():
    """The scheduler counts a pod once for each GPU when it rebuilds its allocation records."""
    two = (Share("GPU-0", 10 * MIB, 100), Share("GPU-0", 20 * MIB, 0))
    (full,) = with_claims((gpu(),), [(claim("uid-1", *two), "ml/job")])
    assert (full.users, full.memory_bytes, full.cores_milli) == (2, 30 * MIB, 100)
    assert full.groups == {"ml/job"}


def test_a_share_without_an_amount_takes_the_whole_memory():
    (full,) = with_claims((gpu(),), [(claim("uid-1", Share("GPU-0")), "")])
    assert full.memory_bytes == 100 * MIB


def test_shares_of_other_gpus_are_left_out():
    gpus = (gpu(),)
    assert with_claims(gpus, [(claim("uid-1", Share("GPU-9", MIB)), "")]) == gpus


def claim(uid, *shares):
    allocation = Allocation("c", shares, Phase.ASSIGNED)
    return Claim(Scheme.VOLCANO, PodRef(uid, "ml", uid), "n1", (allocation,))


# ---------------------------------------------------------------- wishes


def test_wishes_are_read_from_the_pods_annotations():
    pod = Pod(
        POD,
        annotations={
            "volcano.sh/vgpu-mode": "mig",
            "nvidia.com/use-gputype": "A100, H100,",
            "nvidia.com/nouse-gputype": "",
            "volcano.sh/vgpu-use-gpuuuid": "GPU-0",
            "volcano.sh/vgpu-nouse-gpuuuid": ",GPU-1 ,GPU-2",
            "volcano.sh/vgpu-podgroup-policy": "spread",
            "scheduling.k8s.io/group-name": "job",
            "scheduling.volcano.sh/group-name": "other",
        },
    )
    assert volcano_wishes(pod) == PlacementWishes(
        mode="mig",
        use_types=("A100", "H100"),
        use_uuids=("GPU-0",),
        avoid_uuids=("GPU-1", "GPU-2"),
        groups=("ml/job",),
        apart=("ml/job",),
    )


def test_the_newer_group_annotation_counts_where_the_older_is_not_there():
    pod = Pod(POD, annotations={"scheduling.volcano.sh/group-name": "job"})
    assert volcano_wishes(pod) == PlacementWishes(groups=("ml/job",))
    assert volcano_wishes(Pod(POD)) == PlacementWishes()


# ---------------------------------------------------------------- MIG


GROUP1 = Geometry("group1", (Instance("1g.10gb", 10240 * MIB, 7),))
GROUP2 = Geometry(
    "group2", (Instance("2g.20gb", 20480 * MIB, 3), Instance("1g.10gb", 10240 * MIB, 1))
)
"""Two of the A100's, from the scheduler's own documentation."""


def test_slots_are_counted_through_a_geometry():
    """The documentation's example: the 1g.10gb of group2 is at position 3."""
    assert [(slot.position, slot.profile) for slot in slots(GROUP2)] == [
        (0, "2g.20gb"),
        (1, "2g.20gb"),
        (2, "2g.20gb"),
        (3, "1g.10gb"),
    ]


@pytest.mark.parametrize(
    ("used", "memory", "expected"),
    [
        (set(), 5000, ("group1", 0)),
        (set(), 20000, ("group2", 0)),
        (set(), 30000, None),
        ({("group1", 0), ("group1", 2)}, 5000, ("group1", 1)),
        ({("group1", 0)}, 20000, None),
        ({("group2", 0)}, 20000, ("group2", 1)),
        ({("group2", 3)}, 5000, ("group2", 0)),
        ({("group2", 0)}, 5000, ("group2", 3)),  # Volcano would give ("group2", 1)
        ({("group1", number) for number in range(7)}, 1, None),
    ],
)
def test_a_slot_is_the_smallest_that_the_gpu_as_it_is_cut_has_left(used, memory, expected):
    slot = choose((GROUP1, GROUP2), frozenset(used), memory * MIB)
    assert (slot and (slot.group, slot.position)) == expected


def test_a_mig_slot_is_named_and_takes_all_its_memory():
    whole = UsedGpu(Device("GPU-0", memory_bytes=81920 * MIB, slots=7), geometries=(GROUP1, GROUP2))
    requests = (ask(20000, container="a"), ask(5000, container="b"))
    result = put(requests, whole, mode="mig")
    assert chosen(result) == [["GPU-0[group2-0]"], ["GPU-0[group2-3]"]]
    assert [each.shares[0].memory_bytes // MIB for each in result.allocations] == [20000, 5000]
    (cut,) = result.gpus
    assert cut.memory_bytes == (20480 + 10240) * MIB
    claims = [
        (Claim(Scheme.VOLCANO, POD, "n1", result.allocations), ""),
    ]
    assert with_claims((whole,), claims) == (cut,)
    refused = put(ask(40000), cut, mode="mig")
    assert refused.skipped == (("GPU-0", PlacementReason.MIG_SLOT),)


def test_a_slot_of_an_unknown_geometry_takes_its_allocated_amount():
    (full,) = with_claims((gpu(),), [(claim("uid-1", Share("GPU-0[old-1]", 7 * MIB, 0)), "")])
    assert (full.memory_bytes, full.mig_slots) == (7 * MIB, {("old", 1)})


# ---------------------------------------------------------------- properties


gpus_ = st.lists(
    st.builds(
        gpu,
        memory=st.integers(0, 8),
        slots=st.integers(0, 3),
    ),
    max_size=4,
).map(
    lambda gpus: tuple(
        structs.replace(each, device=structs.replace(each.device, uuid=f"GPU-{number}"))
        for number, each in enumerate(gpus)
    )
)
asked_ = st.lists(
    st.builds(
        ask,
        memory=st.none() | st.integers(0, 5),
        cores=st.sampled_from([0, 30, 50, 100]),
        count=st.integers(0, 3),
        memory_percent=st.none() | st.sampled_from([0, 50, 100]),
    ),
    min_size=1,
    max_size=4,
)


@given(gpus_, st.lists(asked_, max_size=5), st.sampled_from(SchedulingPolicy))
def test_no_gpu_is_ever_allocated_beyond_what_it_has(gpus, pods, policy):
    now = gpus
    held = []
    for number, requests in enumerate(pods):
        result = put(tuple(requests), *now, policy=policy)
        if isinstance(result, Placement):
            now = result.gpus
            pod = PodRef(str(number), "ml", str(number))
            held.append((Claim(Scheme.VOLCANO, pod, "n1", result.allocations), ""))
            counts = [len({share.device for share in one.shares}) for one in result.allocations]
            assert counts == [request.count for request in requests]
    for each in now:
        assert each.memory_bytes <= each.capacity_bytes
        assert each.cores_milli <= 1000
        assert each.users <= each.device.slots
    assert with_claims(gpus, held) == now


A_POD_ENDS = PlacementWishes(use_uuids=("GPU-0",)), PlacementWishes(use_types=("L40S",))
OF_TYPE = UsedGpu(Device("GPU-8", memory_bytes=100 * MIB, slots=10, model="T4"))


@pytest.mark.parametrize("dialect", [VolcanoDialect(), HamiDialect()])
@pytest.mark.parametrize(
    ("count", "wanted", "gpus", "cause"),
    [
        (1, A_POD_ENDS[0], (gpu(memory_taken=90), gpu("GPU-1"), gpu("GPU-2")), "memory"),
        (1, A_POD_ENDS[1], (gpu(memory_taken=90), OF_TYPE, OF_TYPE), "memory"),
        (1, A_POD_ENDS[1], (OF_TYPE.with_share(Share("GPU-8", 95 * MIB, 0)),), "type"),
        (2, A_POD_ENDS[0], (gpu(memory_taken=90), gpu("GPU-1", memory_taken=90)), "uuid"),
        (2, A_POD_ENDS[1], (gpu(), OF_TYPE), "type"),
        (1, PlacementWishes(mode="hami-core"), (gpu(memory_taken=90),), "memory"),
    ],
)
def test_what_other_pods_may_free_decides_unless_too_few_gpus_are_left_for_it(
    dialect, count, wanted, gpus, cause
):
    """The largest free amount is that of GPUs which the pod could have."""
    demand = PodDemand(POD, (ask(20, count=count),), wanted)
    refused = dialect.choose(demand, CandidateNode("n1", gpus, "hami-core"))
    assert refused.cause.value == cause
    excluded = [each.free_bytes for each in gpus if dialect.exclusion(each, wanted) is None]
    assert refused.free_bytes == max(excluded, default=None)


def test_a_node_that_could_be_freed_counts_as_such_beside_gpus_that_never_take_the_pod():
    """kube-scheduler preempts no pod on a node whose refusal is unresolvable."""
    sick = UsedGpu(Device("GPU-9", memory_bytes=100 * MIB, slots=10, healthy=False))
    refused = put(ask(20), sick, sick, gpu(memory_taken=90))
    assert refused.cause is PlacementReason.MEMORY
    assert put(ask(20, count=2), sick, sick, gpu(memory_taken=90)).cause in UNRESOLVABLE
