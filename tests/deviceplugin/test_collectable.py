"""Who may leave: nobody whose containers may still run, and nobody who is only not known yet."""

from functools import partial

import pytest

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.ended_pods import (
    ALONE_SECONDS,
    GRACE_SECONDS,
    MOMENT_SECONDS,
    Alone,
    EndedPods,
    collectable,
    over,
)
from deviceplugin.recovery.node_probe import pods_with_cgroup
from tests.deviceplugin.allocation_values import (
    GPUS,
    A,
    claimed,
    pod,
    replace,
    running,
    share,
)
from vgpu.model.objects import MIRROR, Container, ContainerState, Status

NOW = 1000.0
P = frozenset({"p"})
NOBODY = frozenset()


def state_of(one, since=0.0):
    return AllocationState.of(GPUS).admitted(one, claimed(one), since)


PENDING = pod("p", share(A, 2))
RUNNING = running(PENDING)
SUCCEEDED = replace(
    RUNNING, phase="Succeeded", statuses=(Status("main", ContainerState.TERMINATED),)
)
REFUSED = replace(PENDING, phase="Failed")
GIVEN_UP = replace(RUNNING, phase="Failed")
ENDING = replace(RUNNING, deleted_at=900.0)
ENDED = replace(SUCCEEDED, phase="Running", deleted_at=900.0)


def has_left(pods, live, assigned=None, since=0.0, shown=NOBODY):
    return collectable(state_of(PENDING, since), pods, live, assigned, NOW, shown=shown) == P


@pytest.mark.parametrize("pods", [[PENDING], [RUNNING], [ENDING]])
@pytest.mark.parametrize("live", [None, NOBODY, P])
def test_who_holds_devices_stays(pods, live):
    assert not has_left(pods, live, assigned=NOBODY)


@pytest.mark.parametrize("pods", [[], [SUCCEEDED], [REFUSED], [GIVEN_UP], [ENDED]])
def test_who_is_over_leaves_when_no_cgroup_is_left(pods):
    assert has_left(pods, NOBODY)
    assert not has_left(pods, P)


@pytest.mark.parametrize("live", [None, NOBODY, P])
def test_nobody_leaves_while_the_api_server_is_not_heard(live):
    assert not has_left(None, live, assigned=NOBODY)


@pytest.mark.parametrize("since", [NOW, NOW - GRACE_SECONDS + 1, NOW + 1])
def test_who_was_admitted_a_moment_ago_is_not_known_yet(since):
    assert not has_left([], NOBODY, since=since)
    assert has_left([SUCCEEDED], NOBODY, since=since)


def test_who_was_shown_and_is_not_any_more_was_deleted():
    since = NOW - MOMENT_SECONDS
    assert has_left([], NOBODY, since=since, shown=P)
    assert not has_left([], NOBODY, since=since, shown={"q"})
    assert not has_left([], P, since=since, shown=P)
    assert not has_left([], NOBODY, since=since + 1, shown=P)  # its cgroup may be about to be made


def test_who_was_known_once_and_is_no_more_has_been_deleted():
    def left(since):
        return collectable(state_of(PENDING, since), [], NOBODY, None, NOW, shown=P)

    assert left(NOW - MOMENT_SECONDS) == P
    assert left(NOW - MOMENT_SECONDS + 1) == NOBODY  # its cgroup may not be there yet
    assert collectable(state_of(PENDING, 0.0), [], P, None, NOW, shown=P) == NOBODY


def test_whom_the_plugin_before_us_admitted_and_nobody_mentions_any_more_was_deleted():
    since = NOW - MOMENT_SECONDS
    assert has_left([], NOBODY, assigned=NOBODY, since=since)
    assert not has_left([], P, assigned=NOBODY, since=since)  # a container is left
    assert not has_left([], NOBODY, assigned=P, since=since)  # the kubelet knows it
    assert not has_left([], NOBODY, assigned=None, since=since)  # it cannot be asked
    assert not has_left([], None, assigned=NOBODY, since=since)  # the kernel cannot be asked
    assert not has_left([], NOBODY, assigned=NOBODY, since=since + 1)


def test_whom_another_plugin_admitted_may_not_have_been_shown_yet():
    allocation_state = state_of(PENDING)
    foreign = replace(allocation_state.admitted_pods["p"], foreign=True, since=NOW - MOMENT_SECONDS)
    allocation_state = replace(allocation_state, admitted_pods={"p": foreign})
    assert collectable(allocation_state, [], NOBODY, NOBODY, NOW) == NOBODY


def test_a_clock_that_was_set_back_keeps_nobody_for_ever():
    assert has_left([], NOBODY, since=NOW + 2 * GRACE_SECONDS)


@pytest.mark.parametrize("one", [SUCCEEDED, REFUSED, ENDED])
def test_without_cgroups_the_kubelets_word_on_each_container_counts(one):
    assert has_left([one], None)


def test_without_cgroups_a_pod_that_left_while_a_container_ran_stays():
    assert not has_left([GIVEN_UP], None, assigned=NOBODY)


def test_without_cgroups_who_is_not_known_leaves_with_its_entry_in_the_kubelets_checkpoint():
    assert not has_left([], None, assigned=None)
    assert not has_left([], None, assigned=P)
    assert has_left([], None, assigned=NOBODY)


def test_a_static_pod_is_known_by_the_kubelets_uid():
    static = replace(PENDING, annotations={**PENDING.annotations, MIRROR: "0123456789abcdef"})
    allocation_state = state_of(static)
    assert collectable(allocation_state, [static], NOBODY, None, NOW) == NOBODY
    assert collectable(allocation_state, [PENDING], NOBODY, None, NOW) == {"0123456789abcdef"}


def test_of_two_pods_with_one_uid_on_the_node_either_keeps_the_pod_admitted():
    informer = {MIRROR: "0123456789abcdef"}
    old = replace(PENDING, annotations={**PENDING.annotations, **informer}, phase="Failed")
    new = replace(pod("q"), annotations={**PENDING.annotations, **informer})
    for pods in ([old, new], [new, old]):
        assert collectable(state_of(old), pods, NOBODY, None, NOW) == NOBODY


def test_an_init_container_that_has_not_ended_keeps_its_pod():
    two = (*ENDED.containers, Container("fetch"))
    assert not has_left([replace(ENDED, containers=two)], NOBODY)


# ---------------------------------------------------------------- no pod cgroup at all


@pytest.mark.parametrize(
    ("tree", "at_once", "later"),
    [("empty", NOBODY, P), ("others", P, P), ("unreadable", NOBODY, NOBODY)],
)
def test_on_a_node_without_any_pod_cgroup_the_last_pod_leaves_after_a_while(
    tmp_path, tree, at_once, later
):
    """The kubelet keeps its devices in its checkpoint until the next pod comes."""
    now = [NOW]
    if tree != "unreadable":
        (tmp_path / "cgroup.controllers").touch()
        others = f"kubepods-pod{'0' * 32}.slice" if tree == "others" else ""
        (tmp_path / "kubepods.slice" / others).mkdir(parents=True)
    ended = EndedPods(
        partial(pods_with_cgroup, str(tmp_path)), clock=lambda: now[0], monotonic=lambda: now[0]
    )
    assert ended.gone(state_of(PENDING), (), P, P) == at_once
    now[0] += ALONE_SECONDS
    assert ended.gone(state_of(PENDING), (), P, P) == later


@pytest.mark.parametrize("pods", [[], [SUCCEEDED], [REFUSED], [GIVEN_UP], [ENDED]])
def test_who_is_over_by_the_api_servers_word_alone(pods):
    assert over(state_of(PENDING), pods, NOW, shown=P) == P
    assert over(state_of(PENDING), None, NOW, shown=P) == NOBODY


@pytest.mark.parametrize("pods", [[PENDING], [RUNNING], [ENDING]])
def test_who_holds_devices_is_over_by_nobodys_word(pods):
    assert over(state_of(PENDING), pods, NOW, shown=P) == NOBODY


def test_the_api_servers_word_alone_is_enough_after_a_while_in_an_unbroken_row():
    alone = Alone()
    assert alone.past(P, 0.0) == NOBODY
    assert alone.past(P, ALONE_SECONDS - 1) == NOBODY
    assert alone.past({"p", "q"}, ALONE_SECONDS) == P
    assert alone.past((), ALONE_SECONDS + 1) == NOBODY  # a cgroup is there, or nobody is heard
    assert alone.past({"p", "q"}, ALONE_SECONDS + 2) == NOBODY
    assert alone.past({"p", "q"}, 2 * ALONE_SECONDS + 1) == NOBODY
    assert alone.past({"p", "q"}, 2 * ALONE_SECONDS + 2) == {"p", "q"}
