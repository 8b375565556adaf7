"""What the page reads of an API server: everything at once, and nothing because somebody looks."""

import json
import re
from urllib.parse import urlsplit

import pytest

import simulator.apiserver
from fleet.read import of_cluster
from fleet.rights import RIGHTS
from fleet.snapshot import snapshot
from reconciler.apply.records import COMPONENT
from reconciler.reconciler_state import Attempt, ReconcilerState, encode
from reconciler.state_store import KEY
from simulator.apiserver import ALL_KINDS, ApiServer
from simulator.cluster import SimulatedCluster
from simulator.demo_cluster import demo_cluster
from simulator.store import ObjectStore
from tests.fleet.pages_of_dump import UNITS
from tests.support import kai_player
from tests.support.answering_server import anonymous_access
from tests.support.sample_cluster import NOW
from vgpu.apiserver.client import ApiClient
from vgpu.kube.events import event_note
from vgpu.kube.installation_kinds import DEPLOYMENTS
from vgpu.kube.kai_groups import KAI_KINDS
from vgpu.kube.kinds import CONFIG_MAPS
from vgpu.model.names import PodRef
from vgpucli.doctor.check_rights import OWN

WAITING = "pods_wait_for_their_reasons"


@pytest.fixture
def kai_is_installed(monkeypatch):
    monkeypatch.setattr(simulator.apiserver, "ALL_KINDS", (*ALL_KINDS, *KAI_KINDS))


def read(objects, kinds):
    """The snapshot of an API server with these objects, which is gone now."""
    store = ObjectStore()
    by_name = {(kind.name, kind.api_version): kind for kind in kinds}
    for item in objects:
        kind = by_name.get((item["kind"], item["apiVersion"]))
        if kind is not None:
            store.create(kind, item)
    with ApiServer(store) as api, ApiClient(anonymous_access(api.url)) as cluster:
        return snapshot(of_cluster(cluster, UNITS, "team"), UNITS)


@pytest.mark.usefixtures("kai_is_installed")
@pytest.mark.parametrize(
    ("name", "conclusion"),
    [
        ("over-limit", "Limit is 0.3 GPUs"),
        ("lost", "Queue 'nowhere' does not exist"),
        ("no-quota", "small quota is 0.2 GPUs"),
    ],
)
def test_a_pod_of_kai_is_explained_without_another_request(name, conclusion):
    found = read(kai_player.after(WAITING), (*ALL_KINDS, *KAI_KINDS))
    assert conclusion in found.answers.pod("team-a", name).conclusion


def test_where_kai_is_not_installed_its_kinds_are_no_note():
    found = read(kai_player.after(WAITING), ALL_KINDS)
    assert "scheduling.run.ai" not in json.dumps(found.notes)
    assert found.answers.pod("team-a", "over-limit").conclusion


# ---------------------------------------------------------------- rights

PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/[^/]+"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?"
)


@pytest.fixture
def requests(monkeypatch):
    """The requests that the simulated API server gets."""
    seen = []

    class Recorded(simulator.apiserver._Handler):
        def do_GET(self):  # noqa: N802
            seen.append(("GET", urlsplit(self.path).path))
            super().do_GET()

        def do_POST(self):  # noqa: N802
            seen.append(("POST", urlsplit(self.path).path))
            super().do_POST()

    monkeypatch.setattr(simulator.apiserver, "_Handler", Recorded)
    return seen


def allowed(path):
    """The rights of the table that allow a request."""
    found = PATH.fullmatch(path)
    about = {name: text or "" for name, text in found.groupdict().items()}
    verb = "get" if about["name"] else "list"
    return [
        each
        for each in RIGHTS
        if (each.group, each.resource) == (about["group"], about["resource"])
        and verb in each.verbs
        and each.namespace in ("", OWN, about["namespace"])
        and each.name in ("", about["name"])
    ]


def test_the_table_has_the_rights_with_which_the_page_reads(requests):
    store = SimulatedCluster(demo_cluster(NOW), NOW).store
    with ApiServer(store) as api, ApiClient(anonymous_access(api.url)) as cluster:
        snapshot(of_cluster(cluster, UNITS, "team"), UNITS)
    paths = {path for _, path in requests}
    objects = {path for path in paths if PATH.fullmatch(path)}
    assert {
        path for path in paths - objects if not re.match(r"/version|/apis?(/[^/]+)*$", path)
    } == set()
    assert {path for path in objects if not allowed(path)} == set()
    used = {right for path in objects for right in allowed(path)}
    unused = {each.resource for each in RIGHTS if each not in used}
    assert unused <= {  # where a writer of ours, or Volcano, is installed
        *("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
        *("podgroups", "configmaps"),
    }
    assert {method for method, _ in requests} == {"GET"}


# ---------------------------------------------------------------- the reconciler

RECONCILER = {
    "metadata": {"namespace": "vgpu", "name": "vgpu-reconciler"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "vgpu"}},
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "reconciler",
                        "image": "ghcr.io/dusk-labs/vgpu:1.0",
                        "args": ["reconcile", "run", "--state-namespace=vgpu"],
                    }
                ]
            }
        },
    },
}


def reconciled(data):
    """The repairs of a cluster with a reconciler whose state is ``data``."""
    store = ObjectStore()
    store.create(DEPLOYMENTS, RECONCILER)
    if data is not None:
        about = {"namespace": "vgpu", "name": "vgpu-reconcile-state"}
        store.create(CONFIG_MAPS, {"metadata": about, "data": data})
    pod = PodRef("ml", "train", "uid-1")
    notes = [
        event_note(pod, "Evicted", "deleted: it was refused", NOW - 60, component=COMPONENT),
        event_note(pod, "Skipped", "it is protected", NOW - 30, component=COMPONENT),
        event_note(pod, "Scheduled", "by somebody else", NOW, component="kube-scheduler"),
    ]
    with ApiServer(store) as api, ApiClient(anonymous_access(api.url)) as cluster:
        for note in (*notes, notes[0]):
            cluster.write_event(note)
        return snapshot(of_cluster(cluster, UNITS, "team"), UNITS).repairs


def test_events_and_state_of_the_reconciler_are_shown():
    state = ReconcilerState(failed={"a": NOW}, attempts={"u@n": Attempt(2, NOW)})
    repairs = reconciled({KEY: encode(state)})
    assert [(each.reason, each.times) for each in repairs.events] == [
        ("Skipped", 1),
        ("Evicted", 2),
    ]
    assert (repairs.failed, repairs.evicted) == (1, 1)
    assert repairs.kept_in == "vgpu/vgpu-reconcile-state"
    assert repairs.notes == ()


@pytest.mark.parametrize("data", [None, {}, {KEY: "{"}, {KEY: "[]"}, {"other": "x"}])
def test_a_state_that_is_missing_or_unreadable_shows_no_failure(data):
    repairs = reconciled(data)
    assert (repairs.failed, repairs.evicted, repairs.notes) == (0, 0, ())
    assert len(repairs.events) == 2


def test_no_right_of_the_table_writes_or_reads_a_secret():
    assert {verb for each in RIGHTS for verb in each.verbs} == {"get", "list"}
    assert not [each for each in RIGHTS if each.resource == "secrets" or "/" in each.resource]
