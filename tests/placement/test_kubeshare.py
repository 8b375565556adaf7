"""KubeShare's scheduler, its device manager and Gemini, with the reference's worked numbers."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeshare.gemini_placement import Client, TokenWindow, order, quota
from kubeshare.placement import (
    Demand,
    FreeGpus,
    KubeShareAlgorithm,
    VirtualGpu,
    VirtualGpuChoice,
    occupied,
    place,
)
from vgpu.model.units import GIB, milli
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.schemes.kubeshare.sharepod import Locality


def demand(request, memory=0, affinity="", anti="", exclusion=""):
    return Demand(milli(request), memory, Locality(affinity, anti, exclusion))


def gpu(gpuid, *pods, node="n1", memory=16 * GIB):
    return occupied(node, gpuid, memory, pods)


def free(*nodes, count=1, memory=16 * GIB):
    return [FreeGpus(node, count, memory) for node in nodes]


# ---------------------------------------------------------------- the scheduler

BOTH = pytest.mark.parametrize("policy", KubeShareAlgorithm)


def test_the_paper_packs_pods_without_labels_where_least_is_left():
    gpus = [gpu("a", demand("0.2")), gpu("b", demand("0.6")), gpu("c", demand("0.8"))]
    assert place(demand("0.3"), gpus, free("n1")) == VirtualGpuChoice("n1", "b")


def test_the_paper_leaves_the_gpus_of_labels_for_last_and_takes_the_emptiest():
    red, blue = demand("0.2", affinity="red"), demand("0.5", affinity="blue")
    labelled = [gpu("a", red), gpu("b", blue)]
    assert place(demand("0.3"), labelled, free("n1")) == VirtualGpuChoice("n1", "a")
    plain = gpu("c", demand("0.1"))
    assert place(demand("0.3"), [*labelled, plain], free("n1")) == VirtualGpuChoice("n1", "c")


def test_the_paper_prefers_a_gpu_in_reserve_to_a_new_one():
    gpus = [gpu("a", demand("0.9")), gpu("idle")]
    assert place(demand("0.3"), gpus, free("n1")) == VirtualGpuChoice("n1", "idle")
    assert place(demand("0.3"), gpus[:1], free("n1")) == VirtualGpuChoice("n1", None)


@BOTH
def test_affinity_joins_the_gpu_of_its_label(policy):
    gpus = [gpu("a", demand("0.2", affinity="red")), gpu("b", demand("0.5"))]
    assert place(demand("0.3", affinity="red"), gpus, free("n1"), policy) == VirtualGpuChoice(
        "n1", "a"
    )


def test_affinity_with_a_full_gpu_waits_in_the_paper_and_opens_another_in_the_code():
    full = gpu("a", demand("0.8", affinity="red"))
    red = demand("0.3", affinity="red")
    assert place(red, [full], free("n1")).reason is PlacementReason.AFFINITY
    assert place(red, [full], free("n1"), KubeShareAlgorithm.KUBESHARE_1) == VirtualGpuChoice(
        "n1", None
    )


@BOTH
def test_the_first_of_its_label_starts_on_a_gpu_of_its_own(policy):
    gpus = [gpu("a", demand("0.2"))]
    assert place(demand("0.3", affinity="red"), gpus, free("n1"), policy) == VirtualGpuChoice(
        "n1", None
    )


@BOTH
def test_anti_affinity_keeps_pods_of_one_label_apart(policy):
    gpus = [gpu("a", demand("0.2", anti="green")), gpu("b", demand("0.1"))]
    assert place(demand("0.3", anti="green"), gpus, free("n1"), policy) == VirtualGpuChoice(
        "n1", "b"
    )
    assert place(demand("0.3", anti="brown"), gpus, free("n1"), policy) == VirtualGpuChoice(
        "n1", "a"
    )


@BOTH
def test_exclusion_admits_only_its_own_label(policy):
    blue, red, plain = (demand("0.2", exclusion=label) for label in ("blue", "red", ""))
    only_blue = [gpu("a", blue)]
    assert place(blue, only_blue, free("n1"), policy) == VirtualGpuChoice("n1", "a")
    for other in (red, plain):
        assert place(other, only_blue, free("n1"), policy) == VirtualGpuChoice("n1", None)
    assert place(blue, [gpu("b", plain)], free("n1"), policy) == VirtualGpuChoice("n1", None)


def test_exclusion_sees_every_gpu_of_a_node():
    """The code as meant: upstream the untagged ones after the first survive its filter."""
    untagged = [gpu(name, demand("0.2")) for name in ("a", "b", "c")]
    wish = demand("0.2", exclusion="blue")
    assert place(wish, untagged, free("n1"), KubeShareAlgorithm.KUBESHARE_1) == VirtualGpuChoice(
        "n1", None
    )


@BOTH
def test_memory_is_never_reserved_twice(policy):
    """K3: request 0.5 and 3145728000 B on a GPU of 8 GiB: two to a GPU, by cores."""
    one = demand("0.5", 3145728000)
    half = gpu("a", one, memory=8 * GIB)
    assert place(one, [half], [], policy) == VirtualGpuChoice("n1", "a")
    assert (
        place(one, [gpu("a", one, one, memory=8 * GIB)], [], policy).reason
        is PlacementReason.NO_FITTING_GPU
    )
    assert (
        place(one, [gpu("a", one, memory=4 * GIB)], [], policy).reason
        is PlacementReason.NO_FITTING_GPU
    )


def test_a_gpu_that_is_too_small_gets_no_virtual_gpu_in_the_paper():
    free_gpus = [*free("n1", memory=GIB), *free("n2")]
    assert place(demand("0.5", 2 * GIB), [], free_gpus) == VirtualGpuChoice("n2", None)


def test_the_code_takes_the_tightest_fit_of_all_nodes():
    tight = gpu("a", demand("0.6"), node="n1")
    tighter = gpu("b", demand("0.7"), node="n2")
    code = KubeShareAlgorithm.KUBESHARE_1
    assert place(demand("0.3"), [tight, tighter], free("n3"), code) == VirtualGpuChoice("n2", "b")
    assert place(demand("0.5"), [tight, tighter], free("n3"), code) == VirtualGpuChoice("n3", None)


@BOTH
def test_a_virtual_gpu_that_is_there_comes_before_a_new_one(policy):
    unused = gpu("a", demand("0"))
    assert place(demand("0.3"), [unused], free("n1"), policy) == VirtualGpuChoice("n1", "a")


def test_the_code_ignores_labels_in_its_score():
    gpus = [gpu("a", demand("0.6", affinity="red")), gpu("b", demand("0.2"))]
    assert place(demand("0.3"), gpus, [], KubeShareAlgorithm.KUBESHARE_1) == VirtualGpuChoice(
        "n1", "a"
    )
    assert place(demand("0.3"), gpus, []) == VirtualGpuChoice("n1", "b")


@BOTH
def test_without_room_anywhere_the_answer_is_kubeshares(policy):
    answer = place(demand("0.3"), [gpu("a", demand("0.8"))], free("n1", count=0), policy)
    assert answer == PlacementRefusal(
        PlacementReason.NO_FITTING_GPU, "No enough resources for SharePod"
    )


@BOTH
def test_a_gpu_of_exactly_the_requested_memory_is_enough(policy):
    assert place(demand("0.3", 16 * GIB), [], free("n1"), policy) == VirtualGpuChoice("n1", None)


labels = st.sampled_from(["", "", "red", "blue"])
demands = st.builds(
    lambda request, memory, *wishes: Demand(request, memory, Locality(*wishes)),
    st.integers(1, 10).map(lambda tenths: tenths * 100),
    st.integers(0, 4),
    labels,
    labels,
    labels,
)


@given(
    st.lists(demands, max_size=12),
    st.sampled_from(KubeShareAlgorithm),
    st.randoms(use_true_random=False),
)
def test_no_gpu_is_reserved_twice_and_no_wish_is_broken(pods, policy, random):
    free_gpus = {"n1": 2, "n2": 1}
    tenants = {}
    for number, pod in enumerate(pods):
        gpus = [occupied(node, gpuid, 8, held) for (node, gpuid), held in tenants.items()]
        frees = [FreeGpus(node, count, 8) for node, count in free_gpus.items()]
        answer = place(pod, gpus, frees, policy)
        random.shuffle(gpus)
        random.shuffle(frees)
        assert place(pod, gpus, frees, policy) == answer
        if isinstance(answer, VirtualGpuChoice):
            if answer.gpuid is None:
                free_gpus[answer.node] -= 1
            key = answer.node, answer.gpuid or f"gpu{number}"
            tenants.setdefault(key, []).append(pod)
    assert min(free_gpus.values()) >= 0
    for held in tenants.values():
        assert sum(pod.request_milli for pod in held) <= 1000
        assert sum(pod.memory_bytes for pod in held) <= 8
        assert len({pod.locality.exclusion for pod in held}) == 1
        apart = [pod.locality.anti_affinity for pod in held if pod.locality.anti_affinity]
        assert len(set(apart)) == len(apart)
    for label in ("red", "blue") if policy is KubeShareAlgorithm.PAPER else ():
        homes = [
            held for held in tenants.values() if any(pod.locality.affinity == label for pod in held)
        ]
        assert len(homes) <= 1


@given(st.lists(demands, max_size=6), demands, st.sampled_from(KubeShareAlgorithm))
def test_a_pod_that_fits_nowhere_really_fits_nowhere(held, pod, policy):
    gpus = [occupied("n1", f"gpu{number}", 8, [one]) for number, one in enumerate(held)]
    answer = place(pod, gpus, [], policy)
    refused = isinstance(answer, PlacementRefusal)
    if refused and answer.reason is PlacementReason.NO_FITTING_GPU and pod.locality == Locality():
        assert all(
            one.free_milli < pod.request_milli or one.free_bytes < pod.memory_bytes or one.exclusion
            for one in gpus
        )


# ---------------------------------------------------------------- the device manager


@pytest.mark.parametrize(
    "requests",
    [
        ["0.2", "0.4", "0.3", "0.1"],
        ["0.4", "0.2", "0.3", "0.1"],
        ["0.05"] * 20,
        ["0.04"] * 25,
        ["0.02"] * 50,
        ["0.01"] * 100,
        ["0.1"] * 10,
        ["0.25"] * 4,
        ["0.2"] * 5,
    ],
    ids=lambda requests: "+".join(requests[:4]),
)
def test_requests_that_make_a_whole_gpu_all_fit(requests):
    """K6, by the placement; by the controllers in tests/kubeshare."""
    pods = [demand(request) for request in requests]
    for number, pod in enumerate(pods):
        assert place(pod, [gpu("a", *pods[:number])], []) == VirtualGpuChoice("n1", "a")


# ---------------------------------------------------------------- Gemini

MS = 1000
"""Microseconds."""


def test_a_quota_is_between_the_least_and_the_limits_part_of_the_window():
    """K5: limit 0.8, window 10000: clamped to 100 … 8000 ms."""
    for burst, previous, expected in (
        (0, 5000, 250),
        (1, 1, 100),
        (100, 300, 200),
        (9000, 9000, 8000),
        (20000, 250, 8000),
    ):
        assert quota(burst * MS, previous * MS, 800) == expected * MS


def test_a_limit_below_the_least_quota_decides():
    assert quota(1, 1, 5) == 50 * MS


def test_the_client_that_misses_most_of_its_request_goes_first():
    """K5: missing = request x window - use, by its part of the request."""
    half = Client("half", 500, 1000, 4000 * MS)  # misses 1000 of 5000
    most = Client("most", 800, 1000, 6000 * MS)  # misses 2000 of 8000
    assert [client.name for client in order([half, most])] == ["most", "half"]


def test_after_their_requests_the_least_user_goes_first_and_the_limit_ends_it():
    sated = Client("sated", 100, 1000, 3000 * MS)
    frugal = Client("frugal", 100, 1000, 2000 * MS)
    spent = Client("spent", 900, 900, 9000 * MS)
    hungry = Client("hungry", 500, 500, 4999 * MS)
    waiting = order([sated, frugal, spent, hungry])
    assert [client.name for client in waiting] == ["hungry", "frugal", "sated"]


def test_a_client_that_has_exactly_its_request_misses_nothing_of_it():
    even = Client("even", 300, 1000, 3000 * MS)
    frugal = Client("frugal", 100, 1000, 2000 * MS)
    assert [client.name for client in order([even, frugal])] == ["frugal", "even"]


def test_equal_clients_keep_their_order():
    twins = [Client(name, 500, 1000, 0) for name in "ba"]
    assert order(twins) == tuple(twins)
    assert order([]) == ()


clients = st.builds(
    lambda request, more, used: Client("c", request, min(1000, request + more), used),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(0, 12_000_000),
)


@given(st.lists(clients, max_size=6))
def test_the_order_is_by_exact_fractions_and_leaves_out_who_is_spent(some):
    window = TokenWindow()
    ranked = order(some, window)
    assert sorted(ranked, key=id) == sorted(
        (one for one in some if one.used * 1000 < one.limit_milli * window.length), key=id
    )
    missing = [
        Fraction(one.request_milli * window.length - one.used * 1000, one.request_milli or 1)
        for one in ranked
    ]
    hungry = [part for part in missing if part > 0]
    assert missing[: len(hungry)] == sorted(hungry, reverse=True)
    rest = [one.used for one in ranked[len(hungry) :]]
    assert rest == sorted(rest)


@given(st.integers(0, 10**8), st.integers(0, 10**8), st.integers(0, 1000))
def test_a_quota_never_passes_the_limit(burst, previous, limit):
    quota_ = quota(burst, previous, limit)
    assert quota_ == 250 * MS or quota_ <= limit * 10 * MS


def test_virtual_gpus_are_described_by_the_pods_on_them():
    pods = demand("0.2", 3, "red"), demand("0.3", 4, "", "green", "blue")
    assert occupied("n1", "a", 10, pods) == VirtualGpu(
        "n1", "a", 500, 3, frozenset({"red"}), frozenset({"green"}), frozenset({"blue"})
    )
    assert occupied("n1", "a", 10, []) == VirtualGpu("n1", "a", 1000, 10, idle=True)
