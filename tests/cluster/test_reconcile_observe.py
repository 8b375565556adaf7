"""The reconciler looks at a real API server: once, or all the time.

In `make test` the cluster is smaller; its pods still fill several pages of a list.
"""

from contextlib import closing

import pytest

from reconciler.model import Coverage
from reconciler.observe.cluster import ListingObserver, WatchingObserver
from reconciler.observe.kinds import Watched
from reconciler.observe.node import NodeObserver
from tests.cluster.accounts import account
from tests.support.bed import objects
from tests.support.bed.population import CARD_MIB, card_uuid, node_name
from tests.support.bed.stages import Life
from tests.support.waiting import wait_until
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.inventory import Units
from vgpu.ledger import ConflictKind
from vgpu.sources.node_sources import NodePaths

SMALL, LARGE = (100, 1200), (1000, 5000)
"""Nodes and pods."""
ALL = {Coverage.PODS, Coverage.NODES, Coverage.SHARE_PODS}


pytestmark = pytest.mark.thorough("fleets", smaller=True)


@pytest.fixture(scope="module")
def large(fleet, full):
    return fleet(*(LARGE if full else SMALL))


@pytest.fixture(scope="module")
def cluster(large):
    with ApiClient.connect(str(account(large.cluster, "reconciler").kubeconfig)) as connected:
        yield connected


@pytest.fixture(scope="module")
def watching(cluster):
    with closing(WatchingObserver(cluster, Units())) as observer:
        yield observer


@pytest.fixture
def broken(large):
    """A pod that holds all of a GPU, beside those that have shares of it."""
    whole = large.population.pod(large.population.pods)
    annotations = whole["metadata"]["annotations"]
    uuid = card_uuid(whole["spec"]["nodeName"], 0)
    annotations["volcano.sh/vgpu-ids-new"] = f"{uuid},NVIDIA,{CARD_MIB},0:"
    (made,) = large.add(whole)
    yield made
    if large.client.find(made):
        large.client.delete(made, grace_seconds=0)


def look(observer, now=1.0):
    return observer.view(now).snapshot


def by_uid(snapshot):
    return {pod.ref.uid: pod for pod in snapshot.pods}


def test_a_large_cluster_is_listed_in_full(cluster, large):
    snapshot = look(ListingObserver(cluster, Units()))
    there = large.population
    assert (len(snapshot.nodes), len(snapshot.pods)) == (there.nodes, there.pods)
    assert snapshot.complete == ALL  # KubeShare is not installed: there are no SharePods to miss
    assert snapshot.ledgers == {}
    assert snapshot.notes == ()


def test_listing_and_watching_see_the_same(cluster, watching, broken):
    wait_until(lambda: broken["metadata"]["uid"] in by_uid(look(watching)), "the pod is seen")
    seen = []

    def agree():
        """Soon: the new pod's kubelet still writes its status, and a watch reports it later."""
        seen[:] = look(ListingObserver(cluster, Units())), look(watching)
        return by_uid(seen[0]) == by_uid(seen[1])

    wait_until(agree, "a list and the watch show the same pods")
    listed, watched = seen
    assert {node.name: node for node in watched.nodes} == {n.name: n for n in listed.nodes}
    assert watched.ledgers == listed.ledgers
    assert watched.complete == listed.complete
    assert (watched.continuous, listed.continuous) == (True, False)
    (ledger,) = watched.ledgers.values()
    assert ledger.node == broken["spec"]["nodeName"]
    assert ConflictKind.OVERCOMMITTED in {conflict.kind for conflict in ledger.conflicts}


def test_the_labels_of_namespaces_are_seen_where_they_are_asked_for(large, cluster):
    made = large.client.create(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "labelled", "labels": {"team": "ml"}},
        }
    )
    with closing(WatchingObserver(cluster, Units(), namespaces=True)) as watching:
        for observer in (ListingObserver(cluster, Units(), namespaces=True), watching):
            wait_until(lambda: look(observer).namespaces.get("labelled"), "its labels are seen")  # noqa: B023
            assert look(observer).namespaces["labelled"]["team"] == "ml"
        large.client.patch(made, {"metadata": {"labels": {"team": "vision"}}})
        wait_until(
            lambda: look(watching).namespaces["labelled"]["team"] == "vision", "the change is seen"
        )
    assert look(ListingObserver(cluster, Units())).namespaces == {}


def test_the_quotas_of_namespaces_are_seen_where_they_are_asked_for(
    large, cluster, quota_namespace
):
    name = quota_namespace
    with closing(WatchingObserver(cluster, Units(), quotas=True)) as watching:
        for observer in (ListingObserver(cluster, Units(), quotas=True), watching):
            wait_until(lambda: name in look(observer).quotas, "its quota is seen")  # noqa: B023
            sight = look(observer)
            assert [limit.amount for limit in sight.quotas[name].limits] == [8]
            assert Coverage.QUOTAS in sight.complete
        path = f"/api/v1/namespaces/{name}/resourcequotas/q"
        large.client.patch(path, {"spec": {"hard": {"requests.aliyun.com/gpu-mem": "9"}}})
        wait_until(
            lambda: [limit.amount for limit in look(watching).quotas[name].limits] == [9],
            "the change is seen",
        )
    assert not look(ListingObserver(cluster, Units())).quotas


def test_without_the_right_to_read_quotas_none_is_evidence(large):
    limited = large.cluster.client_for(
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": ["kubeshare.nthu"], "resources": ["sharepods"], "verbs": ["list", "watch"]},
    )
    with ApiClient.connect(str(limited.kubeconfig)) as connected:
        sight = look(ListingObserver(connected, Units(), quotas=True))
    assert Coverage.QUOTAS not in sight.complete
    assert any(note.startswith("ResourceQuotas are not seen: ") for note in sight.notes)


@pytest.fixture
def quota_namespace(large):
    """A namespace with a ResourceQuota."""
    name = "quota-seen"
    large.client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": name},
        "spec": {"hard": {"requests.aliyun.com/gpu-mem": "8", "pods": "100"}},
    }
    large.client.create(quota)
    return name


def test_without_the_right_to_read_namespaces_their_labels_are_unknown_and_that_is_reported(large):
    rights = [
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": ["kubeshare.nthu"], "resources": ["sharepods"], "verbs": ["list", "watch"]},
    ]
    limited = large.cluster.client_for(*rights)
    with ApiClient.connect(str(limited.kubeconfig)) as connected:
        snapshot = look(ListingObserver(connected, Units(), namespaces=True))
        assert snapshot.namespaces == {}
        assert any(note.startswith("namespaces are not seen: ") for note in snapshot.notes)
        with closing(WatchingObserver(connected, Units(), namespaces=True)) as watching:
            snapshot = look(watching)
    assert snapshot.namespaces == {}
    assert any(note.startswith("some namespaces could not be read: ") for note in snapshot.notes)


def test_a_look_of_a_loop_costs_no_request(cluster, watching):
    assert look(watching).complete == ALL
    before = asked(cluster)
    look(watching)
    assert asked(cluster) == before


def asked(cluster):
    """Requests that a look could have made; watches, and lists of what is not there, go on."""
    others = (("list", "404"),)
    return {
        key: n for key, n in cluster.requests.items() if key[0] != "watch" and key not in others
    }


def test_a_pod_is_seen_when_it_is_made_changed_and_deleted(large, watching):
    made = large.population.pod(large.population.pods + 1, life=Life.UNEXPECTED_ADMISSION_ERROR)
    (refused,) = large.add(made)
    uid = refused["metadata"]["uid"]

    def pod():
        return by_uid(look(watching)).get(uid)

    wait_until(lambda: pod() and pod().phase == "Failed", "the refusal is seen")
    large.client.patch(refused, {"metadata": {"annotations": {"vgpu.dev/reconcile": "false"}}})
    wait_until(lambda: "vgpu.dev/reconcile" in pod().annotations, "the annotation is seen")
    large.client.delete(refused, grace_seconds=0)
    wait_until(lambda: pod() is None, "the deletion is seen")


def test_while_the_api_server_is_away_nothing_is_complete_and_nothing_is_forgotten(large, watching):
    before = by_uid(look(watching))
    large.cluster.kill_api()
    # That there are no SharePods is asked once a minute.
    wait_until(lambda: look(watching).complete <= {Coverage.SHARE_PODS}, "the failure is known")
    snapshot = look(watching)
    large.cluster.start_api()
    assert by_uid(snapshot).keys() == before.keys()
    assert not snapshot.ledgers
    assert any("some pods could not be read" in note for note in snapshot.notes)
    # In a quiet cluster the first heartbeat would be a bookmark, after a minute.
    for path in (f"/api/v1/nodes/{node_name(0)}", "/api/v1/namespaces/team-0/pods/{}"):
        name = next(pod.ref.name for pod in before.values() if pod.ref.namespace == "team-0")
        touched = large.client.get(path.format(name))
        large.client.patch(touched, {"metadata": {"annotations": {"vgpu.dev/touched": "yes"}}})
    wait_until(lambda: look(watching).complete == ALL, "every view is complete", seconds=180)
    assert by_uid(look(watching)).keys() == before.keys()


def test_one_node_is_seen_with_its_pods_alone(cluster, large, tmp_path):
    """The node's own sources are missing here, and that is reported."""
    nowhere = NodePaths(
        shim_roots=(str(tmp_path / "shim"),),
        procfs=str(tmp_path / "proc"),
        cgroupfs=str(tmp_path / "cgroup"),
        log_dir=str(tmp_path / "logs"),
        checkpoint=str(tmp_path / "checkpoint"),
    )
    name = node_name(7)
    for continuous in (True, False):
        observer = NodeObserver(cluster, name, nowhere, Units(), continuous=continuous)
        with closing(observer):
            snapshot = look(observer)
        assert snapshot.complete == {Coverage.PODS, Coverage.NODES}
        assert [node.name for node in snapshot.nodes] == [name]
        assert len(snapshot.pods) == large.population.pods // large.population.nodes
        assert {pod.node for pod in snapshot.pods} == {name}
        assert any("own allocation records are incomplete" in note for note in snapshot.notes)


@pytest.mark.parametrize("continuous", [True, False])
def test_a_node_that_does_not_exist_has_no_complete_view(cluster, continuous):
    with closing(
        NodeObserver(cluster, "no-such-node", NodePaths(), Units(), continuous=continuous)
    ) as observer:
        snapshot = look(observer)
    assert Coverage.PODS not in snapshot.complete
    assert not snapshot.folders
    assert any("--node-name" in note for note in snapshot.notes)


# ---------------------------------------------------------------- rights


def rule(resource, *verbs):
    return {"apiGroups": [""], "resources": [resource], "verbs": list(verbs)}


@pytest.fixture
def cluster_of(api):
    """Connects as a client with these rights only."""
    opened = []

    def connect(*rules):
        opened.append(ApiClient.connect(str(api.client_for(*rules).kubeconfig)))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def test_a_missing_right_costs_its_own_view_and_is_reported(api, api_namespace, cluster_of):
    asked = {"aliyun.com/gpu-mem": 8}
    api.client.create(objects.pod("one", api_namespace, limits=asked))
    reader = cluster_of(rule("pods", "list", "watch"))
    listed = look(ListingObserver(reader, Units()))
    assert listed.complete == {Coverage.PODS}
    assert "one" in {pod.ref.name for pod in listed.pods}
    notes = "\n".join(listed.notes)
    assert all(word in notes for word in ('"nodes"', '"sharepods"', "unhealthy GPUs"))
    with closing(WatchingObserver(reader, Units(), kinds=Watched(reader))) as watching:
        assert look(watching).complete == listed.complete


def test_without_the_right_to_read_pods_there_is_nothing_to_judge(cluster_of):
    reader = cluster_of(rule("nodes", "list", "watch"))
    with pytest.raises(ClusterError, match="Forbidden"):
        look(ListingObserver(reader, Units()))
    with closing(WatchingObserver(reader, Units())) as watching:
        assert Coverage.PODS not in look(watching).complete
