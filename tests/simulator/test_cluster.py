"""The demo's cluster: its objects are complete and consistent, and the reconciler repairs it."""

from collections import Counter

import pytest

from reconciler.apply.applier import Applier
from reconciler.cycle import Cycles
from reconciler.observe.cluster import ListingObserver
from reconciler.policy import Policy
from reconciler.reasons import ActionOutcome, Effect, Rule, SkipReason
from reconciler.session import NoAudit
from simulator.apiserver import ApiServer
from simulator.cluster import SimulatedCluster, Story
from simulator.demo import demo
from simulator.demo_cluster import demo_cluster
from simulator.node import SimulatedNode
from vgpu.apiserver.client import ApiClient
from vgpu.inventory import Objects, Units, inventory
from vgpu.kube.kinds import PODS
from vgpu.model.units import GIB
from vgpu.sources.pods import PodFile
from vgpu.sources.runtime import ProcessSource

START = 1_790_000_000.0
NOW = START + 5
UNITS = Units(1024, GIB)
REFUSED, EXPIRED, HEIR = "ranker-84b5c6d7f-9tq4m", "tts-5c6d7f8b9-k8x2v", "tts-5c6d7f8b9-7wzrn"


@pytest.fixture
def simulated():
    return SimulatedCluster(demo_cluster(START), START)


@pytest.fixture
def cluster(simulated, tmp_path):
    config = tmp_path / "kubeconfig"
    with ApiServer(simulated.store) as api:
        config.write_text(api.kubeconfig())
        with ApiClient.connect(str(config)) as client:
            yield client


@pytest.fixture
def cycles(cluster):
    return Cycles(
        ListingObserver(cluster, UNITS),
        Policy(),
        apply=lambda plan, judge: Applier(cluster, NoAudit()).apply(plan, judge),
        clock=lambda: NOW,
    )


def test_the_plan_shows_one_of_each_thing_that_goes_wrong_and_repairs_it(cycles):
    made = cycles.make()
    assert Counter(entry.finding.rule for entry in made.plan.actions) == Counter(
        [
            Rule.PRESTART_FAILED,
            Rule.ASSUMED_EXPIRED,
            Rule.REFUSED,
            Rule.REFUSED,
            Rule.ASSUMED_UNBOUND,
            Rule.STALE_LOCK,
            Rule.STALE_HANDSHAKE,
        ]
    )
    assert {entry.finding.effect for entry in made.plan.actions} == set(Effect)
    assert {entry.skip for entry in made.plan.skipped} == {
        SkipReason.NODE_NOT_READY,
        SkipReason.OPTED_OUT,
        SkipReason.BARE_POD,
    }
    assert {result.outcome for result in cycles.apply(made)} == {ActionOutcome.DONE}


def test_after_the_repair_nothing_is_left_to_be_done(cycles):
    list(cycles.apply(cycles.make()))
    plan = cycles.make().plan
    assert plan.actions == ()
    assert {entry.skip for entry in plan.skipped} == {
        SkipReason.NODE_NOT_READY,
        SkipReason.OPTED_OUT,
        SkipReason.BARE_POD,
    }


def test_after_the_repair_stuck_pods_are_served_and_no_pod_lost_its_share(cluster, cycles):
    def holders():
        pods = tuple(pod for page in cluster.pods() for pod in page.objects)
        shown = inventory(Objects(tuple(cluster.nodes()), pods, ()), UNITS)
        return {holding.pod.name for view in shown.nodes for holding in view.ledger.holdings}, {
            waiting.pod.name for waiting in shown.pending
        }

    held, waited = holders()
    list(cycles.apply(cycles.make()))
    holds, waits = holders()
    assert waited - waits == {EXPIRED, "retrieval-7b9c5d6f48-ghj2s"}
    assert HEIR in holds
    assert held - holds <= waited


# ---------------------------------------------------------------- the node follows


class FollowingNode:
    """The demo's node on disk, as it follows the cluster."""

    def __init__(self, simulated, folder):
        self.simulated = simulated
        self.files = SimulatedNode(demo(), folder, START)
        self.driver = self.files.driver(lambda: 10.0)

    def follow(self):
        scenario = self.simulated.node("gpu-node-1")
        self.driver.set_scenario(scenario)
        self.files.set_scenario(scenario, self.simulated.pods())
        self.files.write(10.0)

    def pods(self):
        sample = PodFile(self.files.paths.pods_file, "gpu-node-1").sample(NOW)
        return {status.ref.name for status in sample.statuses}

    def live(self):
        paths = self.files.paths
        return ProcessSource(paths.procfs, paths.cgroupfs).sample(()).live_pods


@pytest.fixture
def node(simulated, tmp_path, monkeypatch):
    monkeypatch.setattr("simulator.cluster.time.time", lambda: NOW)
    made = FollowingNode(simulated, tmp_path / "node")
    made.follow()
    return made


def evict(simulated, namespace, name):
    simulated.store.evict(namespace, name, {})


def test_the_nodes_pods_are_those_of_the_api_server(simulated, node):
    before = node.pods()
    assert {REFUSED, EXPIRED} <= before
    evict(simulated, "recsys", REFUSED)
    evict(simulated, "speech", EXPIRED)
    node.follow()
    assert node.pods() == before - {REFUSED, EXPIRED} | {HEIR}


def test_a_replacement_pod_runs_and_its_process_is_on_its_gpu_from_then_on(simulated, node):
    (heir,) = (pod for pod in demo_cluster(START).heirs.values() if pod.ref.name == HEIR)
    (process,) = heir.containers[0].processes
    assert process.pid not in {each.pid for each in node.driver.sample(NOW).processes}
    evict(simulated, "speech", EXPIRED)
    node.follow()
    assert heir.ref.uid in node.live()
    assert process.pid in {each.pid for each in node.driver.sample(NOW).processes}
    (began,) = (each.created for each in simulated.node("gpu-node-1").pods if each.ref == heir.ref)
    assert began == NOW - START


def test_a_running_pod_that_is_evicted_leaves_its_region_and_nothing_else(simulated, node):
    (chat,) = (pod for pod in demo().pods if pod.ref.name.startswith("chat"))
    pids = {process.pid for process in chat.containers[0].processes}
    regions = set(node.files.folder.rglob("*.cache"))
    assert chat.ref.uid in node.live()
    evict(simulated, chat.ref.namespace, chat.ref.name)
    node.follow()
    assert chat.ref.uid not in node.live()
    assert not pids & {each.pid for each in node.driver.sample(NOW).processes}
    left = node.files.folder.rglob(f"*{chat.ref.uid}*")
    assert {path.name for path in left} == {f"{chat.ref.uid}_vllm"}
    assert set(node.files.folder.rglob("*.cache")) == regions


def test_what_no_scenario_knows_may_go_too(simulated):
    simulated.store.create(PODS, {"metadata": {"namespace": "ns", "name": "made-by-hand"}})
    evict(simulated, "ns", "made-by-hand")
    assert simulated.node("gpu-node-1") == demo_cluster(START).nodes[0]


def test_a_deviation_names_what_is_there():
    story = demo_cluster(START)
    there = {node.node for node in story.nodes} | {
        f"{pod.ref.namespace}/{pod.ref.name}" for node in story.nodes for pod in node.pods
    }
    assert story.deviations.keys() <= there
    assert story.heirs.keys() <= there
    assert SimulatedCluster(Story(nodes=()), START).store.list(PODS).items == ()
