"""Fleets of simulated nodes: they start as they were left, they live, and obey their labels."""

import statistics
from collections import Counter
from itertools import count

import msgspec
import pytest

from tests.support.bed.fleet import start_fleet
from tests.support.bed.objects import ready
from tests.support.bed.population import CARDS, SCHEMES, Population
from tests.support.bed.stages import LIVES, Life
from vgpu.apiserver.client import ApiClient
from vgpu.model.names import Phase
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.volcano.codec import Volcano

NODES, PODS = 100, 500


@pytest.fixture(scope="module")
def small(fleet):
    return fleet(NODES, PODS)


@pytest.fixture(scope="module")
def new_pod(small):
    """A pod that is not there yet, and that has a life of its own."""
    numbers = count(PODS)
    return lambda life=None: small.population.pod(next(numbers), life=life)


def test_every_node_is_ready_and_shares_its_gpus(small):
    nodes = small.client.list("/api/v1/nodes")
    assert len(nodes) == NODES
    assert all(map(ready, nodes))
    shared = SCHEMES["volcano"].allocatable
    assert all(shared.items() <= numbers(node["status"]["allocatable"]).items() for node in nodes)


def numbers(resources):
    return {name: int(value) for name, value in resources.items() if "/" in name}


def test_every_pod_runs_on_its_node_and_is_owned(small):
    pods = small.client.list("/api/v1/pods")
    assert Counter(pod["status"]["phase"] for pod in pods) == {"Running": PODS}
    assert all(map(ready, pods))
    assert set(Counter(pod["spec"]["nodeName"] for pod in pods).values()) == {PODS // NODES}
    sets = {s["metadata"]["uid"] for s in small.client.list("/apis/apps/v1/replicasets")}
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods} == sets


def test_a_pod_is_as_big_as_in_a_real_cluster(small):
    pods = small.client.list("/api/v1/pods", limit=100)
    assert all(pod["metadata"]["managedFields"] for pod in pods)
    assert statistics.median(len(msgspec.json.encode(pod)) for pod in pods) > 3 * 1024


@pytest.mark.parametrize("life", Life)
def test_a_pod_reaches_the_phase_in_its_label(small, new_pod, life):
    story = LIVES[life]
    (pod,) = small.add(new_pod(life))
    status = pod["status"]
    assert status["phase"] == story.phase
    assert ready(pod) == (story.phase == "Running")
    texts = {"resource": "volcano.sh/vgpu-number", "asked": "1"}
    for field in ("reason", "message"):
        assert status.get(field, "") == in_words(getattr(story, field), texts)
    if story.state is None:
        assert "containerStatuses" not in status
    else:
        (container,) = status["containerStatuses"]
        assert container["state"].keys() == story.state.keys()
        if "waiting" in story.state:
            assert container["state"] == story.state


def in_words(template, texts):
    for name, text in texts.items():
        template = template.replace(f"{{{{ ${name} }}}}", text)
    return template


def test_a_deleted_pod_goes_unless_it_is_stuck(small, new_pod):
    lives = [life for life in Life if life is not Life.STUCK_TERMINATING]
    stuck, *others = small.add(*map(new_pod, [Life.STUCK_TERMINATING, *lives]))
    for pod in (stuck, *others):
        small.client.delete(pod)
    for pod in others:
        small.client.wait_gone(pod)
    assert small.client.get(stuck)["metadata"]["deletionTimestamp"]
    small.client.delete(stuck, grace_seconds=0)
    small.client.wait_gone(stuck)


def test_an_evicted_pod_goes(small, new_pod):
    (pod,) = small.add(new_pod())
    small.client.evict(pod, uid=pod["metadata"]["uid"])
    small.client.wait_gone(pod)


def test_what_a_test_writes_to_a_node_stays(small, new_pod):
    sick = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
    path = f"/api/v1/nodes/{small.population.node(0)['metadata']['name']}"
    well = small.client.get(path)["status"]["conditions"]
    small.client.patch(path, {"status": {"conditions": [sick]}}, "status", kind="strategic")
    small.add(new_pod())  # kwok has had its turn
    assert not ready(small.client.get(path))
    small.client.patch(path, {"status": {"conditions": well}}, "status", kind="strategic")


@pytest.mark.parametrize(
    ("scheme", "codec"), [("volcano", Volcano()), ("gpushare", Gpushare()), ("gaia", Gaia())]
)
def test_the_product_understands_what_nodes_and_pods_say(workplace, tools, scheme, codec):
    population = Population(3, 12, scheme)
    with (
        start_fleet(workplace, tools, population) as fleet,
        ApiClient.connect(str(fleet.cluster.kubeconfig)) as cluster,
    ):
        nodes = list(cluster.nodes())
        pods = [pod for page in cluster.pods() for pod in page.pods]
    assert [len(codec.devices(node)) for node in nodes] == [CARDS] * population.nodes
    assert len(pods) == population.pods
    for pod in pods:
        claim = codec.claim(pod)
        assert not claim.remarks
        assert claim.node in ("", pod.node)
        (allocation,) = claim.allocations
        assert allocation.phase is Phase.ASSIGNED
        (share,) = allocation.shares
        (request,) = codec.requests(pod)
        assert share.memory_bytes == request.memory_bytes


def test_with_controllers_a_failed_pod_is_replaced(workplace, tools):
    population = Population(3, 12)
    with start_fleet(workplace, tools, population, controllers=True) as fleet:
        pods = fleet.client.list("/api/v1/pods")
        lost = pods[0]
        failed = {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}}
        fleet.client.patch(lost, failed, "status")
        known = {pod["metadata"]["uid"] for pod in pods}

        def replaced():
            fresh = [
                pod
                for pod in fleet.client.list("/api/v1/pods")
                if pod["metadata"]["uid"] not in known
            ]
            return len(fresh) == 1 and ready(fresh[0])

        fleet.kwok.wait_until(replaced, "a new pod runs")
        assert fleet.client.get(lost)["status"]["phase"] == "Failed"


@pytest.mark.slow
def test_a_thousand_nodes_and_five_thousand_pods(fleet):
    big = fleet(1000, 5000)
    assert sum(map(ready, big.client.list("/api/v1/nodes"))) == 1000
    phases = Counter(pod["status"]["phase"] for pod in big.client.list("/api/v1/pods"))
    assert phases == {"Running": 5000}
    (rejected,) = big.add(big.population.pod(5000, life=Life.UNEXPECTED_ADMISSION_ERROR))
    assert rejected["status"]["reason"] == "UnexpectedAdmissionError"
