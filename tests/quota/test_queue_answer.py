"""What an explanation of a workload has beside its quota: checks, clusters, rights, settings."""

import pytest
from msgspec import structs

from tests.quota.trees import KEY, asking
from tests.support.answering_server import answer, serving, status
from vgpu.kube.kueue_kinds import (
    CLUSTER_QUEUES,
    WORKLOADS,
    AdmissionCheck,
    ClusterQueue,
    LocalQueue,
    QueuedWorkload,
    Reserved,
    WorkloadCondition,
)
from vgpu.model.declared_quota import DeclaredQuota, QuotaResource
from vgpu.quota.kueue_config import KEY as CONFIG_KEY
from vgpu.quota.kueue_config import KueueConfig, kueue_config
from vgpu.quota.kueue_tree import KueueObjects, kueue_tree
from vgpu.quota.queue_answer import QueueReason, queue_answer
from vgpucli.queue_objects import kueue_at, with_places

QUEUE = ClusterQueue("a", quotas={KEY: DeclaredQuota(4)}, reserved={KEY: Reserved(1)})
LOCAL = LocalQueue("team", "main", "a")
ASKS = asking("main", 1, "asks")


def answer_of(workload, queue=QUEUE, others=(), **fields):
    fields = {"config": KueueConfig(), "is_read": True, **fields}
    kueue = KueueObjects((queue,), (LOCAL,), workloads=(workload, *others), **fields)
    return queue_answer(kueue, kueue_tree(kueue), workload)


def condition(kind, *, is_true, reason="", message=""):
    return {kind: WorkloadCondition(kind, is_true, reason, message)}


RESERVED = structs.replace(
    ASKS, admitted_by="a", conditions=condition("QuotaReserved", is_true=True)
)


def test_each_admission_check_that_waits_is_named_with_its_state_and_message():
    checks = (
        AdmissionCheck("budget", "Ready"),
        AdmissionCheck("nodes", "Pending", "2 of 8 nodes\nare there"),
        AdmissionCheck("other", "Retry"),
    )
    found = answer_of(structs.replace(RESERVED, checks=checks))
    assert found.reason is QueueReason.NOT_ADMITTED
    assert found.detail == (
        "admission check nodes is Pending: 2 of 8 nodes are there; admission check other is Retry"
    )
    assert any("admission check budget is Ready" in text for text in found.texts)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"cluster": "east", "nominated": ()},
            "Workload team/asks is in cluster east, where MultiKueue runs it",
        ),
        (
            {"nominated": ("east", "west")},
            "MultiKueue will choose a cluster for Workload team/asks: east, west",
        ),
    ],
)
def test_the_cluster_of_multikueue_is_named_also_of_an_admitted_workload(fields, text):
    for conditions in (RESERVED.conditions, condition("Admitted", is_true=True)):
        found = answer_of(structs.replace(RESERVED, conditions=conditions, **fields))
        assert text in found.texts


def config(text):
    return kueue_config({CONFIG_KEY: text})


IGNORES = "resources: {quotaCheckStrategy: IgnoreUndeclared}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kind: Configuration", QueueReason.NOT_COVERED),
        (IGNORES, QueueReason.NOT_COVERED),
        (f"{IGNORES}\nfeatureGates: {{QuotaCheckStrategy: true}}", QueueReason.OTHER),
    ],
)
def test_a_resource_without_a_quota_keeps_nobody_back_where_kueue_ignores_it(text, reason):
    covers = structs.replace(QUEUE, quotas={QuotaResource("t4", "cpu"): DeclaredQuota(4)})
    assert answer_of(ASKS, covers, config=config(text)).reason is reason


def test_workloads_whose_pods_are_not_ready_are_named_where_kueue_waits_for_them():
    message = "waiting for all admitted workloads to be in PodsReady condition"
    waits = structs.replace(
        ASKS, conditions=condition("QuotaReserved", is_true=False, message=message)
    )
    admitted = condition("Admitted", is_true=True)
    others = [
        QueuedWorkload("team", f"late-{n}", f"l{n}", admitted_by="a", conditions=admitted)
        for n in range(7)
    ]
    ready = admitted | condition("PodsReady", is_true=True)
    others.append(QueuedWorkload("team", "ready", "r", admitted_by="a", conditions=ready))
    found = answer_of(waits, others=others)
    assert found.reason is QueueReason.PODS_NOT_READY
    named = [text for text in found.texts if "not ready" in text]
    assert named == [
        *(f"the pods of Workload team/late-{n} are not ready" for n in range(5)),
        "the pods of 2 further workloads are not ready",
    ]


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("TopologyPlacementFailed", QueueReason.NO_TOPOLOGY),
        ("WaitingForPreemptedWorkloads", QueueReason.PREEMPTING),
        ("Suspended", QueueReason.STOPPED),
        ("WaitingForQuota", QueueReason.OTHER),
        ("PendingEvaluation", QueueReason.OTHER),
    ],
)
def test_the_reasons_of_newer_versions_decide_where_the_quota_suffices(reason, code):
    conditions = condition("QuotaReserved", is_true=False, reason=reason, message="why")
    found = answer_of(structs.replace(ASKS, conditions=conditions))
    assert found.reason is (QueueReason.NO_QUOTA if reason == "WaitingForQuota" else code)


def test_another_flavor_fungibility_than_the_default_is_named_where_there_are_flavors():
    quotas = {KEY: DeclaredQuota(1), QuotaResource("v100", KEY.resource): DeclaredQuota(4)}
    queue = structs.replace(QUEUE, quotas=quotas, fungibility="whenCanBorrow TryNextFlavor")
    text = "ClusterQueue a has flavorFungibility with whenCanBorrow TryNextFlavor"
    assert any(each.startswith(text) for each in answer_of(ASKS, queue).texts)
    alone = structs.replace(queue, quotas=QUEUE.quotas)
    assert not any(each.startswith(text) for each in answer_of(ASKS, alone).texts)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, ""),
        ({"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"}, ""),
        ({"whenCanBorrow": "Borrow"}, ""),
        ({"whenCanPreempt": "Preempt"}, "whenCanPreempt Preempt"),
        ({"preference": "PreemptionOverBorrowing"}, "preference PreemptionOverBorrowing"),
    ],
)
def test_the_defaults_of_both_versions_are_no_setting(fields, shown):
    item = {"metadata": {"name": "a"}, "spec": {"flavorFungibility": fields}}
    content = answer({"kind": "ClusterQueueList", "metadata": {}, "items": [item]})[2]
    assert CLUSTER_QUEUES.page(content).objects[0].fungibility == shown


def test_checks_and_clusters_are_read_of_a_workload():
    status_fields = {
        "admissionChecks": [{"name": "nodes", "state": "Pending", "message": "m"}],
        "clusterName": "east",
        "nominatedClusterNames": None,
    }
    item = {"metadata": {"name": "a", "namespace": "team"}, "status": status_fields}
    content = answer({"kind": "WorkloadList", "metadata": {}, "items": [item]})[2]
    (workload,) = WORKLOADS.page(content).objects
    assert workload.checks == (AdmissionCheck("nodes", "Pending", "m"),)
    assert (workload.cluster, workload.nominated) == ("east", ())


# ---------------------------------------------------------------- rights in one namespace only

FORBIDDEN = status(403, "Forbidden", "no right")
NOT_FOUND = status(404, "NotFound")


def listed(*items):
    return answer({"metadata": {"resourceVersion": "1"}, "items": [*items]})


def named(name, **spec):
    return {"metadata": {"name": name, "namespace": "team", "uid": name}, "spec": spec}


OF_TEAM = (
    FORBIDDEN,  # ClusterQueues
    FORBIDDEN,
    listed(named("main", clusterQueue="a")),
    FORBIDDEN,  # Cohorts
    FORBIDDEN,  # ResourceFlavors
    FORBIDDEN,
    listed(named("asks", queueName="main")),
    FORBIDDEN,  # the ConfigMap
)


def test_with_rights_in_one_namespace_its_own_queue_and_workloads_are_read():
    with serving(*OF_TEAM) as (cluster, server):
        kueue = kueue_at(cluster, "team")
        assert server.answers == []
    assert kueue.namespace == "team"
    assert kueue.unread == {"ClusterQueue", "Cohort", "ResourceFlavor"}
    assert "Workloads of other namespaces than team were not read" in kueue.notes
    (workload,) = kueue.workloads
    found = queue_answer(kueue, kueue_tree(kueue), workload)
    assert found.reason is None
    assert found.needs == "ClusterQueue a: kubectl get clusterqueues"
    assert not any("number" in text for text in found.texts), "the others are not known"


def test_a_place_that_kueue_reports_is_named_from_one():
    place = {"metadata": {"name": "asks", "namespace": "team"}, "positionInClusterQueue": 6}
    with serving(*OF_TEAM, listed(place)) as (cluster, server):
        kueue = with_places(cluster, kueue_at(cluster, "team"), "team")
        path = server.requests[-1][1]
    assert path.endswith("/v1beta2/namespaces/team/localqueues/main/pendingworkloads")
    found = queue_answer(kueue, kueue_tree(kueue), kueue.workloads[0])
    text = "Workload team/asks is number 7 that waits for ClusterQueue a, as Kueue reports"
    assert text in found.texts


@pytest.mark.parametrize(
    "answers", [(FORBIDDEN,), (NOT_FOUND, NOT_FOUND), (status(503, "Unavailable"),)]
)
def test_without_the_visibility_api_the_place_is_that_of_what_was_read(answers):
    with serving(*answers) as (cluster, _):
        kueue = KueueObjects((QUEUE,), (LOCAL,), workloads=(ASKS,), config=KueueConfig())
        kueue = with_places(cluster, kueue, "team")
    found = queue_answer(kueue, kueue_tree(kueue), ASKS)
    assert "Workload team/asks is number 1 of 1 that wait for ClusterQueue a" in found.texts


def test_who_is_first_in_a_strict_queue_is_unknown_where_other_namespaces_were_not_read():
    strict = structs.replace(QUEUE, strategy="StrictFIFO")
    found = answer_of(ASKS, strict, namespace="team")
    assert found.reason is None
    assert found.needs == "workloads of all namespaces: kubectl get workloads -A"
    first = answer_of(ASKS, strict, namespace="team", places={("team", "asks"): 1})
    assert first.reason is QueueReason.OTHER
