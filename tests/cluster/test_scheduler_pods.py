"""What a single pod gets of a real kube-scheduler with our extender, and for whom others end."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.cluster.extending import (
    Extender,
    Fault,
    bound,
    kube_scheduler,
    make_node,
    priority_class,
)
from tests.cluster.placing import HAMI_SCHEME, SCHEMES, as_pod, check, limits
from tests.cluster.scheduler_bed import bed, bind_body, placing
from tests.support.bed import objects
from tests.support.bed.client import Refused
from tests.support.registers import HAMI, hami_gpu
from tests.support.waiting import wait_until
from vgpu.kube.kinds import NODES
from vgpu.model.units import MIB
from vgpu.placement.node_view import held_shares, scheme_of

__all__ = ["bed", "placing"]


def test_a_bind_is_one_binding_however_often_it_is_asked_for(bed):
    """I7, S7, S8."""
    bed.node("gpushare", "gpushare-i")
    bed.node("gpushare", "gpushare-j")
    pod = bed.start("again", bed.namespace, "gpushare", 2, schedulerName="nobody")
    body = bind_body(pod, "gpushare-i")
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: bed.extender.post("/bind", body), range(4)))
    assert answers == [{"Error": ""}] * 4
    first = bed.client.get(pod)
    assert bed.extender.post("/gpushare-scheduler/bind", body) == {"Error": ""}
    elsewhere = bed.extender.post("/bind", bind_body(pod, "gpushare-j"))
    assert elsewhere == {"Error": "already assigned to node gpushare-i"}
    assert bed.client.get(pod)["metadata"]["annotations"] == first["metadata"]["annotations"]
    bed.client.delete(pod, grace_seconds=0)
    bed.start("again", bed.namespace, "gpushare", 2, schedulerName="nobody")
    stale = bed.extender.post("/bind", body)
    assert "another pod of the same name" in stale["Error"]
    assert not bound(bed.client.get(f"/api/v1/namespaces/{bed.namespace}/pods/again"))


def test_annotations_that_a_user_wrote_decide_nothing(bed):
    """A forged reservation is overwritten, or the pod is refused; it never counts as one."""
    bed.node("gpushare", "gpushare-u")
    forged = bed.pod("forged", bed.namespace, "gpushare", 4)
    forged["metadata"]["annotations"] = {
        "scheduler.framework.gpushare.allocation": '{"0":{"1":1}}',
        "ALIYUN_COM_GPU_MEM_IDX": "7",
    }
    forged = bed.client.create(forged)
    bed.client.wait_for(forged, bound, "is bound")
    (view,) = check(bed, [bed.client.get(forged)]).values()
    assert sorted(gpu.memory_bytes // MIB for gpu in view.candidate.gpus) == [0, 16384]


def test_a_request_for_hamis_priority_keeps_no_pod_pending(bed):
    """No node has the resource; beside GPUs and alone."""
    bed.node("hami", "hami-q")
    pods = {}
    for name, asked in (("both", limits("hami", 1)), ("alone", {})):
        pod = objects.pod(
            name, bed.namespace, limits=asked | {"nvidia.com/priority": 1}, schedulerName=bed.name
        )
        pods[name] = bed.client.create(pod)
    bed.wait_bound(bed.namespace, 2)
    both, alone = (as_pod(bed.client.get(pods[name])) for name in ("both", "alone"))
    scheme = scheme_of(
        NODES.one(json.dumps(bed.client.get("/api/v1/nodes/hami-q")).encode()), SCHEMES
    )
    (share,) = held_shares(scheme, both, ())
    assert share.memory_bytes == 4096 * MIB
    assert held_shares(scheme, alone, ()) is None


def test_hamis_preferences_of_numa_nodes_and_links_choose_gpus_and_mig_mode_takes_none(bed):
    """GPU 0 and 2 are connected, 0 and 1 are of one NUMA node, and GPU 3 is in MIG mode."""
    gpus = [
        hami_gpu(f"GPU-p-{number}", number, numa=number // 2, mode=mode)
        for number, mode in enumerate(["hami-core"] * 3 + ["mig"])
    ]
    scores = [
        {"uuid": "GPU-p-0", "score": {"GPU-p-1": 10, "GPU-p-2": 100}},
        {"uuid": "GPU-p-1", "score": {"GPU-p-0": 10, "GPU-p-2": 10}},
        {"uuid": "GPU-p-2", "score": {"GPU-p-0": 100, "GPU-p-1": 10}},
    ]
    annotations = {
        HAMI: json.dumps(gpus),
        "hami.io/node-nvidia-score": json.dumps(scores),
    }
    bed.nodes.append("hami-p")
    make_node(bed.api, "hami-p", {"nvidia.com/gpu": 40}, annotations)

    def devices(name, policy, count, **more):
        asked = {"nvidia.com/gpu": count, "nvidia.com/gpumem": 4096}
        pod = objects.pod(name, bed.namespace, limits=asked, schedulerName=bed.name)
        pod["metadata"]["annotations"] = {"hami.io/gpu-scheduler-policy": policy, **more}
        pod = bed.client.wait_for(bed.client.create(pod), bound, "is bound")
        return {share.device for share in held_shares(HAMI_SCHEME, as_pod(pod), ())}

    assert devices("linked", "topology-aware", 2) == {"GPU-p-0", "GPU-p-2"}
    assert devices("single", "topology-aware", 1) == {"GPU-p-1"}
    assert devices("numa", "numa,spread", 1) == {"GPU-p-2"}
    assert devices("all", "spread", 3) == {"GPU-p-0", "GPU-p-1", "GPU-p-2"}
    mig = objects.pod("mig", bed.namespace, limits=limits("hami", 1), schedulerName=bed.name)
    mig["metadata"]["annotations"] = {"nvidia.com/vgpu-mode": "mig"}
    bed.wait_refused(bed.client.create(mig), "the GPUs are shared in another mode than the pod")


def test_pods_of_an_exclusive_rule_of_volcano_share_no_gpu_with_each_other(bed):
    bed.node("volcano", "volcano-e")

    def start(name, **labels):
        pod = bed.pod(name, bed.namespace, "volcano", 1)
        pod["metadata"]["labels"] = labels
        return bed.client.create(pod)

    for name in ("one", "two"):
        start(name, app="train", other=name)
    pods = bed.wait_bound(bed.namespace, 2)
    (scheme,) = (scheme for scheme in SCHEMES if scheme.row.name == "volcano")
    used = [share.device for pod in pods for share in held_shares(scheme, as_pod(pod), ())]
    assert sorted(used) == ["GPU-volcano-0", "GPU-volcano-1"]
    bed.wait_refused(start("third", app="train"), "or of an exclusive rule, uses the GPUs")
    start("free", app="serve")
    check(bed, bed.wait_bound(bed.namespace, 3))


# ---------------------------------------------------------------- preemption


def ranked(bed, name, system, quarters, value, **spec):
    """A pod with a priority; admission may learn of a new PriorityClass later than we do."""
    spec["priorityClassName"] = priority_class(bed.api, value)

    def started():
        try:
            return bed.start(name, bed.namespace, system, quarters, **spec)
        except Refused as refused:
            if "no PriorityClass" not in str(refused):
                raise
            return None

    return wait_until(started, f"the PriorityClass of {value} is known to admission")


def test_a_preemption_frees_one_gpu_and_keeps_it_for_its_pod(bed, tmp_path):
    """kube-scheduler's two victims are on two GPUs; the GPU that a third one frees is held.

    The third one is more important than the pod beside the other victim, which a disruption budget
    protects. Without the right to read budgets no third pod would end.
    """
    bed.node("volcano", "volcano-p")
    pods = []
    for value in (1, 3, 2, 4):  # two on each GPU
        pods.append(ranked(bed, f"low{value}", "volcano", 2, value))
        bed.wait_bound(bed.namespace, len(pods))
    protect(bed, pods[1])
    freed = held_devices(bed.client.get(pods[2]))
    gate, reached = threading.Event(), threading.Event()

    def fault(path, body):
        if path == "/filter" and body["Pod"].get("status", {}).get("nominatedNodeName"):
            reached.set()
            return Fault(gate=gate)
        return Fault()

    bed.proxy.fault = fault
    with (
        Extender(bed.api, tmp_path) as second,
        kube_scheduler(bed.api, tmp_path, "preempts", bed.proxy.port, httpTimeout="60s"),
    ):
        high = ranked(bed, "high", "volcano", 4, 100, schedulerName="preempts")
        wait_until(lambda: sum(map(deleting, bed.pods(bed.namespace))) == 3, "three pods leave")
        for pod in filter(deleting, bed.pods(bed.namespace)):  # as their kubelet would
            bed.client.delete(pod, grace_seconds=0)
        wait_until(reached.is_set, "kube-scheduler asks for the chosen node")
        thief = ranked(bed, "thief", "volcano", 4, 50, schedulerName="nobody")
        for extender in (bed.extender, second):
            answer = extender.post("/bind", bind_body(thief, "volcano-p"))
            assert answer == {"Error": "no GPU has enough free memory"}
        gate.set()
        high = bed.client.wait_for(high, bound, "is bound")
    assert held_devices(high) == freed
    left = [pod["metadata"]["name"] for pod in bed.pods(bed.namespace) if bound(pod)]
    assert sorted(left) == ["high", "low3"]
    check(bed, bed.pods(bed.namespace))


def test_the_event_explains_where_kube_schedulers_preemption_is_blind(bed):
    """The node's sums suffice, so that kube-scheduler finds nobody to preempt."""
    bed.node("gpushare", "gpushare-b")
    for number in range(2):
        ranked(bed, f"low{number}", "gpushare", 3, 1)
    bed.wait_bound(bed.namespace, 2)
    high = ranked(bed, "high", "gpushare", 2, 100)
    cause = (
        "1 node would take the pod without pods of lower priority, which kube-scheduler does not"
        " preempt: the sums of the resources suffice there"
    )
    wait_until(
        lambda: [event for event in bed.client.events(high) if cause in event["message"]],
        "the event is there",
        context=lambda: str(bed.client.events(high)),
    )
    assert not bed.proxy.of("/preempt")
    assert sum(map(bound, bed.pods(bed.namespace))) == 2


def protect(bed, pod):
    """A disruption budget by which the pod must not end."""
    labels = {"app": "protected"}
    bed.client.patch(pod, {"metadata": {"labels": labels}})
    budget = bed.client.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "protects", "namespace": bed.namespace},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
        }
    )
    counts = {"currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "disruptionsAllowed": 0}
    bed.client.patch(budget, {"status": counts}, "status")  # as its controller would


def deleting(pod):
    return "deletionTimestamp" in pod["metadata"]


def held_devices(pod):
    """The GPUs of a pod of Volcano, by its annotations."""
    (scheme,) = (scheme for scheme in SCHEMES if scheme.row.name == "volcano")
    claim = scheme.codec.claim(as_pod(pod))
    return {share.device for each in claim.allocations for share in each.shares}
