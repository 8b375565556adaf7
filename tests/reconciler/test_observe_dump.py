"""What a dump of kubectl shows, and the notes about what it lacks."""

import json

import pytest

from reconciler.model import Coverage, Scope
from reconciler.observe.dump import DumpObserver
from tests.support import sample_cluster as sample
from vgpu.inventory import Units
from vgpu.ledger import ConflictKind
from vgpu.model.names import Scheme
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.nvidia.resources import other_names

ALL = {Coverage.NODES, Coverage.PODS, Coverage.SHARE_PODS, Coverage.QUOTAS}


def look(objects=None, **list_fields):
    content = json.dumps({**sample.dump(objects), **list_fields}).encode()
    return DumpObserver(content, "dump.json", Units()).view(sample.NOW)


def without(*kinds):
    return [each for each in sample.items() if each["kind"] not in kinds]


def test_a_whole_cluster_is_seen_in_full():
    snapshot = look().snapshot
    assert snapshot.complete == ALL
    assert snapshot.scope is Scope.CLUSTER
    assert snapshot.now == sample.NOW
    assert len(snapshot.nodes) == 7
    assert {pod.ref.name for pod in snapshot.share_pods} == {"jupyter-0"}
    assert not snapshot.continuous


def test_the_labels_of_namespaces_in_it_are_known():
    labelled = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "ml", "labels": {"team": "ml"}},
    }
    snapshot = look([*sample.items(), labelled]).snapshot
    assert snapshot.namespaces == {"ml": {"team": "ml"}}
    assert look().snapshot.namespaces == {}
    assert snapshot.notes == look().snapshot.notes


def test_the_quotas_in_it_are_known_unless_it_is_cut():
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "ml"},
        "spec": {"hard": {"requests.aliyun.com/gpu-mem": "8", "pods": "3"}},
    }
    sight = look([*sample.items(), quota]).snapshot
    assert [limit.amount for limit in sight.quotas["ml"].limits] == [8]
    assert not look().snapshot.quotas
    cut = look([*sample.items(), quota], metadata={"continue": "more"}).snapshot
    assert Coverage.QUOTAS not in cut.complete


def test_lists_that_were_put_together_show_everything_once():
    twice = look([*sample.items(), *sample.items()])
    assert twice == look()


def test_the_languages_that_somebody_speaks_are_known():
    assert {codec.scheme for codec in look().codecs} == {
        Scheme.VOLCANO,
        Scheme.GPUSHARE,
        Scheme.GAIA,
        Scheme.KUBESHARE,
    }


def test_pods_of_nvidias_own_plugin_are_apart_whether_whole_or_mig():
    instance = sample.pod("instance", "whole-1", {"nvidia.com/mig-1g.5gb": 1})
    snapshot = look([*sample.items(), instance]).snapshot
    names = {"whole-card", "instance"}
    assert names.isdisjoint(pod.ref.name for pod in snapshot.pods)
    assert {pod.ref.name for pod in snapshot.nvidia_pods} == names
    assert any("2 pods with GPUs or MIG instances" in note for note in snapshot.notes)


@pytest.mark.parametrize("is_named", [False, True])
def test_pods_with_resources_under_another_name_are_seen_where_it_is_named(is_named):
    renamed = sample.pod("renamed", "whole-1", {"example.com/gpu": 1})
    with other_names(["example.com/gpu"] if is_named else []):
        snapshot = look([*sample.items(), renamed]).snapshot
    assert ("renamed" in {pod.ref.name for pod in snapshot.nvidia_pods}) == is_named
    assert "renamed" not in {pod.ref.name for pod in snapshot.pods}


def test_kubeshares_holder_pods_stay_though_they_have_whole_gpus():
    holding = sample.pod(
        "kubeshare-vgpu-kube-1-abcde",
        "kube-1",
        {"nvidia.com/gpu": 1},
        namespace="kube-system",
        labels={"kubeshare/role": "dummyPod", "kubeshare/GPUID": "abcde"},
    )
    names = {pod.ref.name for pod in look([*sample.items(), holding]).snapshot.pods}
    assert holding["metadata"]["name"] in names


def test_the_pods_are_as_the_api_server_has_them():
    """What a SharePod knows of its pod is for the ledger: an action compares with the original."""
    (real,) = (pod for pod in look().snapshot.pods if pod.ref.uid == "real-jupyter-0")
    assert not any(key.startswith("vgpu.dev/") for key in real.annotations)


def test_ledgers_are_those_in_which_something_is_wrong():
    ledgers = look().snapshot.ledgers
    assert ledgers.keys() == {"a100-2", "infer-1"}
    assert {one.kind for one in ledgers["a100-2"].conflicts} == {ConflictKind.DEVICE_UNHEALTHY}


@pytest.mark.parametrize(
    ("kind", "view", "message"),
    [
        ("Node", Coverage.NODES, "no nodes"),
        ("Pod", Coverage.PODS, "no pods"),
        ("SharePod", Coverage.SHARE_PODS, "no SharePods"),
    ],
)
def test_a_kind_that_the_dump_lacks_is_not_seen(kind, view, message):
    snapshot = look(without(kind)).snapshot
    assert snapshot.complete == ALL - {view}
    assert any(message in note for note in snapshot.notes)


def test_without_pods_there_are_no_ledgers():
    assert not look(without("Pod")).snapshot.ledgers


def test_pods_none_of_which_shares_a_gpu_are_all_the_same_seen():
    snapshot = look([sample.node("plain"), sample.pod("web", "plain")]).snapshot
    assert snapshot.complete == ALL
    assert not snapshot.pods


def test_where_nothing_speaks_of_kubeshare_there_are_no_share_pods_to_miss():
    objects = [sample.gpushare_node("infer-1"), sample.gpushare_pod("one", "infer-1", 11, 0)]
    assert look(objects).snapshot.complete == ALL


@pytest.mark.parametrize("trace", ["node", "pod", "holder"])
def test_any_trace_of_kubeshare_makes_missing_share_pods_unknown(trace):
    objects = {
        "node": sample.kubeshare_node("kube-1", 31),
        "pod": sample.real_pod(sample.share_pod("j", "kube-1", "0.4", sample.GIB)),
        "holder": sample.pod(
            "kubeshare-dummypod-kube-1-abc",
            "kube-1",
            {"nvidia.com/gpu": 1},
            namespace="kube-system",
        ),
    }
    others = [sample.node("plain"), sample.pod("web", "plain")]
    assert Coverage.SHARE_PODS not in look([objects[trace], *others]).snapshot.complete


def test_one_page_of_a_longer_list_is_no_complete_view():
    snapshot = look(metadata={"continue": "token"}).snapshot
    assert not snapshot.complete
    assert snapshot.pods
    assert not snapshot.ledgers  # of some of the pods they would call GPUs free that are not
    assert any("one page" in note for note in snapshot.notes)


def test_a_list_that_ends_here_is_complete():
    assert look(metadata={"continue": "", "resourceVersion": ""}).snapshot.complete == ALL


def test_what_is_no_dump_names_the_file():
    with pytest.raises(SourceError) as caught:
        DumpObserver(b"no json", "dump.json", Units()).view(0.0)
    assert caught.value.reason is Reason.MALFORMED
    assert caught.value.object_name == "dump.json"
