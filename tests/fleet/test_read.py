"""What the page reads of an API server: everything at once, and nothing because somebody looks."""

import json

import pytest

import simulator.apiserver
from fleet.read import of_cluster
from fleet.snapshot import snapshot
from simulator.apiserver import ALL_KINDS, ApiServer
from simulator.store import ObjectStore
from tests.fleet.pages_of_dump import UNITS
from tests.support import kai_player
from tests.support.answering_server import anonymous_access
from vgpu.apiserver.client import ApiClient
from vgpu.kube.kai_groups import KAI_KINDS

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
