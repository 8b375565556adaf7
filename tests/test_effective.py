"""What a pod holds at its peak, compared with a walk through the containers as the kubelet does."""

from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Allocation, Share, effective, effective_shares
from vgpu.model.names import ContainerKind, Phase

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR

amounts = st.integers(0, 100)
starting = st.lists(st.tuples(st.sampled_from([INIT, SIDECAR]), amounts), max_size=5)
apps = st.lists(st.tuples(st.just(APP), amounts), max_size=4)


def peak_of_a_walk(before, after):
    """Start one container after another, and note the most that runs at a time."""
    running = most = 0
    for kind, amount in before:
        most = max(most, running + amount)
        running += amount if kind is SIDECAR else 0  # an init container has ended by now
    return max(most, running + sum(amount for _, amount in after))


@given(starting, apps)
def test_a_pod_holds_the_most_that_its_containers_have_at_a_time(before, after):
    assert effective([*before, *after]) == peak_of_a_walk(before, after)


@given(starting, apps)
def test_it_is_never_more_than_the_sum_and_never_less_than_any_container(before, after):
    every = [amount for _, amount in (*before, *after)]
    assert max(every, default=0) <= effective([*before, *after]) <= sum(every)


def test_a_sidecar_counts_for_the_init_containers_after_it_only():
    assert effective([(INIT, 12), (SIDECAR, 4), (APP, 6)]) == 12
    assert effective([(SIDECAR, 4), (INIT, 12), (APP, 6)]) == 16


def allocations(*containers):
    return tuple(
        Allocation(str(at), shares, Phase.ASSIGNED, kind)
        for at, (kind, shares) in enumerate(containers)
    )


def test_each_device_has_a_peak_of_its_own_in_memory_cores_and_shares():
    held = effective_shares(
        allocations(
            (INIT, (Share("a", 9, 100), Share("b", 1, 100))),
            (APP, (Share("a", 4, 300),)),
            (APP, (Share("a", 3, 0),)),
        )
    )
    assert held == (Share("a", 9, 300), Share("a", 0, 0), Share("b", 1, 100))


def test_two_shares_of_one_container_are_held_together():
    held = effective_shares(allocations((INIT, (Share("a", 4, 0), Share("a", 4, 0))), (APP, ())))
    assert held == (Share("a", 8, 0), Share("a", 0, 0))


def test_a_share_without_a_size_is_the_whole_device_whenever_its_container_runs():
    held = effective_shares(allocations((INIT, (Share("a"),)), (APP, (Share("a", 4, 0),))))
    assert held == (Share("a", None, 0),)


def test_where_no_container_ends_before_the_others_the_shares_are_the_containers_own():
    shares = (Share("a", 1, None), Share("a", 2, 0), Share("b"))
    assert effective_shares(allocations((SIDECAR, shares[:1]), (APP, shares[1:]))) == shares
