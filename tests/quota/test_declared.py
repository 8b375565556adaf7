"""Limits are read where they are declared, and a wrong text costs only itself."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.kube.kinds import NAMESPACES, RESOURCE_QUOTAS
from vgpu.model.objects import Namespace, ResourceQuota
from vgpu.model.units import GIB
from vgpu.quota.declarations import declarations, gpu_admission_quota
from vgpu.quota.limits import is_of_model, resolve
from vgpu.quota.resources import CORES, GPUS, MEMORY, hami_memory
from vgpu.schemes.gaia.node import NAMES

QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "gpus", "namespace": "team-a"},
    "spec": {
        "hard": {
            "requests.aliyun.com/gpu-mem": "64",
            "requests.volcano.sh/vgpu-memory": "20k",
            "limits.nvidia.com/gpumem": 8000,
            "limits.cpu": "10",
            "pods": "5",
        }
    },
    "status": {"used": {"requests.aliyun.com/gpu-mem": "8", "pods": "2"}},
}


def read_quota(**changes):
    return RESOURCE_QUOTAS.one(json.dumps({**QUOTA, **changes}).encode())


def limits(*quotas, annotations=None, config=None):
    namespace = Namespace("team-a", annotations=annotations or {})
    gpu_admission = gpu_admission_quota(config and {"gpu_quota": json.dumps(config)})
    return resolve("team-a", declarations("team-a", quotas, namespace, gpu_admission))


def amounts(quota):
    return {(limit.resource, limit.model): limit.amount for limit in quota.limits}


def test_a_resource_quota_keeps_its_entries_about_shared_gpus():
    quota = read_quota()
    assert quota.hard == {
        "requests.aliyun.com/gpu-mem": "64",
        "requests.volcano.sh/vgpu-memory": "20k",
        "limits.nvidia.com/gpumem": "8000",
    }
    assert quota.used == {"requests.aliyun.com/gpu-mem": "8"}
    assert amounts(limits(quota)) == {
        ("aliyun.com/gpu-mem", ""): 64,
        ("volcano.sh/vgpu-memory", ""): 20_000,
        (hami_memory(), ""): 8000,
    }


@pytest.mark.parametrize(
    "scope",
    [
        {"scopes": ["NotTerminating"]},
        {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass"}]}},
    ],
)
def test_a_resource_quota_of_some_pods_is_left_to_kubernetes(scope):
    quota = limits(read_quota(spec={**QUOTA["spec"], **scope}))
    assert quota.limits == ()
    assert quota.left_to_kubernetes == ("ResourceQuota team-a/gpus",)


def test_an_empty_scope_is_none():
    assert not read_quota(spec={**QUOTA["spec"], "scopes": [], "scopeSelector": None}).scoped


def test_annotations_of_the_namespace_limit_all_systems_and_single_models():
    content = {
        "metadata": {
            "name": "team-a",
            "labels": {"team": "a"},
            "annotations": {"vgpu.dev/quota-memory": "200Gi, A100=80Gi", "other": "x"},
        }
    }
    namespace = NAMESPACES.one(json.dumps(content).encode())
    assert namespace.annotations == {"vgpu.dev/quota-memory": "200Gi, A100=80Gi"}
    annotations = {
        **namespace.annotations,
        "vgpu.dev/quota-cores": "150",
        "vgpu.dev/quota-gpus": "0",
    }
    assert amounts(limits(annotations=annotations)) == {
        (MEMORY, ""): 200 * GIB,
        (MEMORY, "A100"): 80 * GIB,
        (CORES, ""): 1500,
        (GPUS, ""): 0,
    }


def test_gpu_admissions_config_map_limits_whole_gpus_and_nodes():
    config = {"team-a": {"quota": {"M40": 8, "P100": 2}, "pool": ["public"]}, "team-b": {}}
    quota = limits(config=config)
    assert amounts(quota) == {(NAMES.cores, "M40"): 800, (NAMES.cores, "P100"): 200}
    assert quota.node_rule.models == {"M40", "P100"}
    assert quota.node_rule.pools == {"public"}
    assert not resolve("team-c", declarations("team-c", gpu_admission=gpu_admission_quota(None)))


@pytest.mark.parametrize(
    "config",
    [{"team-a": {"quota": {"M40": -1}}}, {"team-a": {"quota": {"M40": "8"}}}, {"team-a": 1}],
)
def test_a_broken_entry_of_the_config_map_costs_its_own_namespace_only(config):
    assert limits(config=config).unreadable[0].declared_in.endswith("gpu_quota, team-a")
    text = json.dumps({**config, "team-b": {"quota": {"M40": 1}}})
    whole = gpu_admission_quota({"gpu_quota": text})
    other = resolve("team-b", declarations("team-b", gpu_admission=whole))
    assert other.limits
    assert not other.unreadable


def test_a_config_map_that_is_no_json_is_unreadable_for_everybody():
    whole = gpu_admission_quota({"gpu_quota": "{"})
    assert declarations("any", gpu_admission=whole).unreadable


def test_the_lowest_declaration_counts_and_the_others_are_kept():
    higher = ResourceQuota("team-a", "a", {"requests.aliyun.com/gpu-mem": "64"})
    lower = ResourceQuota("team-a", "b", {"requests.aliyun.com/gpu-mem": "32"})
    (limit,) = limits(higher, lower).limits
    assert limit.amount == 32
    assert "team-a/b" in limit.text
    assert [each.declared_in for each in limit.contradicted_by] == [
        "ResourceQuota team-a/a, requests.aliyun.com/gpu-mem"
    ]


@pytest.mark.parametrize("text", ["", "200GB", "-1", "=80Gi", "A100=", "1,,2", "1.5", "A\nB=1"])
def test_a_wrong_annotation_is_reported(text):
    quota = limits(annotations={"vgpu.dev/quota-memory": text, "vgpu.dev/quota-gpus": "1"})
    assert {each.resource for each in quota.unreadable} == {MEMORY}
    assert (GPUS, "") in amounts(quota)


@given(st.text(max_size=30), st.text(max_size=60), st.text(max_size=30))
def test_no_text_of_an_outsider_ends_the_reading(annotation, config, hard):
    quota = ResourceQuota("team-a", "q", {"requests.aliyun.com/gpu-mem": hard})
    namespace = Namespace("team-a", annotations={"vgpu.dev/quota-memory": annotation})
    gpu_admission = gpu_admission_quota({"gpu_quota": config})
    resolve("team-a", declarations("team-a", [quota], namespace, gpu_admission))


def test_a_model_is_meant_by_whole_words():
    assert is_of_model("a100-sxm4", "NVIDIA A100-SXM4-80GB")
    assert is_of_model("", "")
    assert not is_of_model("A10", "NVIDIA A100-SXM4-80GB")
    assert not is_of_model("P4", "Tesla P40")
    assert not is_of_model("A100 80GB", "NVIDIA A100-SXM4-80GB")
    assert not is_of_model("--", "NVIDIA A100")
