"""Our scheduler behind a real kube-scheduler: no GPU is over-committed, whatever breaks there.

What holds at every moment is checked by replaying the watch of the pods event by event.
"""

import itertools
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster.api_relay import ApiRelay
from tests.cluster.extending import Extender, ExtenderProxy, Fault, bound, kube_scheduler
from tests.cluster.placing import NODES_OF, Replay, all_that_fit, check, labelled, random_pods
from tests.cluster.scheduler_bed import LOST_REQUEST, bed, bind_body, placing
from tests.support.waiting import wait_until
from vgpu.model.units import MIB

__all__ = ["bed", "placing"]


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


class Breaking:
    """Breaks the first requests of a verb for each pod.

    ``faults`` has those of one pod after another, in the order in which the pods come.

    Attributes:
        left: UID of each pod that has come -> its faults that are left.
    """

    def __init__(self, verb, faults):
        self._verb, self._faults = verb, iter(faults)
        self._lock = threading.Lock()
        self.left = {}

    def __call__(self, path, body):
        if path != self._verb:
            return Fault()
        uid = body["PodUID"] if "PodUID" in body else body["Pod"]["metadata"]["uid"]
        with self._lock:
            if uid not in self.left:
                self.left[uid] = iter(next(self._faults))
            return next(self.left[uid], Fault())


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
    bed.proxy.fault = Breaking("/bind", itertools.repeat(faults))
    replay = Replay(bed)
    random_pods(bed, 16, seed=len(faults))
    replay.check(lambda pods: len(pods) == 16 and all_that_fit(bed, pods))
    assert bed.proxy.broken >= sum(map(bound, replay.pods.values()))


BROKEN_ANSWERS = {
    "code 500": ERROR_500,
    "invalid character '<'": Fault(text=b"<html>"),
    "unexpected EOF": Fault(cut=True),
    "Client.Timeout exceeded": Fault(late=threading.Event()),
}
"""kube-scheduler's message for a broken answer -> how it is broken. The late one never comes."""


@pytest.mark.parametrize("verb", ["/filter", "/prioritize", "/bind"])
def test_a_broken_answer_of_any_kind_neither_overcommits_nor_loses_a_pod(bed, tmp_path, verb):
    """Each of the first pods has its first answer broken in another way.

    kube-scheduler places a pod without scores; for all else it reports the error, and tries again.
    """
    for number in range(2):
        bed.node("gpushare", f"gpushare-a{number}")
    broken = Breaking(verb, itertools.chain(zip(BROKEN_ANSWERS.values()), itertools.repeat(())))
    bed.proxy.fault = broken
    replay = Replay(bed)
    with kube_scheduler(bed.api, tmp_path, "impatient", bed.proxy.port, httpTimeout="1s"):
        for number, quarters in enumerate((1,) * 6 + (3, 2) * 3):  # each node takes any of the six
            bed.start(f"a{number}", bed.namespace, "gpushare", quarters, schedulerName="impatient")
        replay.check(lambda pods: len(pods) == 12 and all_that_fit(bed, pods))
        if verb != "/prioritize":
            for uid, complaint in zip(broken.left, BROKEN_ANSWERS, strict=False):
                wait_for_event(bed, uid, complaint)
    assert bed.proxy.broken == len(BROKEN_ANSWERS)
    bound_pods = filter(bound, replay.pods.values())
    bindings = {(pod["metadata"]["uid"], pod["spec"]["nodeName"]) for pod in bound_pods}
    wait_until(lambda: answered_binds(bed) == bindings, "each pod is bound once")


def wait_for_event(bed, uid, text):
    """Until an event of the pod has the text."""
    pod = {"metadata": {"uid": uid}}
    wait_until(
        lambda: any(text in event["message"] for event in bed.client.events(pod)),
        f"an event has {text!r}",
        context=lambda: str([event["message"] for event in bed.client.events(pod)]),
    )


def answered_binds(bed):
    """The pods and nodes of all binds that our scheduler has answered with success."""
    return {
        (exchange.body["PodUID"], exchange.body["Node"])
        for exchange in bed.proxy.of("/bind")
        if exchange.answer == {"Error": ""}
    }


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
            if len(gates) >= 8:  # the ninth arrives too, where one of the eight timed out
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
    """kill -9 after a binding that kube-scheduler did not learn of, and before one."""
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
    refused(single, '"holder": "leases-')
    bed.extender.daemon.stop()
    try:
        with single:
            refused(Extender(bed.api, tmp_path, "--single"), '"holder": "single-')
            refused(with_leases, '"holder": "single-')
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
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(extender.post, "/bind", bind_body(second, "hami-l"))
            bed.client.patch(node, {"metadata": {"annotations": {lock: None}}})
            assert waits.result() == {"Error": ""}
        text = bed.client.get(node)["metadata"]["annotations"][lock]
        assert text.split(",")[1:] == [bed.namespace, "l1"]


def refused(extender, line):
    """The program ends by itself, and its log has one line with the reason."""
    extender.launch()
    assert extender.daemon.wait() == 1
    errors = [text for text in extender.daemon.log().splitlines() if '"error"' in text.lower()]
    assert len([text for text in errors if line in text]) == 1, extender.daemon.log()
