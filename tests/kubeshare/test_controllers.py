"""What the controllers do, in a cluster in memory: the paper's placements, failures, kills."""

from functools import partial

import pytest
from msgspec import structs

import kubeshare.steps
from kubeshare.model import VirtualGpuName
from kubeshare.placement import KubeShareAlgorithm
from kubeshare.reasons import SharePodReason
from kubeshare.share_pod_cluster import SharePodCluster
from kubeshare.virtual_gpu import HOLDER_SECONDS
from tests.kubeshare.model_cluster import ModelCluster, labelled, node, share_pod
from tests.kubeshare.model_controllers import (
    Controllers,
    reasons,
    require_invariants,
    require_settled,
    settle,
    settled,
    started,
)
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject
from vgpu.schemes.kubeshare.gemini_config import MANAGER_PORTS
from vgpu.schemes.kubeshare.sharepod import GPUID

RED, GREEN = labelled(affinity="red"), labelled(anti_affinity="green")
BLUE, WHITE = labelled(exclusion="blue"), labelled(exclusion="white")
SUN = labelled(affinity="sun")
NONE = labelled()

EXAMPLES = {
    # name: (nodes with their GPUs, (name, thousandths, GiB, labels) …, paper, release 1)
    "P1": (
        {"n1": 2},
        [("p1", 600, 1, NONE), ("p2", 500, 1, NONE), ("p3", 300, 1, NONE), ("p4", 500, 1, NONE)],
        "abab",
        "abab",
    ),
    "P2": (
        {"n1": 3},
        [("r1", 300, 1, RED), ("x", 200, 1, NONE), ("r2", 300, 1, RED), ("r3", 500, 1, RED)],
        "aaa-",
        "aaab",
    ),
    "P3": (
        {"n1": 2},
        [("g1", 200, 1, GREEN), ("g2", 200, 1, GREEN), ("u", 200, 1, NONE), ("g3", 200, 1, GREEN)],
        "aba-",
        "aba-",
    ),
    "P4": (
        {"n1": 3},
        [("b1", 200, 1, BLUE), ("u1", 200, 1, NONE), ("b2", 200, 1, BLUE), ("w1", 200, 1, WHITE)],
        "abac",
        "abac",
    ),
    "P5": (
        {"n1": 2},
        [("r1", 300, 1, RED), ("s1", 600, 1, SUN), ("x", 200, 1, NONE)],
        "aba",
        "abb",
    ),
    "P6": (
        {"n1": 2},
        [("m1", 100, 12, NONE), ("m2", 100, 6, NONE), ("m3", 100, 4, NONE)],
        "aba",
        "aba",
    ),
    "P7": (
        {"n1": 1, "n2": 1},
        [("a", 500, 1, NONE), ("b", 700, 1, NONE), ("c", 300, 1, NONE), ("d", 600, 1, NONE)],
        "abb-",
        "abb-",
    ),
}
"""The worked examples of the reference, A2.6; ``-`` is refused."""


def place_one_by_one(cluster, controllers, asked):
    """Create SharePods one after another; the virtual GPU of each as a letter."""
    letters = {}
    placed = ""
    for number, (name, milli, gib, locality) in enumerate(asked):
        made = share_pod(name, milli, gib, locality=locality)
        pod = structs.replace(made.pod, created_at=float(number))
        cluster.store(structs.replace(made, pod=pod))
        settle(cluster, controllers)
        place = cluster.share_pods[f"ns/{name}"].place
        placed += letters.setdefault(place, "abcdef"[len(letters)]) if place else "-"
    return placed


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("algorithm", KubeShareAlgorithm)
def test_the_worked_examples_are_placed_as_computed(name, algorithm):
    nodes, asked, paper, release_1 = EXAMPLES[name]
    cluster = ModelCluster(*(node(*each) for each in nodes.items()))
    controllers = Controllers(cluster, algorithm=algorithm)
    expected = paper if algorithm is KubeShareAlgorithm.PAPER else release_1
    assert place_one_by_one(cluster, controllers, asked) == expected
    require_invariants(cluster)
    require_settled(cluster)


# ---------------------------------------------------------------- scenarios


def events_of(cluster):
    return [reason for _, reason in (*cluster.evicted, *cluster.deleted)]


def test_a_share_pod_runs_with_its_gpu_and_a_port():
    cluster, _ = started(share_pod("a"))
    found, (pod,) = cluster.share_pods["ns/a"], cluster.real_pods()
    assert (found.bound, found.port) == (pod.uuid, pod.port) == ("GPU-n1-0", 50051)
    assert reasons(cluster, "a") == {
        "Scheduled": SharePodReason.PLACED,
        "Bound": SharePodReason.BOUND,
        "Ready": SharePodReason.POD_READY,
    }


def test_the_holder_goes_with_the_last_tenant():
    cluster, controllers = started(share_pod("a"), share_pod("b"))
    cluster.remove(cluster.share_pods["ns/a"])
    settled(cluster, controllers)
    assert len(cluster.holders()) == 1
    cluster.remove(cluster.share_pods["ns/b"])
    cluster.deliver(controllers.state)
    controllers.round()
    assert len(cluster.holders()) == 1, "the pod still runs"
    settled(cluster, controllers)
    assert not cluster.holders()


def test_idle_holders_are_kept_up_to_the_number_that_is_wanted():
    cluster, controllers = started(share_pod("a", 900), share_pod("b", 900), keep_idle=1)
    for each in list(cluster.share_pods.values()):
        cluster.remove(each)
    settle(cluster, controllers)
    assert len(cluster.holders()) == 1
    (holder,) = cluster.holders()
    cluster.store(share_pod("c", 100))
    settled(cluster, controllers)
    assert cluster.share_pods["ns/c"].gpuid == holder.pod.labels["kubeshare/GPUID"]


def test_the_readmes_walk_through_three_virtual_gpus():
    """K1: 0.2 and 0.4 on zxcvb, 0.3 on qwert; the last pod's end is that of its virtual GPU."""
    chosen = {"a": ("zxcvb", 200), "b": ("qwert", 300), "c": ("zxcvb", 400)}
    cluster, controllers = started(
        *(share_pod(name, milli, node="n1", gpuid=gpuid) for name, (gpuid, milli) in chosen.items())
    )
    bound = {name: cluster.share_pods[f"ns/{name}"].bound for name in chosen}
    assert bound["a"] == bound["c"] != bound["b"]
    for name, left in (("b", 1), ("a", 1), ("c", 0)):
        cluster.remove(cluster.share_pods[f"ns/{name}"])
        settled(cluster, controllers)
        assert len(cluster.holders()) == left
    cluster.store(share_pod("d", 500, node="n1", gpuid="asdfg"))
    settled(cluster, controllers)
    assert [each.pod.labels[GPUID] for each in cluster.holders()] == ["asdfg"]


@pytest.mark.parametrize(
    "requests",
    [[400, 600], [200, 400, 300, 100], [400, 200, 300, 100], [50] * 20, [40] * 25],
    ids=lambda requests: "+".join(map(str, requests[:4])),
)
def test_requests_that_make_a_whole_gpu_are_all_bound_and_one_more_is_not(requests):
    """K2 and K6: KubeShare's device manager, which adds floats, refuses the last of most."""
    cluster, controllers = started(
        *(
            share_pod(f"p{number}", milli, 0, node="n1", gpuid="my-gpu")
            for number, milli in enumerate(requests)
        )
    )
    assert {each.bound for each in cluster.share_pods.values()} == {"GPU-n1-0"}
    cluster.store(share_pod("more", 1, 0, node="n1", gpuid="my-gpu"))
    settled(cluster, controllers)
    assert reasons(cluster, "more")["Bound"] == SharePodReason.RESOURCE_EXCEEDED


def test_a_share_pod_that_is_deleted_while_its_holder_waits_leaves_nothing():
    cluster, controllers = started()
    cluster.store(share_pod("a"))
    cluster.deliver(controllers.state)
    controllers.round()
    controllers.round()
    assert cluster.holders()
    cluster.remove(cluster.share_pods["ns/a"])
    settled(cluster, controllers)
    assert not cluster.holders()


def test_a_holder_that_fails_is_created_again_on_the_same_gpu():
    cluster, controllers = started(share_pod("a"), nodes={"n1": 1})
    (holder,) = cluster.holders()
    cluster.turn(holder, "Failed")
    settled(cluster, controllers)
    assert events_of(cluster) == [SharePodReason.HOLDER_FAILED]
    assert cluster.share_pods["ns/a"].bound == "GPU-n1-0"
    assert len(cluster.created) == 1, "the pod went on"


def test_a_holder_on_another_gpu_moves_its_tenants_there():
    cluster, controllers = started(share_pod("a"), share_pod("b"))
    (holder,) = cluster.holders()
    cluster.remove(holder)
    cluster.native_pod("n1")
    settled(cluster, controllers)
    assert set(events_of(cluster)) == {SharePodReason.GPU_CHANGED}
    assert {each.bound for each in cluster.share_pods.values()} == {"GPU-n1-1"}
    assert len(cluster.evicted) == 2


def test_pods_whose_gpu_went_to_another_pod_are_evicted():
    cluster, controllers = started(share_pod("a"), nodes={"n1": 1})
    (holder,) = cluster.holders()
    cluster.remove(holder)
    cluster.native_pod("n1")
    for _ in range(3):
        cluster.deliver(controllers.state)
        controllers.round()
        for pod in cluster.holders():
            cluster.serve_holder(pod)
        cluster.now += HOLDER_SECONDS
    assert events_of(cluster)[0] is SharePodReason.GPU_TAKEN


def test_a_gpu_that_is_taken_before_the_holder_starts_gives_the_share_pod_back():
    cluster, controllers = started(nodes={"n1": 1, "n2": 1})
    cluster.store(share_pod("a"))
    cluster.deliver(controllers.state)
    controllers.round()
    assert cluster.share_pods["ns/a"].node == "n1"
    cluster.native_pod("n1")
    settled(cluster, controllers)
    assert cluster.share_pods["ns/a"].node == "n2"


def test_nobody_is_placed_on_a_virtual_gpu_whose_holder_finds_no_gpu():
    """Else a SharePod that has just left it could come back to it, again and again."""
    cluster, controllers = started(nodes={"n1": 1, "n2": 1})
    cluster.store(share_pod("a", 500))
    cluster.deliver(controllers.state)
    controllers.round()
    cluster.native_pod("n1")
    for pod in cluster.holders():
        cluster.serve_holder(pod)
    cluster.store(share_pod("b", 500))
    cluster.deliver(controllers.state)
    controllers.place("ns/b")
    assert cluster.share_pods["ns/a"].node == "n1"
    assert cluster.share_pods["ns/b"].node == "n2"


@pytest.mark.parametrize("is_gone", [False, True], ids=["not ready", "gone"])
def test_a_lost_node_gives_its_share_pods_back_once_their_pods_are_gone(is_gone):
    cluster, controllers = started(share_pod("a"), nodes={"n1": 1, "n2": 1})
    if is_gone:
        cluster.remove_node("n1")
    else:
        cluster.set_node(structs.replace(cluster.nodes["n1"], is_ready=False))
    settle(cluster, controllers)
    assert cluster.share_pods["ns/a"].node == "n1", "its pod may still run"
    for pod in cluster.real_pods():
        cluster.remove(pod)
    settled(cluster, controllers)
    assert cluster.share_pods["ns/a"].node == "n2"


def test_a_place_of_the_user_waits_for_its_node():
    chosen = share_pod("a", node="n1", gpuid="mine")
    cluster, controllers = started(chosen, nodes={"n1": 1, "n2": 1})
    cluster.remove_node("n1")
    for pod in list(cluster.pods.values()):
        cluster.remove(pod)
    settle(cluster, controllers)
    stored = cluster.share_pods["ns/a"]
    assert (stored.node, stored.gpuid) == ("n1", "mine")


def test_a_share_pod_without_a_gpu_runs_as_any_pod():
    plain = structs.replace(share_pod("a"), request=None)
    cluster, _ = started(plain)
    (pod,) = cluster.real_pods()
    assert (pod.uuid, pod.port, cluster.holders()) == ("", 0, [])
    assert reasons(cluster, "a")["Bound"] == SharePodReason.NOT_SHARED


def test_a_gpuid_without_node_is_reported():
    cluster, _ = started(share_pod("a", gpuid="mine"))
    assert reasons(cluster, "a")["Scheduled"] == SharePodReason.GPUID_WITHOUT_NODE


def test_users_who_choose_the_same_gpu_get_no_more_than_it_has():
    pods = [share_pod(name, 600, node="n1", gpuid="mine") for name in "ab"]
    cluster, _ = started(*pods)
    require_invariants(cluster)
    bound = [reasons(cluster, name)["Bound"] for name in "ab"]
    assert sorted(bound) == [SharePodReason.BOUND, SharePodReason.RESOURCE_EXCEEDED]


@pytest.mark.parametrize(
    ("policy", "phase", "is_created_again"),
    [
        ("Always", "Failed", True),
        ("Always", "Succeeded", True),
        ("OnFailure", "Failed", True),
        ("OnFailure", "Succeeded", False),
        ("Never", "Failed", False),
        ("Never", "Succeeded", False),
    ],
)
def test_a_pod_that_ends_is_created_again_by_its_restart_policy(policy, phase, is_created_again):
    cluster, controllers = started(share_pod("a", policy=policy))
    cluster.turn(cluster.real_pods()[0], phase)
    settled(cluster, controllers)
    assert len(cluster.created) == 1 + is_created_again
    assert bool(cluster.holders()) == is_created_again
    if not is_created_again:
        assert reasons(cluster, "a")["Ready"] == SharePodReason.FINISHED


def test_a_pod_that_is_created_again_keeps_its_port():
    cluster, _ = started(share_pod("a"), share_pod("b"))
    first = cluster.share_pods["ns/b"].port
    cluster.end(cluster.pods["ns/b"])
    settled(cluster, Controllers(cluster))
    assert [pod.port for pod in cluster.created if pod.ref.name == "b"] == [first, first]


def test_upstreams_share_pod_without_port_gets_one():
    """Upstream allocates port 0 after a re-creation; its objects are taken over as they are."""
    cluster, controllers = started(share_pod("a"))
    cluster.store(structs.replace(cluster.share_pods["ns/a"], port=0))
    cluster.end(cluster.pods["ns/a"])
    settled(cluster, controllers)
    assert cluster.share_pods["ns/a"].port in MANAGER_PORTS


def test_a_status_that_was_lost_is_read_from_the_pod():
    cluster, _ = started(share_pod("a"))
    before = cluster.share_pods["ns/a"]
    cluster.store(structs.replace(before, bound="", port=0, conditions=()))
    settled(cluster, Controllers(cluster))
    after = cluster.share_pods["ns/a"]
    assert (after.bound, after.port) == (before.bound, before.port)
    assert len(cluster.created) == 1


def test_another_pod_of_the_name_is_not_changed():
    cluster, controllers = started()
    cluster.native_pod("n1")
    (native,) = cluster.natives()
    cluster.store(share_pod(native.ref.name))
    settle(cluster, controllers)
    assert reasons(cluster, native.ref.name)["Ready"] == SharePodReason.POD_EXISTS
    assert not cluster.deleted


def test_an_unreadable_share_pod_keeps_its_holder_and_others_away():
    cluster, controllers = started(share_pod("a"))
    stored = cluster.share_pods["ns/a"]
    annotations = {"kubeshare/GPUID": stored.gpuid}
    broken = MalformedObject("SharePod", stored.ref, "broken", stored.node, annotations)
    cluster.remove(cluster.pods["ns/a"])
    cluster.deliver(controllers.state)
    controllers.state.set_share_pod("ns/a", broken)
    name = VirtualGpuName(stored.node, stored.gpuid)
    assert not controllers.hold(name)
    assert not controllers.state.virtual_gpu(name).accepts


def test_a_late_event_does_not_undo_a_write():
    cluster, controllers = started(share_pod("a"))
    placed = cluster.share_pods["ns/a"]
    controllers.state.set_share_pod("ns/a", share_pod("a"))
    assert controllers.state.share_pods["ns/a"] == placed
    again = structs.replace(
        share_pod("a"), pod=structs.replace(share_pod("a").pod, ref=PodRef("u2", "ns", "a"))
    )
    controllers.state.set_share_pod("ns/a", again)
    assert controllers.state.share_pods["ns/a"] == again


def test_a_late_answer_does_not_bring_back_what_is_gone():
    """Else the GPU of a SharePod that is gone stays held until the controllers start again."""
    cluster, controllers = started(share_pod("a"))
    state, placed = controllers.state, cluster.share_pods["ns/a"]
    (key, pod), *_ = state.pods.items()
    state.set_share_pod("ns/a", None)
    state.set_pod(key, None)
    state.assume(placed)
    state.assume(pod)
    assert "ns/a" not in state.share_pods
    assert key not in state.pods
    state.set_pod(key, pod)  # an event: it is there after all
    state.assume(pod)
    assert state.pods[key] == pod


def test_a_new_process_finds_all_it_has_to_do_in_the_objects():
    """An idle holder, one without its pod, a finished SharePod, and one that waits for its bind."""
    cluster, _ = started(
        share_pod("runs", 900),
        share_pod("ends", 100, policy="Never"),
        share_pod("idle", 900),
        share_pod("waits", 200, node="n2", gpuid="mine"),
        nodes={"n1": 2, "n2": 1},
    )
    cluster.turn(cluster.pods["ns/ends"], "Succeeded")
    settle(cluster, Controllers(cluster))
    before = dict(cluster.share_pods)
    for name in ("ns/ends", "ns/runs", "ns/idle"):
        cluster.remove(cluster.pods[name])
    cluster.remove(cluster.share_pods["ns/idle"])
    waits = cluster.share_pods["ns/waits"]
    cluster.remove(cluster.pods["ns/waits"])
    cluster.remove(next(pod for pod in cluster.holders() if pod.pod.labels[GPUID] == "mine"))
    cluster.store(structs.replace(waits, bound="", port=0, copied=None, conditions=()))
    settled(cluster, Controllers(cluster))
    runs = cluster.share_pods["ns/runs"]
    assert (runs.bound, runs.port) == (before["ns/runs"].bound, before["ns/runs"].port)
    assert cluster.share_pods["ns/waits"].bound == "GPU-n2-0"
    assert "ns/ends" not in cluster.pods, "it is over, and is counted no more"
    assert len(cluster.holders()) == 2


# ---------------------------------------------------------------- kill -9 after each write


def everything(cluster, controllers):
    """Two SharePods on one GPU, a third on another one; one ends, one is deleted."""
    for name, milli, policy in (("a", 500, "Always"), ("b", 500, "Never"), ("c", 700, "Always")):
        cluster.store(share_pod(name, milli, policy=policy))
    settle(cluster, controllers)
    cluster.turn(cluster.pods["ns/b"], "Succeeded")
    settle(cluster, controllers)
    cluster.remove(cluster.share_pods["ns/c"])
    settle(cluster, controllers)


class MortalControllers(Controllers):
    """A new process takes over after the write of this number."""

    def __init__(self, cluster, dies_after):
        self.writes, self.dies_after = 0, dies_after
        super().__init__(cluster)

    def send(self, step):
        is_written = super().send(step)
        self.writes += is_written
        if self.writes == self.dies_after:
            self.state = SharePodCluster()
            self.cluster.read_all(self.state)
        return is_written


def outcome(cluster):
    """What is left, without versions and names that chance decides."""
    return sorted(
        (each.ref.name, bool(each.bound), each.pod.phase, len(each.conditions))
        for each in cluster.share_pods.values()
    ), sorted((pod.ref.name[:14], pod.pod.phase, pod.uuid) for pod in cluster.pods.values())


def test_a_kill_after_any_write_leads_to_the_same_objects():
    whole = ModelCluster(node("n1", 2))
    controllers = MortalControllers(whole, dies_after=0)
    everything(whole, controllers)
    assert controllers.writes > 15
    for number in range(1, controllers.writes + 1):
        cluster = ModelCluster(node("n1", 2))
        everything(cluster, MortalControllers(cluster, number))
        assert outcome(cluster) == outcome(whole), number
        assert len(cluster.created) == len(whole.created), number
        require_invariants(cluster)


# ---------------------------------------------------------------- planted defects

SCENARIOS = [
    test_users_who_choose_the_same_gpu_get_no_more_than_it_has,
    test_a_holder_on_another_gpu_moves_its_tenants_there,
    test_the_holder_goes_with_the_last_tenant,
    partial(test_a_lost_node_gives_its_share_pods_back_once_their_pods_are_gone, is_gone=False),
]


def _plant_over_commitment(monkeypatch):
    monkeypatch.setattr(kubeshare.steps, "has_room", lambda view, gpu: True)


def _plant_a_lost_gpu(monkeypatch):
    monkeypatch.setattr(kubeshare.steps, "_displaced", lambda view: None)


def _plant_one_port(monkeypatch):
    monkeypatch.setattr("kubeshare.share_pod_cluster.next_port", lambda taken, last: 50051)


def _plant_a_move_of_living_pods(monkeypatch):
    step = kubeshare.steps._step_with_pod
    monkeypatch.setattr(
        kubeshare.steps,
        "_step_with_pod",
        lambda view, pod: (
            kubeshare.steps._moved(view, SharePodReason.NODE_LOST)
            if view.is_node_lost
            else step(view, pod)
        ),
    )


@pytest.mark.parametrize(
    "plant",
    [_plant_over_commitment, _plant_a_lost_gpu, _plant_one_port, _plant_a_move_of_living_pods],
)
def test_a_planted_defect_is_found(plant, monkeypatch):
    plant(monkeypatch)
    found = 0
    for scenario in SCENARIOS:
        try:
            scenario()
        except AssertionError:
            found += 1
    assert found
