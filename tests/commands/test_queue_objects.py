"""Kueue's objects from the API server: as far as the rights go, in the versions that it serves."""

import pytest

from tests.support.answering_server import answer, serving, status
from vgpucli.queue_objects import UNKNOWN_CONFIG, kueue_at

NOT_FOUND = status(404, "NotFound")
FORBIDDEN = status(403, "Forbidden", "no right")
CONVERSION = status(500, "InternalError", "conversion webhook failed")
NOTHING = answer({"metadata": {"resourceVersion": "1"}, "items": []})


def queues(**spec):
    item = {"kind": "ClusterQueue", "metadata": {"name": "a"}, "spec": spec}
    return answer({"metadata": {"resourceVersion": "1"}, "items": [item]})


QUEUES = queues(cohortName="ml")
CONFIG = answer(
    {
        "kind": "ConfigMap",
        "metadata": {"name": "kueue-manager-config", "namespace": "kueue-system"},
        "data": {"controller_manager_config.yaml": "kind: Configuration"},
    }
)


def test_a_server_without_kueue_is_asked_for_its_cluster_queues_alone():
    with serving(NOT_FOUND, NOT_FOUND) as (cluster, server):
        kueue = kueue_at(cluster)
    versions = [path.split("/")[3] for _, path, _, _ in server.requests]
    assert versions == ["v1beta2", "v1beta1"]
    assert not kueue.is_read
    assert kueue.notes == ()


@pytest.mark.parametrize(
    ("answers", "notes"),
    [
        (
            (CONVERSION, *[NOTHING] * 4, CONFIG),
            ("ClusterQueues could not be read: conversion webhook failed",),
        ),
        (
            (*[FORBIDDEN] * 6,),
            tuple(
                f"{kind}s could not be read: no right"
                for kind in (
                    "ClusterQueue",
                    "LocalQueue",
                    "Cohort",
                    "ResourceFlavor",
                    "Workload",
                )
            ),
        ),
        (
            (QUEUES, NOTHING, NOT_FOUND, NOT_FOUND, NOTHING, FORBIDDEN, FORBIDDEN),
            (
                "Workloads could not be read: no right",
                "transformations unknown: amounts before transformation (no right)",
            ),
        ),
        (
            (QUEUES, NOTHING, NOTHING, NOTHING, NOTHING, NOT_FOUND),
            (f"{UNKNOWN_CONFIG} (ConfigMap kueue-system/kueue-manager-config does not exist)",),
        ),
        ((QUEUES, *[NOTHING] * 4, CONFIG), ()),
    ],
)
def test_what_may_not_be_read_is_a_note_and_the_rest_is_read(answers, notes):
    with serving(*answers) as (cluster, server):
        kueue = kueue_at(cluster)
        assert server.answers == []
    assert kueue.notes == notes
    assert kueue.is_read == (answers[0] is QUEUES)
    kinds = {note.partition("s could not be read")[0] for note in notes if "could not be" in note}
    assert kueue.unread == kinds


def test_a_quota_that_is_no_quantity_is_named_with_its_field():
    flavor = {"name": "t4", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "many"}]}
    broken = queues(resourceGroups=[{"flavors": [flavor]}])
    with serving(broken, *[NOTHING] * 4, CONFIG) as (cluster, _):
        kueue = kueue_at(cluster)
    (note,) = kueue.notes
    assert kueue.unread == {"ClusterQueue"}
    assert note == (
        "ClusterQueue a cannot be read: nominalQuota of nvidia.com/gpu is no quantity: 'many'"
    )
