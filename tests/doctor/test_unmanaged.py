"""What `vgpu doctor` knows beside workloads: pods without a controller, and custom resources."""

import json
import os

import pytest

from simulator.apiserver import ALL_KINDS, ApiServer
from simulator.store import ObjectStore
from tests.support import sample_cluster as sample
from tests.support.installed import NOW, bare_pod, hami_plugin, ours, workload
from vgpu.apiserver.client import ApiClient
from vgpucli.doctor.answer import cluster_findings
from vgpucli.doctor.check_systems import CUSTOM_KINDS
from vgpucli.doctor.model import Severity
from vgpucli.doctor.read import from_dumps, from_server

KUBE_SCHEDULER = ("kube-scheduler", "registry.k8s.io/kube-scheduler:v1.34.4", "kube-scheduler")
KUBESHARE = ("scheduler", "ncy9371/kubeshare-scheduler:v1.0", "/kubeshare-scheduler")
OURS = ("vgpu", "registry.example/vgpu:0.1.0", "vgpu", "tokens")

PODS = (
    bare_pod("kube-scheduler-cp", KUBE_SCHEDULER, owner="Node", tier="control-plane"),
    bare_pod("kubeshare-scheduler", KUBESHARE, ready=False),
    bare_pod("of-a-daemon-set", OURS, owner="DaemonSet"),
    bare_pod("of-a-job", OURS, owner="Job"),
)
NODE = sample.node(
    "a", {"nvidia.com/gpu": 10}, {"hami.io/node-nvidia-register": "GPU-1,10,24576,100,L40S,0,true:"}
)


def definition(name):
    return {
        "kind": "CustomResourceDefinition",
        "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": name},
    }


@pytest.fixture
def facts(tmp_path):
    def made(*items):
        path = tmp_path / "dump.json"
        path.write_text(json.dumps(sample.dump(list(items))))
        os.utime(path, (NOW, NOW))
        return from_dumps([str(path)], {})

    return made


def served(tmp_path, *items):
    """The facts that an API server has."""
    kinds = {kind.name: kind for kind in ALL_KINDS}
    store = ObjectStore()
    for item in items:
        store.create(kinds[item["kind"]], item)
    path = tmp_path / "kubeconfig"
    with ApiServer(store) as api:
        path.write_text(api.kubeconfig())
        with ApiClient.connect(str(path)) as cluster:
            return from_server(cluster, {})


def about(facts, reason):
    return {
        (each.about, *each.evidence) for each in cluster_findings(facts) if each.reason == reason
    }


def test_static_and_bare_pods_are_components_and_others_are_not(facts):
    diagnosed = facts(NODE, hami_plugin(), *PODS)
    assert {each for each in about(diagnosed, "installed") if each[0].startswith("Pod")} == {
        ("Pod kube-system/kube-scheduler-cp", "kube-scheduler v1.34.4, 1 of 1 pod ready"),
        ("Pod kube-system/kubeshare-scheduler", "KubeShare scheduler v1.0, 0 of 1 pod ready"),
    }
    assert about(diagnosed, "none_ready") == {
        ("Pod kube-system/kubeshare-scheduler", "KubeShare scheduler: 0 of 1 pod ready")
    }


def test_pods_that_have_ended_are_none(facts):
    ended = bare_pod("kubeshare-scheduler", KUBESHARE)
    ended["status"]["phase"] = "Failed"
    assert not any(name.startswith("Pod") for name, *_ in about(facts(ended, NODE), "installed"))


def test_an_api_server_lists_only_pods_without_a_controller(tmp_path):
    """In kube-system and where components are; others have the labels of their controllers."""
    managed = bare_pod("managed", KUBESHARE, **{"pod-template-hash": "x"})
    proxy = bare_pod("proxy", KUBESHARE, component="kube-proxy")
    elsewhere = bare_pod("elsewhere", KUBESHARE, namespace="ml")
    beside = bare_pod("beside", KUBESHARE, namespace="vgpu-system")
    exporter = ours("DaemonSet", "exporter", "exporter")
    names = {
        each.name
        for each in served(
            tmp_path, NODE, exporter, *PODS, managed, proxy, elsewhere, beside
        ).workloads
        if each.kind == "Pod"
    }
    assert names == {"kube-scheduler-cp", "kubeshare-scheduler", "beside"}


def test_custom_resources_are_known_by_name(facts, tmp_path):
    diagnosed = facts(NODE, definition("sharepods.kubeshare.nthu"), definition("other.example"))
    assert about(diagnosed, "custom_kinds") == {
        ("", "custom resources of KubeShare: sharepods.kubeshare.nthu")
    }
    assert ("", "custom resources of KubeShare: sharepods.kubeshare.nthu") in about(
        served(tmp_path, NODE), "custom_kinds"
    )
    assert not about(facts(NODE), "custom_kinds"), "a dump without definitions says nothing"


VOLCANO_IMAGE = ("s", "volcanosh/vc-scheduler:v1.14.1", "/vc")
VOLCANO = workload("Deployment", "volcano-scheduler", VOLCANO_IMAGE)
CONTROLLER = ours("Deployment", "kubeshare-controller", "kubeshare", "controller")


@pytest.mark.parametrize(
    ("component", "missing"),
    [
        (VOLCANO, "podgroups.scheduling.volcano.sh, queues.scheduling.volcano.sh"),
        (CONTROLLER, "sharepods.kubeshare.nthu"),
        (ours("DaemonSet", "exporter", "exporter"), ""),
        (workload("Deployment", "volcano-scheduler", VOLCANO_IMAGE, desired=0), ""),
    ],
)
def test_a_component_that_lacks_its_custom_resources(facts, component, missing):
    findings = about(facts(NODE, component, definition("other.example")), "missing_kind")
    assert {text.partition(": ")[2] for _, text in findings} == ({missing} if missing else set())
    assert not about(facts(NODE, component), "missing_kind")
    everything = (definition(kind.name) for kind in CUSTOM_KINDS)
    assert not about(facts(NODE, component, *everything), "missing_kind")


SECRET = "hunter2-s3cr3t"


def test_a_check_that_crashes_costs_itself_only(facts, monkeypatch):
    """Whatever its error has in its message is not printed."""

    def crash(_):
        raise KeyError(SECRET)

    diagnosed = facts(NODE, hami_plugin("v1"), definition("sharepods.kubeshare.nthu"))
    before = set(cluster_findings(diagnosed))
    monkeypatch.setattr("vgpucli.doctor.check_systems.check_custom_kinds", crash)
    findings = set(cluster_findings(diagnosed))
    (failed,) = (each for each in findings if each.reason == "check_failed")
    assert (failed.severity, failed.about) == (Severity.WARNING, "systems")
    assert failed.evidence[0].startswith("KeyError in test_unmanaged.py, line ")
    assert SECRET not in repr(failed)
    others = {each for each in before if each.check != "systems"}
    assert others <= findings, "the other checks are made"
    assert about(diagnosed, "installed"), "and what came before the error"
