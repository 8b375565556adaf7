"""Tenants find the GPU of their group by its label, their node and the reservation pod."""

import pytest

from tests.support.kai_pods import gpu, reservation, tenant
from vgpu.schemes.kai.groups import groups_of, is_reservation, resolved
from vgpu.schemes.other_schedulers import other_scheduler


def gpus_of(*pods):
    """The GPUs of the last pod, beside the others."""
    return resolved(pods)[-1].group_gpus


def test_a_group_has_the_gpu_that_its_reservation_pod_reports():
    assert gpus_of(reservation(), tenant()) == (gpu(1),)
    two = reservation("g"), reservation("h", gpu(2))
    assert gpus_of(*two, tenant(groups=("g", "h"))) == (gpu(1), gpu(2))
    assert gpus_of(*reversed(two), tenant(groups=("g", "h"))) == (gpu(1), gpu(2))


def test_a_pod_counts_once_for_each_group():
    labels = {"runai-gpu-group": "g", "runai-gpu-group/g": "g", "runai-gpu-group/h": "h"}
    assert groups_of(tenant(labels=labels)) == ("g", "h")


@pytest.mark.parametrize(
    "others",
    [
        (),
        (reservation("other"),),
        (reservation(node="another"),),
        (reservation(uuid=""),),
        (reservation(uuid="0"),),
        (reservation(), reservation(uuid=gpu(2), name="second")),
        (tenant("forger", annotations={"run.ai/reserve_for_gpu_index": gpu(1)}),),
    ],
    ids=["none", "group", "node", "not yet", "an index", "two GPUs", "no reservation pod"],
)
def test_a_group_without_one_known_gpu_stays_unread(others):
    assert gpus_of(*others, tenant()) == ()
    assert other_scheduler(resolved((*others, tenant()))[-1]) is not None


def test_one_unknown_group_leaves_the_whole_pod_unread():
    assert gpus_of(reservation(), tenant(groups=("g", "h"))) == ()


def test_a_pod_that_is_read_is_no_longer_of_another_scheduler_and_its_reservation_pod_is():
    pods = resolved((reservation(), tenant()))
    assert other_scheduler(pods[0]) is not None
    assert other_scheduler(pods[1]) is None


@pytest.mark.parametrize(
    ("namespace", "labels", "expected"),
    [
        ("kai-resource-reservation", {"app": "kai-resource-reservation"}, True),
        ("runai-reservation", {"runai-gpu-group": "g"}, True),
        ("kai-resource-reservation", {"app": "web"}, False),
        ("team-a", {"app": "kai-resource-reservation", "runai-gpu-group": "g"}, False),
    ],
)
def test_a_reservation_pod_is_known_by_namespace_and_label(namespace, labels, expected):
    pod = reservation(labels=labels)
    ref = type(pod.ref)(pod.ref.uid, namespace, pod.ref.name)
    assert is_reservation(reservation(labels=labels, ref=ref)) is expected


def test_pods_without_reservation_pods_are_the_same_objects():
    pods = (tenant(), tenant("other"))
    assert all(a is b for a, b in zip(resolved(pods), pods, strict=True))
