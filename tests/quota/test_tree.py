"""The tree of quotas: its formulas are Kueue's recursion, and what is held sums exactly."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.quota.trees import (
    KEY,
    KEYS,
    Recursion,
    asking,
    is_assigned,
    kueues,
    pod_set,
    pod_sets,
)
from vgpu.kube.kueue_kinds import (
    WORKLOADS,
    ClusterQueue,
    Cohort,
    LocalQueue,
    Reserved,
    WorkloadCondition,
)
from vgpu.model.declared_quota import DeclaredQuota, QuotaResource
from vgpu.model.names import PodRef
from vgpu.model.objects import OwnerReference, Pod
from vgpu.quota.kueue_config import KEY as CONFIG_KEY
from vgpu.quota.kueue_config import KueueConfig, kueue_config
from vgpu.quota.kueue_tree import KueueObjects, PodsInQueues, kueue_tree
from vgpu.quota.queue_answer import QueueReason, queue_answer
from vgpu.quota.resources import GPUS, MEMORY
from vgpu.quota.tree import QuotaLevel, QuotaName, QuotaNode, QuotaTree


@given(kueues())
def test_limit_and_free_amount_of_each_queue_are_those_of_kueues_own_recursion(kueue):
    tree = kueue_tree(kueue)
    own = Recursion(tree, KEY)
    for node in tree.nodes.values():
        if node.name.level is not QuotaLevel.LOCAL_QUEUE:
            assert tree.limit(node.name, KEY) == own.potential(node)
            assert tree.free(node.name, KEY) == own.available(node)


@given(kueues())
def test_a_limit_is_the_least_on_the_path_and_a_local_queue_has_that_of_its_cluster_queue(kueue):
    tree = kueue_tree(kueue)
    for local in kueue.local_queues:
        below = QuotaName(QuotaLevel.LOCAL_QUEUE, f"team/{local.name}")
        above = QuotaName(QuotaLevel.CLUSTER_QUEUE, local.cluster_queue)
        levels = tree.levels(below, KEY)
        assert levels == tree.levels(above, KEY)
        assert tree.limit(below, KEY) == min(level.limit for level in levels)
        path = [node.name for node in tree.path(above)]
        assert {level.name for level in levels} <= {*path}
        assert levels[-1].name == path[-1], "a root always limits"


@given(kueues(), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=8))
def test_what_is_held_sums_exactly_over_the_tree(kueue, holdings):
    names = [*(queue.name for queue in kueue.local_queues), "unknown"]
    pods = []
    for number, (queue, gpus) in enumerate(holdings):
        name = names[queue % len(names)]
        labels = {"kueue.x-k8s.io/queue-name": name}
        ref = PodRef(f"uid-{number}", "team", f"pod-{number}")
        pods.append((Pod(ref, labels=labels), {GPUS: gpus}))
    tree = kueue_tree(kueue, pods)
    roots = sum(tree.held(node.name, "").get(GPUS, 0) for node in tree.roots())
    assert roots == sum(gpus for _, gpus in holdings)
    for node in tree.nodes.values():
        below = sum(tree.held(each.name, "").get(GPUS, 0) for each in tree.children(node.name))
        own = node.held.get("", {}).get(GPUS, 0)
        assert tree.held(node.name, "").get(GPUS, 0) == own + below


@given(kueues())
def test_what_is_lent_is_unused_and_never_more_than_others_have_taken(kueue):
    tree = kueue_tree(kueue)
    for node in tree.nodes.values():
        lent = tree.lent(node.name, KEY)
        if lent:
            unused = tree.quota(node.name, KEY) - tree.drawn(node.name, KEY)
            parent = tree.parent(node.name)
            others = tree.drawn(parent.name, KEY) - max(
                0, tree.drawn(node.name, KEY) - tree.kept(node.name, KEY)
            )
            assert lent <= unused
            assert lent <= others


@given(kueues(), st.integers(0, 3), st.integers(1, 40))
def test_where_quota_is_the_only_obstacle_the_level_that_is_named_has_too_little(
    kueue, number, gpus
):
    queue = kueue.cluster_queues[number % len(kueue.cluster_queues)]
    workload = asking(queue.name, gpus)
    tree = kueue_tree(kueue)
    answer = queue_answer(kueue, tree, workload)
    name = QuotaName(QuotaLevel.CLUSTER_QUEUE, queue.name)
    levels = {level.name: level for level in tree.levels(name, KEY)}
    if gpus > tree.limit(name, KEY):
        assert answer.reason is QueueReason.NEVER_FITS
        assert levels[answer.level].limit < gpus
    elif gpus > tree.free(name, KEY):
        assert answer.reason is QueueReason.NO_QUOTA
        assert levels[answer.level].free < gpus
    else:
        assert answer.reason is QueueReason.OTHER


@given(kueues(KEYS), st.integers(0, 3), pod_sets)
def test_several_pod_sets_and_resource_groups_are_refused_where_kueue_assigns_no_flavor(
    kueue, number, sets
):
    queue = kueue.cluster_queues[number % len(kueue.cluster_queues)]
    tree = kueue_tree(kueue)
    answer = queue_answer(kueue, tree, asking(queue.name, 0, pod_sets=sets))
    name = QuotaName(QuotaLevel.CLUSTER_QUEUE, queue.name)
    node = tree.nodes[name]
    if not is_assigned(sets, lambda key: Recursion(tree, key).potential(node)):
        assert answer.reason is QueueReason.NEVER_FITS
    elif not is_assigned(sets, lambda key: Recursion(tree, key).available(node)):
        assert answer.reason is QueueReason.NO_QUOTA
    else:
        assert answer.reason is QueueReason.OTHER
    if answer.level is not None:
        amount = int(answer.detail.split()[0])
        levels = {level.name: level for level in tree.levels(name, answer.resource)}
        level = levels[answer.level]
        assert amount > (level.limit if answer.reason is QueueReason.NEVER_FITS else level.free)
        waiting = kueue.requested(asking("", 0, pod_sets=sets), counts_pods=True)
        assert amount <= waiting[answer.resource.resource]


def test_a_workload_of_two_pod_sets_has_room_in_two_flavors_and_none_in_one():
    gpus = [QuotaResource(flavor, KEY.resource) for flavor in ("t4", "v100")]
    sets = (pod_set("main", gpus=2), pod_set("worker", 2, gpus=1))
    local = (LocalQueue("team", "c", "c"),)
    waits = asking("c", 0, pod_sets=sets)

    def answer(*flavors):
        queue = ClusterQueue("c", quotas={each: DeclaredQuota(2) for each in flavors})
        kueue = KueueObjects((queue,), local, workloads=(waits,))
        return queue_answer(kueue, kueue_tree(kueue), waits)

    assert answer(*gpus).reason is QueueReason.OTHER
    alone = answer(*gpus[:1])
    assert alone.reason is QueueReason.NEVER_FITS
    requested = "4 nvidia.com/gpu of flavor t4 requested for pod sets main and worker"
    assert alone.detail == f"{requested}, at most 2 at ClusterQueue c"


def test_pod_sets_of_one_topology_group_get_one_flavor():
    gpus = {QuotaResource(each, KEY.resource): DeclaredQuota(2) for each in ("t4", "v100")}
    sets = tuple(structs.replace(pod_set(each, gpus=2), group="all") for each in ("main", "worker"))
    kueue = KueueObjects((ClusterQueue("c", quotas=gpus),), (LocalQueue("team", "c", "c"),))
    answer = queue_answer(kueue, kueue_tree(kueue), asking("c", 0, pod_sets=sets))
    assert answer.reason is QueueReason.NEVER_FITS


def test_each_pod_counts_where_the_queue_has_a_quota_of_pods():
    quotas = {KEY: DeclaredQuota(9), QuotaResource("t4", "pods"): DeclaredQuota(1)}
    waits = asking("c", 0, pod_sets=(pod_set("main", 5, gpus=0),))
    kueue = KueueObjects(
        (ClusterQueue("c", quotas=quotas),), (LocalQueue("team", "c", "c"),), workloads=(waits,)
    )
    tree = kueue_tree(kueue)
    answer = queue_answer(kueue, tree, waits)
    assert answer.reason is QueueReason.NEVER_FITS
    assert answer.detail == "5 pods of flavor t4 requested, at most 1 at ClusterQueue c"
    assert "Workload team/asks requests 0 nvidia.com/gpu, 5 pods, as Kueue counts" in answer.texts
    assert tree.waiting(QuotaName(QuotaLevel.CLUSTER_QUEUE, "c"))["pods"] == 5


def test_what_a_cohort_that_was_not_read_refuses_is_not_checked():
    queue = ClusterQueue("c", "ml", {KEY: DeclaredQuota(2)})
    local = (LocalQueue("team", "c", "c"),)
    kueue = KueueObjects((queue,), local, unread=frozenset({"Cohort"}))
    answer = queue_answer(kueue, kueue_tree(kueue), asking("c", 3))
    assert (answer.reason, answer.needs) == (None, "Cohort ml: kubectl get cohorts")


@given(kueues(), st.integers(1, 40))
def test_another_obstacle_is_named_before_the_quota(kueue, gpus):
    first = kueue.cluster_queues[0]

    def answer(workload, **changes):
        changed = KueueObjects(**{**_fields(kueue), **changes})
        return queue_answer(changed, kueue_tree(changed), workload)

    waits = asking(first.name, gpus)
    assert answer(asking("nowhere", gpus)).reason is QueueReason.NO_QUEUE
    assert answer(waits, cluster_queues=()).reason is QueueReason.NO_QUEUE
    assert answer(asking(first.name, gpus, is_active=False)).reason is QueueReason.INACTIVE
    stopped = ClusterQueue(first.name, quotas=first.quotas, stop_policy="HoldAndDrain")
    held = answer(waits, cluster_queues=(stopped,))
    assert (held.reason, held.detail) == (
        QueueReason.STOPPED,
        f"ClusterQueue {first.name}: stopPolicy HoldAndDrain",
    )
    paused = LocalQueue("team", first.name, first.name, stop_policy="Hold")
    assert answer(waits, local_queues=(paused,)).reason is QueueReason.STOPPED
    other = ClusterQueue(first.name, quotas={QuotaResource("t4", "cpu"): DeclaredQuota(9)})
    assert answer(waits, cluster_queues=(other,)).reason is QueueReason.NOT_COVERED


REPORTED = [
    ("Workload namespace doesn't match ClusterQueue selector", "Pending", "OTHER_NAMESPACE"),
    ("untolerated taint {gpu} in flavor t4", "Pending", "NO_FLAVOR"),
    ("flavor t4 doesn't match node affinity", "Pending", "NO_FLAVOR"),
    ("no flavor", "NoMatchingFlavor", "NO_FLAVOR"),
    ("waits", "WaitingForPodsReady", "PODS_NOT_READY"),
    (
        "waiting for all admitted workloads to be in PodsReady condition",
        "Waiting",
        "PODS_NOT_READY",
    ),
    ("Exceeded the PodsReady timeout team/asks", "Pending", "OTHER"),
    ("insufficient unused quota for x in flavor t4, 1 more needed", "Pending", "NO_QUOTA"),
    ("insufficient quota for x in flavor t4 (1) > maximum capacity (0)", "Pending", "NEVER_FITS"),
    ("untolerated taint {gpu} in flavor t4, insufficient unused quota", "Pending", "NO_QUOTA"),
    ("anything else", "Pending", "OTHER"),
]


@pytest.mark.parametrize(("message", "reason", "expected"), REPORTED)
def test_where_the_quota_suffices_kueues_own_words_name_the_obstacle(message, reason, expected):
    pending = {"QuotaReserved": WorkloadCondition("QuotaReserved", False, reason, message)}
    queue = ClusterQueue("a", quotas={KEY: DeclaredQuota(9)})
    waits = asking("a", 1, conditions=pending)
    kueue = KueueObjects((queue,), (LocalQueue("team", "a", "a"),), workloads=(waits,))
    answer = queue_answer(kueue, kueue_tree(kueue), waits)
    assert (answer.reason, answer.detail) == (QueueReason[expected], message)


def _fields(kueue):
    return {name: getattr(kueue, name) for name in kueue.__struct_fields__}


def test_behind_the_head_of_a_strict_queue_a_workload_waits_although_it_fits():
    queue = ClusterQueue("c", quotas={KEY: DeclaredQuota(2)}, strategy="StrictFIFO")
    head = asking("c", 9, "head", priority=1)
    behind = asking("c", 1, "behind")
    local = LocalQueue("team", "c", "c")
    kueue = KueueObjects((queue,), (local,), workloads=(behind, head), is_read=True)
    answer = queue_answer(kueue, kueue_tree(kueue), behind)
    assert answer.reason is QueueReason.BEHIND
    assert answer.detail == "Workload team/head is first in ClusterQueue c"
    assert "Workload team/behind is number 2 of 2 that wait for ClusterQueue c" in answer.texts


SET_ASIDE = {"Requeued": WorkloadCondition("Requeued", False, "PodsReadyTimeout", "too slow")}


@pytest.mark.parametrize("conditions", [{}, SET_ASIDE])
def test_workloads_that_are_set_aside_or_of_a_stopped_local_queue_are_first_in_no_line(conditions):
    queue = ClusterQueue("c", quotas={KEY: DeclaredQuota(2)}, strategy="StrictFIFO")
    local = (LocalQueue("team", "c", "c"), LocalQueue("team", "held", "c", stop_policy="Hold"))
    first = asking("c" if conditions else "held", 9, "head", priority=1, conditions=conditions)
    waits = asking("c", 1)
    kueue = KueueObjects((queue,), local, workloads=(first, waits), is_read=True)
    answer = queue_answer(kueue, kueue_tree(kueue), waits)
    assert answer.reason is QueueReason.OTHER
    assert "Workload team/asks is number 1 of 1 that wait for ClusterQueue c" in answer.texts


def test_a_workload_that_is_set_aside_names_why():
    queue = ClusterQueue("c", quotas={KEY: DeclaredQuota(2)})
    waits = asking("c", 1, conditions=SET_ASIDE)
    kueue = KueueObjects((queue,), (LocalQueue("team", "c", "c"),), workloads=(waits,))
    answer = queue_answer(kueue, kueue_tree(kueue), waits)
    assert answer.reason is QueueReason.OTHER
    assert answer.detail == "Kueue has set the workload aside: PodsReadyTimeout: too slow"


def test_workloads_of_one_second_are_ordered_by_uid_and_some_by_their_eviction():
    timeout = WorkloadCondition("Evicted", True, "PodsReadyTimeout", since=9.0)
    waiting = (
        asking("c", 1, "z", created_at=5.0),
        asking("c", 1, "b", created_at=5.0),
        asking("c", 1, "a", created_at=1.0, conditions={"Evicted": timeout}),
        asking("c", 1, "old", created_at=2.0),
        asking("c", 1, "first", created_at=8.0, priority=7),
        asking("c", 1, "off", is_active=False),
    )
    kueue = KueueObjects(local_queues=(LocalQueue("team", "c", "c"),), workloads=waiting)
    assert [each.uid for each in kueue.order("c")] == ["first", "old", "b", "z", "a"]


def test_the_five_largest_holders_and_the_others_are_what_the_queue_uses():
    queue = ClusterQueue("a", quotas={KEY: DeclaredQuota(40)}, reserved={KEY: Reserved(36)})
    holders = [
        asking("a", 1, f"w{n}", admitted_by="a", reserved={KEY: n}) for n in range(1, 9)
    ]  # 36 in all
    waits = asking("a", 10)
    local = LocalQueue("team", "a", "a")
    kueue = KueueObjects((queue,), (local,), workloads=(waits, *holders), is_read=True)
    texts = queue_answer(kueue, kueue_tree(kueue), waits).texts
    of_holders = [text for text in texts if " of it by " in text]
    assert of_holders[0] == "8 of it by Workload team/w8"
    assert of_holders[-1] == "6 of it by others"
    assert sum(int(text.split()[0]) for text in of_holders) == 36


def test_a_preemptor_is_named_for_who_can_read_its_workload():
    evicted = {
        "Preempted": WorkloadCondition(
            "Preempted", True, "InCohortReclamation", "Preempted to accommodate (UID: u-2, …)"
        )
    }
    victim, by = asking("a", 1, conditions=evicted), asking("a", 1, "u-2")
    known = KueueObjects(workloads=(victim, by))
    alone = KueueObjects(workloads=(victim,))
    named, unnamed = (
        queue_answer(kueue, kueue_tree(kueue), victim).texts[-1] for kueue in (known, alone)
    )
    ending = "to reclaim the quota of a queue of its cohort"
    assert named == f"Workload team/asks was preempted by Workload team/u-2 {ending}"
    assert unnamed == f"Workload team/asks was preempted by another workload {ending}"


def test_cohorts_that_are_their_own_parents_have_no_parent():
    first, second = (QuotaName(QuotaLevel.COHORT, name) for name in "ab")
    below = QuotaName(QuotaLevel.CLUSTER_QUEUE, "c")
    tree = QuotaTree((QuotaNode(first, second), QuotaNode(second, first), QuotaNode(below, first)))
    assert [node.name for node in tree.path(below)] == [below, first]
    assert [depth for depth, _ in tree.walk()] == [0, 1, 0]


TRANSFORMED = """
resources:
  excludeResourcePrefixes: [cpu, example.com/]
  transformations:
  - {input: nvidia.com/gpumem, strategy: Replace, multiplyBy: nvidia.com/gpu,
     outputs: {nvidia.com/total-gpumem: 1}}
  - {input: nvidia.com/mig-1g.5gb, strategy: Retain,
     outputs: {example/memory: "5Gi", cpu: 500m}}
"""


def test_requests_count_as_the_configuration_of_kueue_transforms_them():
    config = kueue_config({CONFIG_KEY: TRANSFORMED})
    requests = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 4000, "cpu": 100, "example.com/x": 1}
    assert config.counted(requests) == {"nvidia.com/gpu": 2, "nvidia.com/total-gpumem": 8000}
    assert config.counted({"nvidia.com/mig-1g.5gb": 3}) == {
        "nvidia.com/mig-1g.5gb": 3,
        "example/memory": 15 * 2**30,
        "cpu": 1500,
    }


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "does not exist"),
        ({}, "has no key"),
        ({CONFIG_KEY: "resources: ["}, "cannot be read"),
        ({CONFIG_KEY: "resources: {transformations: 7}"}, "cannot be read"),
        (
            {CONFIG_KEY: "resources: {transformations: [{input: a/b, outputs: {c: many}}]}"},
            "the output c of a/b is no quantity",
        ),
    ],
)
def test_an_unreadable_configuration_is_unknown_and_reported(data, problem):
    assert problem in kueue_config(data).problem
    assert kueue_config(data).counted({"nvidia.com/gpu": 1}) == {"nvidia.com/gpu": 1}


def test_a_pod_is_of_the_queue_of_its_workload_before_that_of_its_labels():
    job = OwnerReference("Job", "train", "job-uid")
    labels = {"kueue.x-k8s.io/queue-name": "other"}
    pod = Pod(PodRef("p", "team", "train-x"), labels=labels, owner=job)
    workload = asking("main", 1, owners=("job-uid",), admitted_by="a")
    local = (LocalQueue("team", "main", "a"), LocalQueue("team", "other", "b"))
    kueue = KueueObjects(local_queues=local, workloads=(workload,))
    assert PodsInQueues(kueue).of(pod).cluster_queue == "a"
    assert PodsInQueues(KueueObjects(local_queues=local)).of(pod).cluster_queue == "b"
    assert PodsInQueues(kueue).of(Pod(PodRef("q", "team", "alone"))) is None


@pytest.mark.parametrize(
    "marks",
    [
        {"annotations": {"kueue.x-k8s.io/workload": "asks"}},
        {"labels": {"jobset.sigs.k8s.io/jobset-name": "train"}},
    ],
)
def test_a_pod_between_which_and_its_workload_stands_a_job_finds_its_workload(marks):
    job = OwnerReference("Job", "train-0", "job-uid")
    pod = Pod(PodRef("p", "team", "train-x"), owner=job, **marks)
    workload = asking("main", 1, owners=("set-uid",), owner="JobSet train", admitted_by="a")
    found = PodsInQueues(KueueObjects(workloads=(workload,))).of(pod)
    assert (found.workload, found.cluster_queue) == (workload, "a")


def test_what_a_pod_holds_is_of_the_flavor_of_its_gpus_and_not_of_its_cpus():
    held = {GPUS: 1, MEMORY: 2**30}
    job = OwnerReference("Job", "train", "job-uid")
    pod = Pod(PodRef("p", "team", "train-x"), owner=job)

    def flavors(**reserved):
        names = {"gpus": "nvidia.com/gpu", "memory": "nvidia.com/gpumem", "rdma": "rdma/hca"}
        keys = {
            QuotaResource(flavor, names.get(each, each)): 1 for each, flavor in reserved.items()
        }
        workload = asking("a", 1, owners=("job-uid",), admitted_by="a", reserved=keys)
        local = (LocalQueue("team", "a", "a"),)
        kueue = KueueObjects(local_queues=local, workloads=(workload,), config=KueueConfig())
        tree = kueue_tree(kueue, [(pod, held)])
        return tree.nodes[QuotaName(QuotaLevel.LOCAL_QUEUE, "team/a")].held

    assert flavors(gpus="t4", cpu="default", rdma="nic") == {"t4": held}
    assert flavors(gpus="t4", memory="mem") == {"t4": {GPUS: 1}, "mem": {MEMORY: 2**30}}
    assert flavors(cpu="one", memory="one", pods="one") == {"one": held}
    assert flavors(rdma="a", pods="b") == {"a": held}
    assert flavors(cpu="a", pods="b") == {"": held}


def test_several_namespaces_share_a_queue_and_a_namespace_has_several():
    queues = tuple(ClusterQueue(name, "ml", {KEY: DeclaredQuota(2)}) for name in "ab")
    local = tuple(LocalQueue(namespace, queue, queue) for namespace in ("x", "y") for queue in "ab")
    tree = kueue_tree(KueueObjects(queues, local, (Cohort("ml"),), config=KueueConfig()))
    shown = [(depth, node.name.text) for depth, node in tree.walk()]
    assert shown[:4] == [
        (0, "Cohort ml"),
        (1, "ClusterQueue a"),
        (2, "LocalQueue x/a"),
        (2, "LocalQueue y/a"),
    ]


def test_the_pod_sets_of_a_workload_are_read_with_their_group_and_what_each_was_counted_for():
    sets = [{"name": each, "topologyRequest": {"podSetGroupName": "all"}} for each in "ab"]
    counted = [{"name": each, "resources": {"nvidia.com/gpu": "2"}} for each in "ab"]
    workload = WORKLOADS.one(
        json.dumps(
            {
                "kind": "Workload",
                "metadata": {"name": "w", "namespace": "team"},
                "spec": {"podSets": [*sets, {"name": "c"}]},
                "status": {"resourceRequests": counted},
            }
        ).encode()
    )
    assert [each.group for each in workload.pod_sets] == ["all", "all", ""]
    assert workload.considered == {each: {"nvidia.com/gpu": 2} for each in "ab"}
    assert KueueObjects().requested(workload) == {"nvidia.com/gpu": 4}
