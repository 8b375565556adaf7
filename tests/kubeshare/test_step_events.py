"""Each write of the controllers is a line of the log with its object, node and reason."""

from typing import get_args

import pytest
from msgspec import structs

from kubeshare.model import VirtualGpuName
from kubeshare.reasons import SharePodReason
from kubeshare.step_writer import step_event
from kubeshare.steps import (
    BindPod,
    CreateHolder,
    CreateSharePodPod,
    DeletePod,
    EvictPod,
    PatchSharePod,
    Step,
)
from tests.kubeshare.model_cluster import share_pod
from vgpu.schemes.kubeshare.node import holder_name

WAITING = share_pod("a")
BOUND = structs.replace(share_pod("a", node="n1", gpuid="abcde"), bound="GPU-a", port=50051)
LINES = (
    (
        PatchSharePod(WAITING, BOUND, SharePodReason.PLACED),
        "SharePod patched",
        {"share_pod": "ns/a", "node": "n1", "reason": "Placed", "gpuid": "abcde"},
    ),
    (
        CreateSharePodPod(BOUND),
        "pod created",
        {"pod": "ns/a", "node": "n1", "reason": "PodMissing", "gpu": "GPU-a"},
    ),
    (
        CreateHolder(VirtualGpuName("n1", "abcde")),
        "holder pod created",
        {
            "pod": f"kube-system/{holder_name('n1', 'abcde')}",
            "node": "n1",
            "reason": "HolderPending",
            "gpuid": "abcde",
        },
    ),
    (
        BindPod(BOUND),
        "pod bound",
        {"pod": "ns/a", "node": "n1", "reason": "Bound", "gpu": "GPU-a"},
    ),
    (
        DeletePod(BOUND.ref, SharePodReason.IDLE),
        "pod deleted",
        {"pod": "ns/a", "node": "", "reason": "Idle"},
    ),
    (
        EvictPod(BOUND.ref, "1", SharePodReason.RESOURCE_EXCEEDED),
        "pod evicted",
        {"pod": "ns/a", "node": "", "reason": "ResourceExceeded"},
    ),
)


def test_every_kind_of_step_is_here():
    assert {type(step) for step, *_ in LINES} == set(get_args(Step))


@pytest.mark.parametrize(
    ("step", "event", "fields"), LINES, ids=[type(step).__name__ for step, *_ in LINES]
)
def test_a_step_is_a_line_with_object_node_and_reason(step, event, fields):
    assert step_event(step) == (event, fields)
