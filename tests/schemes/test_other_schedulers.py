"""Pods of KAI Scheduler and Koordinator: recognised by their own keys, and by nothing else."""

import json

import pytest

from tests.support import sample_cluster as sample
from vgpu.kube.kinds import PODS
from vgpu.schemes.other_schedulers import OtherScheduler, other_scheduler

KAI, KOORDINATOR = OtherScheduler.KAI, OtherScheduler.KOORDINATOR
GPU = {"nvidia.com/gpu": 1}


def read(limits=None, annotations=None, labels=None, namespace="ml"):
    """The pod as every program reads it from the API server; None if it is left out."""
    whole = sample.pod("a", "n", limits, annotations, labels=labels, namespace=namespace)
    page = PODS.page(json.dumps({"kind": "PodList", "items": [whole]}).encode())
    return next(iter(page.objects), None)


@pytest.mark.parametrize(
    ("fields", "scheduler"),
    [
        ({"labels": {"runai-gpu-group": "g"}}, KAI),
        ({"labels": {"runai-gpu-group/g": "g"}}, KAI),
        ({"annotations": {"gpu-fraction": "0.5"}}, KAI),
        ({"annotations": {"gpu-memory": "4096"}, "limits": {"cpu": 1}}, KAI),
        ({"annotations": {"gpu-memory": "4096"}, "limits": {"nvidia.com/gpu": 0}}, KAI),
        ({"annotations": {"scheduling.koordinator.sh/device-allocated": "{}"}}, KOORDINATOR),
        (
            {
                "annotations": {"scheduling.koordinator.sh/device-allocated": "{}"},
                "limits": GPU,
            },
            KOORDINATOR,
        ),
        *(
            (
                {
                    "labels": {"app": "kai-resource-reservation"},
                    "namespace": namespace,
                    "limits": GPU,
                },
                KAI,
            )
            for namespace in ("kai-resource-reservation", "runai-reservation")
        ),
    ],
)
def test_a_pod_of_another_gpu_scheduler_is_recognised(fields, scheduler):
    recognised = other_scheduler(read(**fields))
    assert recognised is not None
    assert recognised.scheduler is scheduler


@pytest.mark.parametrize(
    "fields",
    [
        {"labels": {"app": "kai-resource-reservation"}},  # of another namespace
        {"labels": {"app": "web"}, "namespace": "kai-resource-reservation"},
        {"annotations": {"gpu-memory": "4096"}},  # it requests a GPU itself
        {"annotations": {"gpu-memory-limit": "4096", "gpu-fractions": "1"}},
        {"labels": {"koordinator.sh/qosClass": "LS", "quota.scheduling.koordinator.sh/name": "q"}},
        {"annotations": {"scheduling.koordinator.sh/resource-status": "{}"}},
        {"labels": {"runai-gpu-groups": "g", "kai.scheduler/queue": "q"}},
    ],
)
def test_an_ordinary_gpu_pod_belongs_to_no_other_scheduler(fields):
    assert other_scheduler(read(limits=GPU, **fields)) is None


def test_an_ordinary_pod_is_left_out_as_before():
    assert read(labels={"app": "web", "koordinator.sh/qosClass": "LS"}) is None
    assert read(limits=GPU, labels={"app": "web"}).labels == {}
