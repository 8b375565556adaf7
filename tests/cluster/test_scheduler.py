"""Our scheduler behind a real kube-scheduler: no GPU is over-committed, whatever breaks there.

A proxy between the two records every request, and delays, drops or breaks it. What holds at every
moment is checked by replaying the watch of the pods event by event.
"""

import itertools
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from scheduler.compat import SchedulerCompat
from tests.cluster.api_relay import ApiRelay
from tests.cluster.extending import (
    Extender,
    ExtenderProxy,
    Fault,
    bound,
    condition_message,
    kube_scheduler,
    make_node,
    priority_class,
    remove_nodes,
    request,
)
from tests.cluster.placing import (
    HAMI_REGISTER,
    HAMI_SCHEME,
    NODES_OF,
    SCHEMES,
    Placing,
    Replay,
    all_that_fit,
    as_pod,
    check,
    explain_path,
    labelled,
    limits,
    random_pods,
)
from tests.support.bed import objects
from tests.support.bed.client import Refused
from tests.support.waiting import wait_until
from tests.support.web_helpers import Pki, fetch
from vgpu.kube.kinds import NODES
from vgpu.placement.node_view import held_shares, scheme_of
from vgpu.units import MIB

COMPAT = [f"--compat={each}" for each in SchedulerCompat]


@pytest.fixture(scope="module")
def placing(api, tmp_path_factory):
    """One extender and one kube-scheduler for all tests of this file."""
    folder = tmp_path_factory.mktemp("scheduler")
    with (
        Extender(api, folder, *COMPAT, "--volcano.exclusive-rule=app=train") as extender,
        ExtenderProxy(extender.port) as proxy,
        kube_scheduler(api, folder, "ours", proxy.port),
    ):
        yield Placing(api, extender, proxy, "ours")


@pytest.fixture
def bed(placing, api_namespace):
    """The same with a namespace of its own; afterwards its nodes and faults are gone."""
    placing.namespace = api_namespace
    placing.proxy.exchanges.clear()
    placing.proxy.broken = 0
    yield placing
    placing.proxy.fault = lambda *_: Fault()
    remove_nodes(placing.api, placing.nodes)
    placing.nodes.clear()


@pytest.mark.parametrize("system", NODES_OF)
def test_a_node_is_filled_to_the_last_quarter_and_not_beyond(bed, system):
    bed.node(system, f"{system}-n1")
    for number, quarters in enumerate((3, 2, 2, 1)):  # in another order, spread GPUs are fragmented
        bed.start(f"p{number}", bed.namespace, system, quarters)
        pods = bed.wait_bound(bed.namespace, number + 1)
    views = check(bed, pods)
    if system == "hami":
        bed.client.wait_for(pods[0], lambda pod: labelled(pod) == "hami-n1", "has HAMi's label")
    (view,) = views.values()
    assert [gpu.free_bytes // MIB for gpu in view.candidate.gpus] == [0, 0]
    waiting = bed.start("late", bed.namespace, system, 1)
    bed.wait_refused(waiting, "0/1 nodes are available")
    bed.client.delete(pods[-1], grace_seconds=0)
    check(bed, bed.wait_bound(bed.namespace, 4))


# ---------------------------------------------------------------- what breaks between the two


def breaking(*faults):
    """Breaks the first binds of each pod in these ways, one after another."""
    waiting = {}
    lock = threading.Lock()

    def fault(path, body):
        if path != "/bind":
            return Fault()
        with lock:
            left = waiting.setdefault(body["PodUID"], iter(faults))
            return next(left, Fault())

    return fault


LOST_REQUEST = Fault(passes=False, answers=False)
LOST_ANSWER = Fault(answers=False)
ERROR_500 = Fault(passes=False, status=500)
DONE_AND_500 = Fault(status=500)


@pytest.mark.parametrize(
    "faults",
    [(LOST_ANSWER,), (LOST_REQUEST, DONE_AND_500), (ERROR_500, LOST_ANSWER)],
    ids=["lost answer", "lost request, then 500 after the binding", "500, then lost answer"],
)
def test_a_broken_bind_neither_overcommits_nor_loses_a_pod(bed, faults):
    for system in ("gpushare", "hami"):
        bed.node(system, f"{system}-f")
    bed.proxy.fault = breaking(*faults)
    replay = Replay(bed)
    random_pods(bed, 16, seed=len(faults))
    replay.check(lambda pods: len(pods) == 16 and all_that_fit(bed, pods))
    assert bed.proxy.broken >= sum(map(bound, replay.pods.values()))


def test_pods_that_are_bound_in_another_order_than_decided_fit(bed):
    """The binds of eight pods are held back until all have arrived, and pass in random order."""
    bed.node("gpushare", "gpushare-o")
    gates = {}
    lock = threading.Lock()

    def fault(path, body):
        if path != "/bind":
            return Fault()
        with lock:
            gate = gates.setdefault(body["PodUID"], threading.Event())
            if len(gates) >= 8:  # the ninth arrives too, where one of the eight was given up
                waiting = list(gates.values())
                random.Random(1).shuffle(waiting)
                for each in waiting:
                    each.set()
        return Fault(gate=gate)

    bed.proxy.fault = fault
    replay = Replay(bed)
    for number in range(9):
        bed.start(f"o{number}", bed.namespace, "gpushare", 1)
    replay.check(lambda pods: sum(map(bound, pods)) == 8 and len(pods) == 9)


def test_a_killed_extender_forgets_nothing(bed):
    """kill -9 after a binding that kube-scheduler was not told of, and before one."""
    bed.node("volcano", "volcano-k")
    reached = threading.Event()
    gate = threading.Event()

    def fault(path, body):
        if path == "/bind" and not reached.is_set():
            reached.set()
            return Fault(gate=gate)
        return Fault()

    bed.proxy.fault = fault
    replay = Replay(bed)
    random_pods(bed, 12, seed=5)
    wait_until(reached.is_set, "a bind has arrived")
    bed.extender.kill()
    gate.set()
    bed.extender.start()
    replay.check(lambda pods: len(pods) == 12 and all_that_fit(bed, pods))


def test_two_kube_schedulers_do_not_promise_a_gpu_twice(bed, tmp_path):
    bed.node("gaia", "gaia-t")
    bed.node("hami", "hami-t")
    replay = Replay(bed)
    with kube_scheduler(bed.api, tmp_path, "theirs", bed.extender.port):
        names = itertools.cycle(("ours", "theirs"))
        asked = [
            bed.pod(f"t{number}", bed.namespace, system, quarters, schedulerName=next(names))
            for number, (system, quarters) in enumerate(
                itertools.product(("gaia", "hami"), (1, 2, 1, 3, 2, 1))
            )
        ]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(bed.client.create, asked))
        replay.check(lambda pods: len(pods) == len(asked) and all_that_fit(bed, pods))


def test_replicas_that_take_turns_do_not_promise_a_gpu_twice(bed, tmp_path):
    """I5: filter at one, bind at the other; one is killed meanwhile, and its requests fail."""
    bed.node("volcano", "volcano-r")
    bed.node("gpushare", "gpushare-r")
    replay = Replay(bed)
    with Extender(bed.api, tmp_path) as second, ExtenderProxy(second.port) as proxy:
        proxy.targets = itertools.cycle([second.port, bed.extender.port, second.port])
        with kube_scheduler(bed.api, tmp_path, "turns", proxy.port):
            bed.proxy.fault = lambda *_: LOST_REQUEST  # the other kube-scheduler stays out of it
            random_pods(bed, 20, seed=7, schedulerName="turns")
            wait_until(lambda: len(proxy.of("/bind")) >= 4, "some pods are bound")
            second.kill()
            second.start()
            replay.check(lambda pods: len(pods) == 20 and all_that_fit(bed, pods))
    leases = bed.client.list("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases")
    lease = next(one for one in leases if one["metadata"]["name"] == "vgpu-node-volcano-r")
    claims = json.loads(lease["metadata"]["annotations"]["vgpu.dev/claims"])
    there = [pod for pod in replay.pods.values() if pod["spec"].get("nodeName") == "volcano-r"]
    assert {pod["metadata"]["uid"] for pod in there} <= claims.keys()
    assert lease["metadata"]["ownerReferences"][0]["name"] == "volcano-r"


@pytest.mark.thorough("schedulers")
def test_a_replica_that_is_cut_off_binds_nothing_by_what_it_saw_last(bed, tmp_path, figure):
    """I9: half of the node is free by its old view, and another replica fills it meanwhile."""
    bed.node("gpushare", "gpushare-z")
    replay = Replay(bed)

    def pod(name, **spec):
        return bed.start(name, bed.namespace, "gpushare", 1, **spec)

    with (
        ApiRelay(bed.api) as relay,
        Extender(bed.api, tmp_path, relay=relay) as cut_off,
        kube_scheduler(bed.api, tmp_path, "cut-off", cut_off.port),
    ):
        first = [pod(f"before{number}", schedulerName="cut-off") for number in range(4)]
        bed.wait_bound(bed.namespace, 4)
        relay.cut()
        started = time.monotonic()
        for number in range(4):
            pod(f"meanwhile{number}")
        bed.wait_bound(bed.namespace, 8)
        late = pod("late", schedulerName="cut-off")
        meta = late["metadata"]
        names = {"PodName": meta["name"], "PodNamespace": meta["namespace"]}
        binding = {**names, "PodUID": meta["uid"], "Node": "gpushare-z"}
        asked = {"Pod": late, "Nodes": None, "NodeNames": ["gpushare-z"]}
        assert cut_off.post("/bind", binding)["Error"]
        wait_until(
            lambda: cut_off.post("/filter", asked)["Error"],
            "filter refuses to answer by old data",
            seconds=150,
        )
        figure(f"filter refused {time.monotonic() - started:.0f} s after the cut")
        answer = cut_off.post("/filter", asked)
        stale = "vgpu scheduler is not ready: the last event about"
        assert answer["Error"].startswith(stale)
        assert not answer["NodeNames"]
        assert cut_off.get("/-/ready")[0] == 503
        assert cut_off.post("/bind", binding)["Error"].startswith(stale)
        bed.client.delete(first[0], grace_seconds=0)
        relay.restore()
        restored = time.monotonic()
        replay.check(
            lambda pods: (
                sum(map(bound, pods)) == 8
                and meta["uid"] in replay.pods
                and bound(replay.pods[meta["uid"]])
            )
        )
        figure(f"the pod was bound {time.monotonic() - restored:.1f} s after the cut had ended")


def test_a_single_replica_runs_beside_no_other_and_writes_no_lease_of_a_node(bed, tmp_path):
    bed.node("gpushare", "gpushare-s")
    single = Extender(bed.api, tmp_path, "--single")
    with_leases = Extender(bed.api, tmp_path)
    refused(single, "another replica runs: leases-")
    bed.extender.daemon.stop()
    try:
        with single:
            refused(
                Extender(bed.api, tmp_path, "--single"), "a replica with --single runs: single-"
            )
            refused(with_leases, "a replica with --single runs: single-")
            pod = bed.start("alone", bed.namespace, "gpushare", 4, schedulerName="nobody")
            assert single.post("/bind", bind_body(pod, "gpushare-s")) == {"Error": ""}
            single.daemon.stop()
    finally:
        bed.extender.start()
    leases = bed.client.list("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases")
    assert "vgpu-node-gpushare-s" not in {lease["metadata"]["name"] for lease in leases}


def test_an_original_plugin_finds_the_lock_of_its_pod_before_the_next_one_is_bound(bed, tmp_path):
    node = bed.node("hami", "hami-l")
    lock = "hami.io/mutex.lock"
    first, second = (
        bed.start(f"l{number}", bed.namespace, "hami", 1, schedulerName="nobody")
        for number in range(2)
    )
    with Extender(bed.api, tmp_path, "--original-plugin") as extender:
        assert extender.post("/bind", bind_body(first, "hami-l")) == {"Error": ""}
        text = bed.client.get(node)["metadata"]["annotations"][lock]
        assert text.split(",")[1:] == [bed.namespace, "l0"]
        waits = extender.post("/bind", bind_body(second, "hami-l"))
        assert waits == {"Error": "the node is locked for another pod until it has its GPUs"}
        bed.client.patch(node, {"metadata": {"annotations": {lock: None}}})
        assert extender.post("/bind", bind_body(second, "hami-l")) == {"Error": ""}


def refused(extender, line):
    """The program ends by itself, and its log has one line that says why."""
    extender.launch()
    assert extender.daemon.wait() == 1
    errors = [text for text in extender.daemon.log().splitlines() if '"error"' in text.lower()]
    assert len([text for text in errors if line in text]) == 1, extender.daemon.log()


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
    """kube-scheduler's two victims are on two GPUs; the GPU that a third one frees is held."""
    bed.node("volcano", "volcano-p")
    pods = []
    for value in (1, 3, 2, 4):  # two on each GPU
        pods.append(ranked(bed, f"low{value}", "volcano", 2, value))
        bed.wait_bound(bed.namespace, len(pods))
    freed = held_devices(bed.client.get(pods[0]))
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
    assert sorted(left) == ["high", "low4"]
    check(bed, bed.pods(bed.namespace))


def test_the_event_says_where_kube_schedulers_preemption_is_blind(bed):
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


def deleting(pod):
    return "deletionTimestamp" in pod["metadata"]


def held_devices(pod):
    """The GPUs of a pod of Volcano, by its annotations."""
    (scheme,) = (scheme for scheme in SCHEMES if scheme.row.name == "volcano")
    claim = scheme.codec.claim(as_pod(pod))
    return {share.device for each in claim.allocations for share in each.shares}


# ---------------------------------------------------------------- one pod


def bind_body(pod, node):
    meta = pod["metadata"]
    return {
        "PodName": meta["name"],
        "PodNamespace": meta["namespace"],
        "PodUID": meta["uid"],
        "Node": node,
    }


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
        {**gpu, "numa": number // 2, "id": f"GPU-p-{number}", "mode": mode}
        for number, (gpu, mode) in enumerate(
            zip(json.loads(HAMI_REGISTER) * 2, ["hami-core"] * 3 + ["mig"], strict=True)
        )
    ]
    scores = [
        {"uuid": "GPU-p-0", "score": {"GPU-p-1": 10, "GPU-p-2": 100}},
        {"uuid": "GPU-p-1", "score": {"GPU-p-0": 10, "GPU-p-2": 10}},
        {"uuid": "GPU-p-2", "score": {"GPU-p-0": 100, "GPU-p-1": 10}},
    ]
    annotations = {
        "hami.io/node-nvidia-register": json.dumps(gpus),
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


def test_a_gpu_that_is_healthy_again_wakes_the_pod_that_waits_for_it(bed, figure):
    """I8, S5: kube-scheduler sees no event of the ConfigMap."""
    bed.node("gpushare", "gpushare-h")
    sick = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "unhealthy-gpu-gpushare-h", "namespace": "kube-system"},
        "data": {"gpus": "0,1"},
    }
    config = bed.client.create(sick)
    try:
        waiting = bed.start("waits", bed.namespace, "gpushare", 1)
        bed.wait_refused(waiting, "the GPUs are unhealthy")
        started = time.monotonic()
        bed.client.patch(config, {"data": {"gpus": "0"}})
        pod = bed.client.wait_for(waiting, bound, "is bound")
        figure(f"bound {time.monotonic() - started:.2f} s after its GPU was healthy again")
        assert pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] == "1"
        assert "vgpu.dev/retry" in pod["metadata"]["annotations"]
    finally:
        bed.client.delete(config)


def test_a_pending_pod_has_its_reason_in_an_event_and_on_a_page(bed):
    """I10: counts by cause, the amount that is missing, and every GPU with what is free of it."""
    bed.node("gpushare", "gpushare-w")
    bed.node("gpushare", "gpushare-x")
    for number in range(4):
        bed.start(f"full{number}", bed.namespace, "gpushare", 3)
    bed.wait_bound(bed.namespace, 4)
    waiting = bed.start("waits", bed.namespace, "gpushare", 2)
    bed.wait_refused(waiting, "0/2 nodes are available: 2 no GPU has enough free memory.")
    cause = (
        "2 nodes: no GPU has enough free memory (8.0 GiB requested,"
        " the largest free amount is 4.0 GiB)"
    )
    events = wait_until(
        lambda: [
            event for event in bed.client.events(waiting) if event["reason"] == "VgpuNotPlaced"
        ],
        "the event is there",
    )
    assert [(event["message"], event["type"]) for event in events] == [(cause, "Warning")]
    status, page = bed.extender.get(f"/explain/{bed.namespace}/waits")
    lines = page.decode().splitlines()
    assert status == 200
    assert lines[0] == (f"pod {bed.namespace}/waits (gpushare) requests main: 1 GPU with 8.0 GiB")
    assert lines[2:5] == [
        "now 0 of 2 nodes with GPUs take it",
        cause,
        "node gpushare-w: no GPU has enough free memory",
    ]
    assert lines[5] == (
        "  GPU 0: 4.0 GiB of 16.0 GiB free, 1 share, average size: no GPU has enough free memory"
    )
    assert bed.extender.get("/explain/nowhere/waits")[0] == 404


def test_the_inspect_page_is_gpushares_byte_for_byte(bed):
    bed.node("gpushare", "gpushare-v")
    bed.start("p", bed.namespace, "gpushare", 2)
    bed.wait_bound(bed.namespace, 1)
    node = (
        '{"name":"gpushare-v","totalGPU":32,"usedGPU":8,"devs":['
        '{"id":0,"totalGPU":16,"usedGPU":8,"pods":['
        f'{{"name":"p","namespace":"{bed.namespace}","usedGPU":8}}]}},'
        '{"id":1,"totalGPU":16,"usedGPU":0,"pods":[]}]}'
    )
    expected = f'{{"nodes":[{node}]}}'.encode()
    path = "/gpushare-scheduler/inspect"
    wait_until(lambda: bed.extender.get(path) == (200, expected), "the page has the pod")
    assert bed.extender.get(f"{path}/gpushare-v") == (200, expected)
    unknown = b'{"nodes":[],"error":"node \\"gone\\" not found"}'
    assert bed.extender.get(f"{path}/gone") == (200, unknown)
    assert bed.extender.get("/version") == (200, b"0.1.0")


def test_an_extender_that_is_down_keeps_no_other_pod_from_its_node(bed):
    """I11."""
    bed.node("gpushare", "gpushare-d")
    bed.proxy.fault = lambda *_: LOST_REQUEST
    plain = bed.client.create(objects.pod("plain", bed.namespace, schedulerName=bed.name))
    bed.client.wait_for(plain, bound, "is bound")
    ours = bed.start("ours", bed.namespace, "gpushare", 1)
    bed.client.wait_for(ours, condition_message, "is not scheduled")
    assert not bound(bed.client.get(ours))


def test_client_certificates_are_required_of_kube_scheduler_and_not_of_the_probes(bed, tmp_path):
    pki = Pki(tmp_path, "vgpu")
    certificate, key = pki.issue("extender")
    client, client_key = pki.issue("client")
    config = tmp_path / "web-config.yaml"
    tls = {
        "cert_file": str(certificate),
        "key_file": str(key),
        "client_ca_file": str(pki.ca),
        "client_auth_type": "RequireAndVerifyClientCert",
    }
    config.write_text(json.dumps({"tls_server_config": tls}))
    bed.node("gpushare", "gpushare-c")
    with Extender(bed.api, tmp_path, f"--web.config.file={config}", is_locked=True) as extender:
        address = f"127.0.0.1:{extender.port}"
        for path in ("/filter", "/bind", "/metrics", "/"):
            assert request(extender.probe_port, path, b"{}" if "i" in path else None)[0] == 404
        with pytest.raises(OSError, match=r"(?i)reset|alert|closed|eof"):
            fetch(address, "/-/ready", tls=pki.client())
        assert fetch(address, "/-/ready", tls=pki.client((client, client_key)))[0] == 200
        with kube_scheduler(
            bed.api,
            tmp_path,
            "locked",
            extender.port,
            urlPrefix=f"https://{address}",
            enableHTTPS=True,
            tlsConfig={
                "caFile": str(pki.ca),
                "certFile": str(client),
                "keyFile": str(client_key),
            },
        ):
            bed.start("through", bed.namespace, "gpushare", 4, schedulerName="locked")
            check(bed, bed.wait_bound(bed.namespace, 1))


def test_the_gauges_of_the_original_schedulers_have_what_is_bound(bed):
    bed.node("hami", "hami-g")
    bed.node("volcano", "volcano-g")
    for system in ("hami", "volcano"):
        bed.start(system, bed.namespace, system, 3)
    bed.wait_bound(bed.namespace, 2)
    gpu = 'device_type="NVIDIA-Tesla T4",zone="vGPU",device_cores="100"} 12884901888'
    wanted = (
        f'hami_vgpu_memory_allocated_bytes{{namespace="{bed.namespace}",node="hami-g",pod="hami"',
        gpu,
        'podName="volcano"} 12288',
    )

    def missing():
        page = bed.extender.get("/metrics")[1].decode()
        return [text for text in wanted if text not in page]

    wait_until(lambda: not missing(), "the gauges have both pods", context=missing)


# ---------------------------------------------------------------- quotas


def test_a_namespace_is_filled_to_its_quota_and_the_next_pod_comes_as_soon_as_there_is_room(bed):
    """A raised quota makes room, and so does a pod's end; kube-scheduler only hears of the end."""
    bed.node("gpushare", "gpushare-quota")
    path = f"/api/v1/namespaces/{bed.namespace}"
    annotate(bed, path, "8Gi")
    for number in range(4):
        bed.start(f"q{number}", bed.namespace, "gpushare", 1)
    pods = bed.wait_bound(bed.namespace, 2)
    (first, *_), waiting = pods_by_binding(pods)
    for pod in waiting:
        bed.wait_refused(pod, "would exceed a GPU quota of its namespace")
    page = bed.extender.get(explain_path(waiting[0]))[1].decode()
    assert f"memory: 8.0 GiB of 8.0 GiB (Namespace {bed.namespace}, vgpu.dev/quota-memory)" in page
    metrics = bed.extender.get("/metrics")[1].decode()
    assert f'vgpu_extender_quota_used{{namespace="{bed.namespace}",resource="memory"' in metrics
    annotate(bed, path, "12Gi")
    pods = bed.wait_bound(bed.namespace, 3)
    _, waiting = pods_by_binding(pods)
    assert len(waiting) == 1, "no more than the quota"
    bed.client.delete(first, grace_seconds=0)
    pods = bed.wait_bound(bed.namespace, 3)
    check(bed, pods)


def annotate(bed, path, memory):
    """Declare the quota of the namespace."""
    bed.client.patch(path, {"metadata": {"annotations": {"vgpu.dev/quota-memory": memory}}})


def pods_by_binding(pods):
    """The bound pods, and the others."""
    return [pod for pod in pods if bound(pod)], [pod for pod in pods if not bound(pod)]
