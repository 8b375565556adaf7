"""An object that cannot be read costs itself: not its list, its watch, its dump, its command."""

import json

import pytest
from click.testing import CliRunner

from simulator.apiserver import ApiServer
from simulator.store import ObjectStore
from tests.support import sample_cluster as sample
from tests.support.scripted_api import END, ScriptedApi, event
from tests.support.waiting import wait_until
from vgpu.apiserver.informer import Informer
from vgpu.kube.decode import pruned
from vgpu.kube.documents import EventType
from vgpu.kube.dump import decode_dump
from vgpu.kube.kinds import NODES, PODS, SHARE_PODS
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject
from vgpucli.main import main

GPUID = {"kubeshare/GPUID": "abcde"}

TENANTS = {
    "resources": {"spec": {"containers": [{"name": "main", "resources": "x"}]}},
    "containers": {"spec": {"containers": "x"}},
    "limits": {"spec": {"containers": [{"name": "main", "resources": {"limits": []}}]}},
    "priority": {"spec": {"priority": "x"}},
    "phase": {"status": {"PodStatus": {"phase": 7}}},
    "node": {"spec": {"nodeName": 5}},
    "spec": {"spec": "x"},
    "status": {"status": []},
    "time": {"status": {"PodStatus": {"startTime": "0000-01-01T00:00:00Z"}}},
    "port": {"status": {"PodManagerPort": 1e300}},
    "huge": {"spec": {"priority": 10**400}},
}
"""What the API server takes of a SharePod, whose CRD has no schema."""


def share_pod(name="sharer", **fields):
    meta = {"name": name, "namespace": "ml", "uid": f"uid-{name}", "annotations": GPUID}
    return {"apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", "metadata": meta, **fields}


def nested(depth):
    """A SharePod with something deep in it."""
    text = json.dumps(share_pod("deep", spec={"x": 0, "nodeName": "gpu-1"}))
    return text.replace('"x": 0', '"x":' + '{"y":[' * depth + "]}" * depth)


def listed(*items):
    texts = (each if isinstance(each, str) else json.dumps(each) for each in items)
    return f'{{"kind":"List","metadata":{{}},"items":[{",".join(texts)}]}}'.encode()


@pytest.fixture(params=TENANTS, ids=str)
def bad(request):
    return share_pod("bad", **TENANTS[request.param])


# ---------------------------------------------------------------- lists, watches, dumps


def test_a_list_has_all_but_the_one_that_cannot_be_read_and_names_it(bad):
    page = SHARE_PODS.page(listed(share_pod("a"), bad, share_pod("b")))
    assert [pod.ref.name for pod in page.objects] == ["a", "b"]
    (unread,) = page.malformed
    assert (unread.kind, unread.ref) == ("SharePod", PodRef("uid-bad", "ml", "bad"))
    assert unread.annotations == GPUID
    assert unread.detail
    assert page.total == 3


def test_a_watch_names_it_and_goes_on_from_there(bad):
    bad["metadata"]["resourceVersion"] = "7"
    line = json.dumps({"type": "MODIFIED", "object": bad}).encode()
    event = SHARE_PODS.event(line)
    assert (event.type, event.resource_version) == (EventType.MODIFIED, "7")
    assert isinstance(event.object, MalformedObject)
    assert event.object.ref.name == "bad"


def test_a_dump_has_all_the_others(bad):
    dump = decode_dump(listed(share_pod("a"), bad, sample.volcano_node("gpu-1", 1)))
    assert [pod.ref.name for pod in dump.share_pods] == ["a"]
    assert [node.name for node in dump.nodes] == ["gpu-1"]
    assert [each.ref.name for each in dump.malformed] == ["bad"]


def test_its_node_is_reported_if_that_can_be_read():
    def node(**fields):
        (unread,) = SHARE_PODS.page(listed(share_pod(**{"status": [], **fields}))).malformed
        return unread.node

    assert node(spec={"nodeName": "gpu-1"}) == "gpu-1"
    assert node() == node(spec={}) == node(spec={"nodeName": None}) == ""
    assert node(spec={"nodeName": 5}) is node(spec=5) is node(spec=None) is None


@pytest.mark.parametrize("depth", [300, 5_000, 20_000])
def test_what_is_nested_without_end_is_not_looked_at(depth):
    page = SHARE_PODS.page(listed(share_pod("a"), nested(depth)))
    assert [pod.ref.name for pod in page.objects] == ["a", "deep"]
    assert page.objects[1].node == "gpu-1"
    line = f'{{"type":"ADDED","object":{nested(depth)}}}'.encode()
    assert SHARE_PODS.event(line).object == page.objects[1]
    assert decode_dump(listed(nested(depth))).share_pods == page.objects[1:]


def test_an_environment_is_read_or_passed_over_however_deep_it_is_nested():
    variable = '{"name":"CUDA_DISABLE_CONTROL","value":"true","x":X}'
    text = json.dumps(share_pod("deep", spec={"containers": [{"name": "main", "env": [0]}]}))
    for depth in range(1, 1_200):
        deep = variable.replace("X", "[" * depth + "]" * depth)
        assert SHARE_PODS.one(text.replace("[0]", f"[{deep}]").encode()).ref.name == "deep"


def test_only_what_lies_deep_is_cut_out():
    deep = b"[" * 80 + b"]" * 80
    assert pruned(b'{"a":' + deep + b',"b":"]}\\"[{","c":[]}') == (
        b'{"a":' + b"[" * 63 + b"null" + b"]" * 63 + b',"b":"]}\\"[{","c":[]}'
    )
    assert pruned(b"[" * 100) == b"[" * 64 + b"null"  # never closed: no JSON before, none after


def test_a_time_that_a_tenant_wrote_into_a_pods_managed_fields_stops_nothing():
    """Go has a year 0, and whoever makes a pod may send its managedFields."""
    made = sample.volcano_pod("web", "gpu-1", 1, 8000)
    made["status"]["phase"] = "Pending"
    entry = {"manager": "kubelet", "subresource": "status", "operation": "Update"}
    sound = {**entry, "time": "2025-01-01T00:00:10Z"}
    made["metadata"]["managedFields"] = [{**entry, "time": "0000-01-01T00:00:00Z"}, sound]
    assert PODS.one(json.dumps(made).encode()).status_at == 1735689610.0
    made["metadata"]["managedFields"] = [{**entry, "time": 7}]
    assert PODS.one(json.dumps(made).encode()).status_at is None


def test_pods_and_nodes_are_read_one_by_one_too():
    pods = [sample.volcano_pod(name, "gpu-1", 1, 8000) for name in "abc"]
    pods[1]["status"]["phase"] = 7
    page = PODS.page(listed(*pods))
    assert [pod.ref.name for pod in page.objects] == ["a", "c"]
    assert [(each.kind, each.name, each.node) for each in page.malformed] == [("Pod", "b", "gpu-1")]
    assert [each.name for each in PODS.page(listed(*pods), node="gpu-1").malformed] == ["b"]
    assert PODS.page(listed(*pods), node="gpu-2").malformed == ()
    nodes = [sample.volcano_node(f"gpu-{number}", number) for number in (1, 2)]
    nodes[0]["status"]["capacity"]["aliyun.com/gpu-mem"] = "500m"
    page = NODES.page(listed(*nodes))
    assert [node.name for node in page.objects] == ["gpu-2"]
    assert [str(each) for each in page.malformed] == [
        "Node gpu-1: aliyun.com/gpu-mem: not a whole number: '500m'"
    ]


def test_of_a_pod_that_shares_nothing_nobody_reads_the_rest():
    page = PODS.page(listed(sample.pod("cpu", "gpu-1") | {"status": {"phase": 7}}))
    assert (page.objects, page.malformed, page.total) == ((), (), 1)


# ---------------------------------------------------------------- followed


UNREAD = MalformedObject("SharePod", PodRef("uid-1", "ml", "bad"), "phase: 7")


class Sound:
    """An object of the same key as the malformed one."""

    ref = UNREAD.ref


def test_a_mirror_lists_what_it_cannot_read_until_it_is_corrected_or_deleted():
    server = ScriptedApi([Sound, UNREAD])
    informer = Informer(server, "server", key=lambda each: each.ref.uid, clock=server.clock)

    def wait_for(objects, malformed):
        def there():
            state = informer.state()
            return state.synced and (len(state.objects), len(state.malformed)) == (
                objects,
                malformed,
            )

        wait_until(there, f"{objects} read, {malformed} not", context=informer.state)

    informer.start()
    try:
        wait_for(1, 1)
        server.events.put(event(EventType.MODIFIED, Sound))
        wait_for(1, 0)
        server.events.put(event(EventType.MODIFIED, UNREAD))
        wait_for(0, 1)
        server.events.put(event(EventType.DELETED, UNREAD))
        wait_for(0, 0)
        assert server.listed == 1
        assert informer.state().failure is None
    finally:
        informer.close()
        server.events.put(END)


# ---------------------------------------------------------------- inspect


def inspect(tmp_path, *items):
    file = tmp_path / "dump.json"
    file.write_bytes(listed(*items))
    result = CliRunner().invoke(main, ["inspect", "--from", str(file), "-o", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_inspect_shows_the_rest_and_names_what_it_cannot_read(tmp_path, bad):
    sound = [sample.volcano_node("gpu-1", 1), sample.volcano_pod("web", "gpu-1", 1, 8000)]
    before, document = inspect(tmp_path, *sound), inspect(tmp_path, *sound, bad)
    assert document["nodes"] == before["nodes"]
    (note,) = [each for each in document["notes"] if each.startswith("malformed objects")]
    assert "1: SharePod ml/bad: " in note


def test_inspect_counts_what_it_has_no_room_to_name(tmp_path):
    many = [share_pod(f"bad-{number}", spec="x") for number in range(5)]
    (note,) = [
        each
        for each in inspect(tmp_path, sample.volcano_node("gpu-1", 1), *many)["notes"]
        if each.startswith("malformed objects")
    ]
    assert "5: SharePod ml/bad-0: " in note
    assert note.endswith("and 2 more")


def test_inspect_asks_a_server_and_shows_the_rest(tmp_path):
    store = ObjectStore()
    store.create(NODES, sample.volcano_node("gpu-1", 1))
    for name, phase in (("web", "Running"), ("bad", 7)):
        made = sample.volcano_pod(name, "gpu-1", 1, 8000)
        made["status"]["phase"] = phase
        store.create(PODS, made)
    config = tmp_path / "kubeconfig"
    with ApiServer(store) as server:
        config.write_text(server.kubeconfig())
        for words in ((), ("gpu-1",)):
            result = CliRunner().invoke(
                main, ["inspect", *words, "--kubeconfig", str(config), "-o", "json"]
            )
            assert result.exit_code == 0, result.output
            document = json.loads(result.stdout)
            assert "Pod ml/bad: " in document["notes"][0]
            devices = document["nodes"][0]["devices"]
            holdings = [each for device in devices for each in device["holdings"]]
            assert [each["pod"]["name"] for each in holdings] == ["web"]
