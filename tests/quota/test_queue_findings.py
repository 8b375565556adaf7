"""What is wrong between the quotas of queues and what pods hold, and what is no proof of it."""

from fractions import Fraction

from msgspec import structs

from tests.quota.trees import pod_set
from vgpu.kube.kueue_kinds import (
    ClusterQueue,
    Cohort,
    LocalQueue,
    QueuedWorkload,
    Reserved,
    ResourceFlavor,
    WorkloadCondition,
)
from vgpu.kube.scheduling_objects import SchedulingNode
from vgpu.model.allocation import Device
from vgpu.model.declared_quota import DeclaredQuota, QuotaResource
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Node, OwnerReference, Pod
from vgpu.model.units import MIB
from vgpu.quota.kueue_config import KEY as CONFIG_KEY
from vgpu.quota.kueue_config import KueueConfig, Transformation, kueue_config
from vgpu.quota.kueue_tree import KueueObjects
from vgpu.quota.queue_findings import (
    FlavorNode,
    QueueEvidence,
    QueueFinding,
    flavor_node,
    missing_transformations,
    queue_findings,
)
from vgpu.quota.resources import GPUS, MEMORY

HOUR = 3600.0
NOW = 100 * HOUR
GPU, TOTAL = "nvidia.com/gpu", "nvidia.com/total-gpumem"
KEY, MEMORY_KEY = QuotaResource("t4", GPU), QuotaResource("t4", TOTAL)
CONFIG = KueueConfig(
    {
        f"nvidia.com/{name}": Transformation({f"nvidia.com/total-{name}": Fraction(1)}, GPU, True)
        for name in ("gpumem", "gpucores")
    }
)
NODE = FlavorNode({"gpu": "t4"}, {GPU: 8}, gpus=8, memory_bytes=8 * 16000 * MIB, is_hami=True)


def workload(name="train", gpus=2, *, hours=3.0, memory=0, **fields):
    """An admitted workload that has its quota for so many hours."""
    reserved = WorkloadCondition("QuotaReserved", True, since=NOW - hours * HOUR)
    fields = {
        "admitted_by": "a",
        "reserved": {KEY: gpus, MEMORY_KEY: memory},
        "conditions": {"QuotaReserved": reserved},
        **fields,
    }
    return QueuedWorkload("team", name, name, (f"job-{name}",), queue="main", **fields)


def kueue(*workloads, nominal=8, memory=64000, used=None, **fields):
    declared = {KEY: DeclaredQuota(nominal), MEMORY_KEY: DeclaredQuota(memory)}
    counted = sum(each.reserved.get(KEY, 0) for each in workloads) if used is None else used
    reserved = {KEY: Reserved(counted)}
    own = KueueObjects(
        (ClusterQueue("a", "", declared, reserved),),
        (LocalQueue("team", "main", "a", reserved),),
        flavors=(ResourceFlavor("t4", {"gpu": "t4"}),),
        workloads=workloads,
        config=CONFIG,
        is_read=True,
    )
    return structs.replace(own, **fields)


def pod(name="p", owner="train", **fields):
    ref = PodRef(f"uid-{name}", "team", name)
    of = OwnerReference("Job", owner, f"job-{owner}") if owner else None
    return Pod(ref, node="n", owner=of, **fields)


def evidence(objects, *pods, gpus=2, **fields):
    held = tuple((each, {GPUS: gpus, MEMORY: gpus * 4000 * MIB}) for each in pods)
    fields = {"nodes": (NODE,), "as_of": NOW, **fields}
    return QueueEvidence(objects, held=held, pods=pods, **fields)


def found(read):
    return {each.reason: each.text for each in queue_findings(read)}


def test_nothing_is_found_where_pods_hold_what_their_workload_counts():
    assert found(evidence(kueue(workload(memory=8000)), pod())) == {}
    assert found(QueueEvidence()) == {}


def test_reserved_quota_without_holdings_has_its_amount_and_hours():
    read = evidence(kueue(workload(memory=8000)))
    assert found(read) == {
        QueueFinding.RESERVED_IDLE: (
            "Workload team/train has reserved 2 nvidia.com/gpu of flavor t4, 8000"
            " nvidia.com/total-gpumem of flavor t4 for 3h, and its pods hold nothing: 6.0 hours of"
            " nvidia.com/gpu"
        )
    }
    assert found(structs.replace(read, pods=None)) == {}


def test_quota_that_is_new_or_of_another_cluster_is_not_idle():
    assert found(evidence(kueue(workload(memory=8000, hours=1 / 60)))) == {}
    for fields in ({"cluster": "worker-1"}, {"nominated": ("worker-1", "worker-2")}):
        assert found(evidence(kueue(workload(memory=8000, **fields)))) == {}


def test_what_kueue_makes_of_dra_and_of_transformations_is_something():
    text = """
resources:
  deviceClassMappings: [{name: example.com/gpus, deviceClassNames: [gpu.nvidia.com]}]
  transformations: [{input: nvidia.com/mig-1g.5gb, outputs: {example.com/slices: 1}}]
"""
    config = kueue_config({CONFIG_KEY: text})
    for name, is_made in (("gpus", True), ("slices", True), ("other", False)):
        quotas = {QuotaResource("t4", f"example.com/{name}"): DeclaredQuota(8)}
        queues = (ClusterQueue("a", "", quotas),)
        read = evidence(kueue(cluster_queues=queues, config=config))
        assert (QueueFinding.OF_NOTHING not in found(read)) == is_made
        assert QueueFinding.ABOVE_NODES not in found(read)


def test_gpus_of_unknown_number_or_size_are_no_zero():
    def of(allocatable, *sizes):
        node = SchedulingNode(Node("n"), {"gpu": "t4"}, allocatable)
        return flavor_node(node, [Device(f"GPU-{n}", n, size) for n, size in enumerate(sizes)])

    read = evidence(kueue(workload(memory=8000)), pod())
    for allocatable, sizes, is_known in (
        ({GPU: 80}, (), False),
        ({GPU: 80}, (MIB, None), False),
        ({GPU: 80}, (MIB, MIB), True),
        ({GPU: 0}, (), True),
    ):
        reasons = found(structs.replace(read, nodes=(of(allocatable, *sizes),)))
        assert (QueueFinding.ABOVE_NODES in reasons) == is_known


def test_a_resource_that_kueue_excludes_needs_no_transformation():
    excluding = structs.replace(KueueConfig(), excluded=("nvidia.com/gpumem", "nvidia.com/gpuc"))
    assert [*missing_transformations(excluding)] == []
    (line,) = missing_transformations(KueueConfig(excluded=("nvidia.com/gpumem",)))
    assert "input: nvidia.com/gpucores" in line


def test_an_evicted_workload_that_keeps_its_quota_is_named_as_such():
    evicted = {"Evicted": WorkloadCondition("Evicted", True, "PodsReadyTimeout")}
    one = workload(memory=8000)
    one = structs.replace(one, conditions={**one.conditions, **evicted})
    assert (
        "although Kueue has evicted it" in found(evidence(kueue(one)))[QueueFinding.RESERVED_IDLE]
    )


def test_many_findings_of_one_reason_are_five_lines_and_a_number():
    objects = kueue(*(workload(f"w-{n}", memory=1) for n in range(8)), nominal=16)
    texts = [each.text for each in queue_findings(evidence(objects, nodes=()))]
    assert len(texts) == 6
    assert texts[-1].startswith("3 more: ")


def test_a_pod_that_runs_without_admission_is_named_with_its_workload():
    waits = structs.replace(workload(memory=8000), admitted_by="", reserved={}, conditions={})
    read = evidence(kueue(waits), pod())
    assert found(read)[QueueFinding.RUNS_UNADMITTED] == (
        "pod team/p is of LocalQueue team/main and runs, and Workload team/train is not admitted"
    )
    bare = pod("bare", "", labels={"kueue.x-k8s.io/queue-name": "main"})
    assert (
        "Kueue has no Workload for it"
        in found(evidence(kueue(), bare))[QueueFinding.RUNS_UNADMITTED]
    )


def test_a_pod_that_leaves_or_whose_workload_was_not_read_is_no_finding():
    waits = structs.replace(workload(memory=8000), admitted_by="", reserved={}, conditions={})
    assert found(evidence(kueue(waits), pod(deleted_at=NOW))) == {}
    queued = {"kueue.x-k8s.io/queue-name": "main"}
    unread = kueue(unread=frozenset({"Workload"}))
    assert found(evidence(unread, pod("bare", "", labels=queued))) == {}
    # of a RayJob, whose Workload lies above another object
    assert found(evidence(kueue(), pod("ray", "cluster", labels=queued))) == {}
    admitted = {**queued, "kueue.x-k8s.io/cluster-queue-name": "a"}
    assert found(evidence(kueue(), pod("bare", "", labels=admitted))) == {}


def test_pods_with_whole_gpus_of_nvidias_plugin_are_neither_idle_nor_unadmitted():
    """The API server does not have which GPU such a pod has: its pods hold nothing there."""
    runs = pod(containers=(Container("main", {GPU: 2}),), phase="Running")
    admitted = QueueEvidence(kueue(workload(memory=8000)), pods=(runs,), nodes=(NODE,), as_of=NOW)
    assert found(admitted) == {}
    starts = structs.replace(runs, phase="Pending")
    assert set(found(structs.replace(admitted, pods=(starts,)))) == {QueueFinding.RESERVED_IDLE}
    waits = structs.replace(workload(memory=8000), admitted_by="", reserved={}, conditions={})
    read = structs.replace(admitted, kueue=kueue(waits))
    assert set(found(read)) == {QueueFinding.RUNS_UNADMITTED}


def test_pods_of_a_namespace_of_which_no_queue_was_read_are_no_finding():
    bare = pod("bare", "", labels={"kueue.x-k8s.io/queue-name": "main"})
    elsewhere = structs.replace(bare, ref=PodRef("uid-bare", "other", "bare"))
    assert found(evidence(kueue(), elsewhere)) == {}


def test_use_that_stays_after_its_workloads_is_a_finding():
    read = evidence(kueue(workload(memory=8000), used=6), pod())
    assert found(read) == {
        QueueFinding.USE_STAYS: (
            "LocalQueue team/main counts 6 nvidia.com/gpu of flavor t4, and its workloads have"
            " reserved 2"
        )
    }
    for kind in ("Workload", "LocalQueue"):
        unread = structs.replace(read.kueue, unread=frozenset({kind}))
        assert found(structs.replace(read, kueue=unread)) == {}


def test_a_workload_that_counts_fewer_gpus_than_its_pods_hold_is_a_finding():
    objects = kueue(workload(gpus=1, memory=4000))
    pods = pod("p-1"), pod("p-2"), pod("p-3")
    assert found(evidence(objects, *pods, gpus=1)) == {
        QueueFinding.COUNTS_TOO_LITTLE: ("Workload team/train counts 1 GPU, and its pods hold 3")
    }
    leaving = pod("p-1"), *(structs.replace(each, deleted_at=NOW) for each in pods[1:])
    assert found(evidence(objects, *leaving, gpus=1)) == {}


def test_quotas_above_what_the_nodes_of_a_flavor_have_are_a_finding():
    read = evidence(kueue(workload(memory=8000), nominal=9, memory=200000), pod())
    gpus, memory = (each.text for each in queue_findings(read))
    text = "ResourceFlavor t4: the quotas of nvidia.com/gpu are 9 GPUs, and 1 node with its labels"
    assert gpus == f"{text} has 8"
    assert "total-gpumem are 200000 MiB, and 1 node with its labels has 128000" in memory
    of_cohort = Cohort("ml", quotas={KEY: DeclaredQuota(1)})
    together = kueue(workload(memory=8000), nominal=8, cohorts=(of_cohort,))
    assert QueueFinding.ABOVE_NODES in found(evidence(together, pod()))
    assert found(structs.replace(read, nodes=())) == {}
    unread = structs.replace(read.kueue, unread=frozenset({"ResourceFlavor"}))
    assert found(structs.replace(read, kueue=unread)) == {}
    two = structs.replace(read, nodes=(NODE, NODE))
    assert found(two) == {}
    elsewhere = structs.replace(NODE, labels={"gpu": "v100"})
    assert "0 nodes with its labels have 0" in " ".join(
        found(structs.replace(read, nodes=(elsewhere,))).values()
    )


def test_a_quota_of_a_resource_that_nothing_can_have_is_found_once():
    nothing = QuotaResource("t4", "example.com/gpux")
    own = ClusterQueue("b", "", {nothing: DeclaredQuota(4)})
    objects = kueue(workload(memory=8000))
    objects = structs.replace(objects, cluster_queues=(*objects.cluster_queues, own))
    assert set(found(evidence(objects, pod()))) == {QueueFinding.OF_NOTHING}


def test_a_workload_without_memory_counts_zero_in_a_queue_that_limits_memory():
    read = evidence(kueue(workload(memory=0)), pod())
    assert found(read) == {
        QueueFinding.COUNTS_ZERO: (
            "Workload team/train counts 2 nvidia.com/gpu and 0 nvidia.com/total-gpumem in"
            " ClusterQueue a, which limits nvidia.com/total-gpumem"
        )
    }


def test_a_flavor_without_a_quota_of_memory_counts_nothing_wrongly():
    whole = QuotaResource("a100", GPU)
    one = structs.replace(workload(), reserved={whole: 2})
    objects = kueue(one, used=0)
    queue = objects.cluster_queues[0]
    queue = structs.replace(queue, quotas={**queue.quotas, whole: DeclaredQuota(4)})
    read = evidence(structs.replace(objects, cluster_queues=(queue,)), pod())
    assert found(read) == {}
    waits = structs.replace(
        one, admitted_by="", reserved={}, conditions={}, pod_sets=(pod_set("main", gpus=1),)
    )
    both = structs.replace(read.kueue, workloads=(waits,))
    assert found(structs.replace(read, kueue=both, held=())) == {}
    of_hami = structs.replace(both, cluster_queues=objects.cluster_queues)
    assert set(found(structs.replace(read, kueue=of_hami, held=()))) == {QueueFinding.COUNTS_ZERO}


def test_the_transformations_of_kueues_page_that_are_missing_are_named():
    bare = kueue(workload(memory=8000), config=KueueConfig())
    text = found(evidence(bare, pod()))[QueueFinding.NOT_TRANSFORMED]
    assert "input: nvidia.com/gpumem, strategy: Replace, multiplyBy: nvidia.com/gpu" in text
    assert [*missing_transformations(CONFIG)] == []
    once = KueueConfig({"nvidia.com/gpumem": Transformation({TOTAL: Fraction(1)})})
    assert len([*missing_transformations(once)]) == 2
    without = structs.replace(NODE, is_hami=False)
    assert QueueFinding.NOT_TRANSFORMED not in found(evidence(bare, pod(), nodes=(without,)))
    unknown = kueue(workload(memory=8000), config=KueueConfig(problem="not read"))
    assert QueueFinding.NOT_TRANSFORMED not in found(evidence(unknown, pod()))
