"""The queues of a watched cluster: what is read for metrics, and that no plan is lost for it."""

from contextlib import closing

import pytest

from reconciler.observe.cluster import WatchingObserver
from reconciler.plan import make_plan
from reconciler.policy import Policy
from reconciler.reconciler_state import ReconcilerState
from simulator.apiserver import ApiServer
from simulator.cluster import SimulatedCluster
from simulator.demo_cluster import demo_cluster
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.inventory import Units
from vgpu.inventory.pod_usage import pod_accounts
from vgpu.kube.kinds import CONFIG_MAPS
from vgpu.kube.kueue_kinds import CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS
from vgpu.kube.volcano_kinds import QUEUES
from vgpu.ledger.cluster import cluster as cluster_ledgers
from vgpu.model.units import GIB
from vgpu.quota.queue_line import AmountKind

START = 1_790_000_000.0
UNITS = Units(1024, GIB)
QUOTA = {"name": "t4", "resources": [{"name": "volcano.sh/vgpu-number", "nominalQuota": "4"}]}


@pytest.fixture
def store():
    store = SimulatedCluster(demo_cluster(START), START).store
    spec = {"resourceGroups": [{"flavors": [QUOTA]}]}
    store.create(CLUSTER_QUEUES, {"metadata": {"name": "a"}, "spec": spec})
    named = {"metadata": {"name": "main", "namespace": "ml"}, "spec": {"clusterQueue": "a"}}
    store.create(LOCAL_QUEUES, named)
    return store


@pytest.fixture
def client(store, tmp_path):
    config = tmp_path / "kubeconfig"
    with ApiServer(store) as api:
        config.write_text(api.kubeconfig())
        with ApiClient.connect(str(config)) as client:
            yield client


def seen(client, **flags):
    with closing(WatchingObserver(client, UNITS, **flags)) as observer:
        return observer.view(START + 5)


def test_the_queues_of_a_watched_cluster_are_in_its_plan_with_what_its_pods_hold(client):
    view = seen(client, queues=True)
    snapshot = view.snapshot
    assert [each.name for each in snapshot.kueue.cluster_queues] == ["a"]
    assert any("kueue-manager-config" in note for note in snapshot.notes)
    pods = (*snapshot.pods, *snapshot.nvidia_pods)
    ledgers = cluster_ledgers(snapshot.nodes, pods, view.codecs).ledgers
    accounts = pod_accounts(snapshot.nodes, ledgers, pods, view.codecs)
    held = {each.pod.ref.uid: each.held for each in accounts if each.phase is not None}
    assert held
    assert {pod.ref.uid: amounts for pod, amounts in snapshot.held} == held
    plan, _ = make_plan(snapshot, Policy(), ReconcilerState(), view.codecs)
    nominal = {
        each.queue.name: each.amounts.get(AmountKind.NOMINAL) for each in plan.queues.amounts
    }
    assert nominal == {"a": 4, "ml/main": None}


def test_queues_of_volcano_are_read_with_the_plugin_that_compares_their_limits(store, client):
    spec = {"capability": {"volcano.sh/vgpu-number": "4"}}
    store.create(QUEUES, {"metadata": {"name": "ml"}, "spec": spec})
    limits = []
    for plugins in ((), ("proportion",)):
        if plugins:
            text = "tiers: [{plugins: [{name: proportion}]}]"
            named = {"namespace": "volcano-system", "name": "volcano-scheduler-configmap"}
            store.create(CONFIG_MAPS, {"metadata": named, "data": {"volcano-scheduler.conf": text}})
        view = seen(client, queues=True)
        assert any("limits of Volcano" in note for note in view.snapshot.notes) == (not plugins)
        plan, _ = make_plan(view.snapshot, Policy(), ReconcilerState(), view.codecs)
        limits += (
            each.amounts.get(AmountKind.LIMIT)
            for each in plan.queues.amounts
            if each.queue.name == "ml"
        )
    assert limits == [None, 4]


def test_without_the_setting_nothing_of_kueue_is_read(client):
    snapshot = seen(client).snapshot
    assert not snapshot.kueue.has_queues
    assert snapshot.held == ()
    assert not any("kueue" in note.lower() for note in snapshot.notes)


def test_queues_that_cannot_be_read_cost_no_plan_and_are_a_note(client, monkeypatch):
    pages, failure = client.pages, ClusterError(500, "InternalError", "conversion webhook failed")

    def broken(kind, **selectors):
        if kind.plural == WORKLOADS.plural:
            raise failure
        return pages(kind, **selectors)

    monkeypatch.setattr(client, "pages", broken)
    monkeypatch.setattr(client, "config_map", lambda *_: (_ for _ in ()).throw(failure))
    view = seen(client, queues=True)
    assert view.snapshot.pods
    assert view.snapshot.kueue.unread == {"Workload"}
    notes = " ".join(view.snapshot.notes)
    assert "Workloads could not be read" in notes
    assert "transformations unknown" in notes
    plan, _ = make_plan(view.snapshot, Policy(), ReconcilerState(), view.codecs)
    kinds = {kind for each in plan.queues.amounts for kind in each.amounts}
    assert AmountKind.WAITING not in kinds
    assert plan.queues.waiting_workloads == {}
