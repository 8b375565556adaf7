"""Kueue beside the sharing systems: whether it runs, and how it counts HAMi's resources."""

import pytest

from tests.doctor.test_unmanaged import served
from tests.support import sample_cluster as sample
from tests.support.doctor_facts import facts_of
from tests.support.installed import workload
from vgpucli.doctor.answer import cluster_findings

SPACE = "kueue-system"
REGISTER = {"hami.io/node-nvidia-register": "GPU-1,10,40960,100,A100,0,true:"}
TRANSFORMED = """
resources:
  transformations:
  - {input: nvidia.com/gpumem, strategy: Replace, multiplyBy: nvidia.com/gpu, outputs: {a/b: 1}}
  - {input: nvidia.com/gpucores, strategy: Replace, multiplyBy: nvidia.com/gpu, outputs: {a/c: 1}}
"""


def kueue(**options):
    container = ("manager", "registry.k8s.io/kueue/kueue:v0.17.0", "/manager")
    config_maps = ("kueue-manager-config",)
    options = {"namespace": SPACE, "config_maps": config_maps, **options}
    return workload("Deployment", "kueue-controller-manager", container, **options)


def webhooks(policy="Fail", space=SPACE, pods_policy=""):
    service = {"namespace": space, "name": "kueue-webhook-service"}
    return {
        "kind": "MutatingWebhookConfiguration",
        "apiVersion": "admissionregistration.k8s.io/v1",
        "metadata": {"name": "kueue-mutating-webhook-configuration"},
        "webhooks": [
            {
                "name": f"m{resource}.kb.io",
                "failurePolicy": pods_policy or policy if resource == "pods" else policy,
                "clientConfig": {"service": service},
                "rules": [
                    {"operations": ["CREATE"], "resources": [resource]},
                    {"operations": ["UPDATE"], "resources": [f"{resource}/status"]},
                ],
            }
            for resource in ("pods", "jobs")
        ],
    }


def config(text):
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "kueue-manager-config", "namespace": SPACE},
        "data": {"controller_manager_config.yaml": text},
    }


def about_kueue(*items):
    """The findings about Kueue that are no mere information, by code."""
    findings = cluster_findings(facts_of(sample.node("a"), *items))
    codes = ("kueue_away", "not_transformed", "webhook_blocks_pods")
    return {each.reason.value: each for each in findings if each.reason.value in codes}


other = workload("Deployment", "other", ("c", "example/other:1"))
viewer = workload("Deployment", "kueue-viz", ("c", "example/viz:1"), namespace=SPACE)
elsewhere = workload("Deployment", "other", ("c", "example/other:1"), namespace="team-a")


def mirrored(name="kueue-controller-manager", space=SPACE, **options):
    container = ("manager", "registry.corp.example/mirror/kueue-manager:v0.17.0", "/manager")
    return workload("Deployment", name, container, namespace=space, **options)


@pytest.mark.parametrize(
    ("items", "evidence"),
    [
        ((kueue(ready=0), webhooks()), "0 of 1 pod ready"),
        ((kueue(desired=0), webhooks()), "0 of 0 pods ready"),
        ((other, elsewhere, webhooks()), "no Deployment of Kueue in namespace kueue-system"),
        ((mirrored(ready=0), viewer, webhooks()), "kueue-controller-manager: 0 of 1 pod ready"),
        ((kueue(ready=0), viewer, webhooks()), "kueue-controller-manager: 0 of 1 pod ready"),
        ((mirrored("any", ready=0), webhooks()), "kueue-system/any: 0 of 1 pod ready"),
        ((kueue(ready=0), webhooks()), "refused: new jobs, pods"),
        ((kueue(ready=0), webhooks(pods_policy="Ignore")), "refused: new jobs"),
    ],
)
def test_webhooks_of_kueue_without_kueue_are_an_error(items, evidence):
    found = about_kueue(*items)["kueue_away"]
    assert found.severity.value == "error"
    assert "kueue-mutating-webhook-configuration" in found.about
    assert any(text.endswith(evidence) for text in found.evidence)


@pytest.mark.parametrize(
    "items",
    [
        (kueue(), webhooks()),
        (kueue(desired=2, ready=1), webhooks()),
        (kueue(ready=0), webhooks("Ignore")),
        (kueue(ready=0),),
        (webhooks(),),
        (mirrored(), webhooks()),
        (mirrored("any"), webhooks()),
        (mirrored(space="openshift-kueue-operator"), webhooks(space="openshift-kueue-operator")),
        (elsewhere, webhooks()),
    ],
)
def test_a_kueue_that_runs_or_was_not_read_is_no_error(items):
    assert about_kueue(*items) == {}


def test_a_dump_of_another_namespace_has_no_word_about_kueue():
    findings = cluster_findings(facts_of(sample.node("a"), elsewhere, webhooks()))
    (text,) = (each.about for each in findings if "Deployments of namespace" in each.about)
    assert "Deployments of namespace kueue-system" in text


def test_a_server_without_any_deployment_of_kueue_is_an_error(tmp_path):
    found = cluster_findings(served(tmp_path, sample.node("a"), elsewhere, webhooks()))
    assert "kueue_away" in {each.reason.value for each in found}


def test_hami_behind_kueue_without_transformations_is_a_warning_with_the_lines():
    node = sample.node("gpu-1", {"nvidia.com/gpu": 10}, REGISTER)
    found = about_kueue(node, kueue(), config("kind: Configuration"))["not_transformed"]
    assert found.evidence[0] == "nodes with GPUs of HAMi: gpu-1"
    assert found.evidence[1:] == tuple(
        f"- {{input: nvidia.com/{name}, strategy: Replace, multiplyBy: nvidia.com/gpu,"
        f' outputs: {{nvidia.com/total-{name}: "1"}}}}'
        for name in ("gpumem", "gpucores")
    )
    assert about_kueue(node, kueue(), config(TRANSFORMED)) == {}
    assert about_kueue(kueue(), config("kind: Configuration")) == {}
    assert about_kueue(node, kueue(), config("resources: [")) == {}
    assert about_kueue(node, kueue()) == {}


def test_an_api_server_has_the_same_configuration_as_a_dump(tmp_path):
    node = sample.node("gpu-1", {"nvidia.com/gpu": 10}, REGISTER)
    for text, codes in (("kind: Configuration", {"not_transformed"}), (TRANSFORMED, set())):
        facts = served(tmp_path, node, kueue(), config(text), webhooks())
        found = {each.reason.value for each in cluster_findings(facts)}
        assert found & {"not_transformed", "kueue_away"} == codes
