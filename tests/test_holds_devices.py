"""Whether a pod may still have devices: the one answer for every part of the product."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from vgpu.model.names import PodRef
from vgpu.model.objects import Container, ContainerState, Pod, Status, holds_devices

WAITING, RUNNING, TERMINATED = ContainerState


def pod(*states, phase="Running", node="node1", deleted_at=None):
    statuses = tuple(Status(f"c{number}", state) for number, state in enumerate(states))
    return Pod(
        PodRef("uid", "team", "web"),
        node=node,
        annotations={"volcano.sh/vgpu-node": "node1"},
        phase=phase,
        statuses=statuses,
        deleted_at=deleted_at,
    )


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminal_pod_frees_its_devices_at_once_whatever_its_annotations_say(phase):
    assert not holds_devices(pod(TERMINATED, phase=phase))
    assert not holds_devices(pod(phase=phase))
    assert not holds_devices(pod(RUNNING, phase=phase, deleted_at=1.0))


def test_a_terminating_pod_holds_them_until_its_last_container_is_gone():
    assert holds_devices(pod(RUNNING, RUNNING, deleted_at=1.0))
    assert holds_devices(pod(TERMINATED, RUNNING, deleted_at=1.0))
    assert holds_devices(pod(TERMINATED, WAITING, deleted_at=1.0))  # may run by now
    assert not holds_devices(pod(TERMINATED, TERMINATED, deleted_at=1.0))


def test_a_deletion_that_was_asked_for_frees_nothing_by_itself():
    asked_long_ago, due_tomorrow = 0.0, 4e9
    for when in (asked_long_ago, due_tomorrow):
        assert holds_devices(pod(RUNNING, deleted_at=when))


def test_a_container_that_restarts_keeps_its_pods_devices():
    assert holds_devices(pod(TERMINATED))
    assert holds_devices(pod(WAITING))


def test_a_pod_that_waits_for_its_first_start_holds_what_was_promised():
    assert holds_devices(pod(phase="Pending"))
    assert holds_devices(pod(phase="Pending", node=""))


def test_a_bound_pod_that_the_kubelet_has_not_reported_does_not_count_as_gone():
    assert holds_devices(pod(phase="Pending", deleted_at=1.0))


def test_a_container_that_the_kubelet_has_not_reported_does_not_count_as_gone():
    one = pod(TERMINATED, deleted_at=1.0)
    for names, holds in ((("c0",), False), (("c0", "c1"), True)):
        assert holds_devices(replace(one, containers=tuple(map(Container, names)))) is holds


def test_a_pod_that_was_deleted_before_it_was_bound_never_had_a_container():
    assert not holds_devices(pod(phase="Pending", node="", deleted_at=1.0))


def test_a_node_that_is_lost_frees_nothing():
    assert holds_devices(pod(RUNNING, phase="Unknown", deleted_at=1.0))


phases = st.sampled_from(["", "Pending", "Running", "Unknown", "Succeeded", "Failed", "New"])
pods = st.builds(
    lambda states, phase, node, deleted_at: pod(
        *states, phase=phase, node=node, deleted_at=deleted_at
    ),
    st.lists(st.sampled_from(ContainerState), max_size=4),
    phases,
    st.sampled_from(["", "node1"]),
    st.none() | st.floats(0, 1e10),
)


@given(pods)
def test_a_live_container_holds_its_devices_unless_the_pod_has_ended(one):
    if one.node and any(status.state is RUNNING for status in one.statuses):
        assert holds_devices(one) is not one.terminal


@given(pods)
def test_only_the_end_of_its_containers_or_of_the_pod_frees_a_pods_devices(one):
    if not holds_devices(one):
        no_container = not one.node or (
            one.statuses and all(status.state is TERMINATED for status in one.statuses)
        )
        assert one.terminal or (one.deleted_at is not None and no_container)


@given(pods)
def test_neither_the_order_of_containers_nor_other_facts_matter(one):
    shuffled = Pod(
        one.ref,
        node=one.node,
        phase=one.phase,
        statuses=tuple(reversed(one.statuses)),
        deleted_at=one.deleted_at,
        labels={"app": "x"},
        priority=7,
    )
    assert holds_devices(shuffled) == holds_devices(one)
