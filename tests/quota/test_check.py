"""A pod that passes the check never takes its namespace over a limit, and sums lose nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Device, Request, Share
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Container, Node, Pod
from vgpu.model.units import GIB, MIB
from vgpu.placement.result import PlacementReason
from vgpu.quota.check import check, check_node, overruns
from vgpu.quota.declarations import (
    Declarations,
    DeclaredLimit,
    NodeRule,
    UnreadableLimit,
)
from vgpu.quota.limits import resolve
from vgpu.quota.resources import CORES, GPUS, MEMORY, hami_cores, hami_memory, plus
from vgpu.quota.usage import (
    NamespaceUsage,
    PodUsage,
    node_model,
    usage_of_requests,
    usage_of_shares,
)
from vgpu.schemes.gaia.node import NAMES

MODELS = ("", "NVIDIA A100-SXM4-80GB", "NVIDIA T4")
RESOURCES = (GPUS, MEMORY, CORES, "aliyun.com/gpu-mem")

amounts = st.dictionaries(st.sampled_from(RESOURCES), st.integers(1, 50), max_size=4)
usages = st.dictionaries(st.sampled_from(MODELS), amounts, max_size=3).map(PodUsage)
declared = st.builds(
    DeclaredLimit,
    st.sampled_from(RESOURCES),
    st.integers(0, 200),
    st.sampled_from(("a", "b", "c")),
    st.sampled_from(("", "A100", "T4")),
)
quotas = st.lists(declared, max_size=6).map(
    lambda limits: resolve("team-a", Declarations(tuple(limits)))
)


@given(quotas, st.lists(usages, max_size=12))
def test_pods_that_pass_one_after_another_never_exceed_a_limit(quota, pods):
    used = NamespaceUsage()
    for number, pod in enumerate(pods):
        if check(quota, used.by_model, pod) is None:
            used.set(str(number), pod)
    assert not [*overruns(quota, used.by_model)]


@given(quotas, usages, usages, usages)
def test_a_pod_that_is_refused_stays_refused_when_more_is_used(quota, pod, used, more):
    before = NamespaceUsage()
    before.set("used", used)
    refused = check(quota, before.by_model, pod)
    before.set("more", more)
    assert not refused or check(quota, before.by_model, pod)


@given(quotas, st.lists(declared, max_size=3), usages, usages)
def test_a_further_declaration_never_admits_more(quota, further, pod, used):
    everything = [each for limit in quota.limits for each in limit.declared] + further
    stricter = resolve("team-a", Declarations(tuple(everything)))
    if check(quota, used.by_model, pod) is not None:
        assert check(stricter, used.by_model, pod) is not None


@given(quotas, usages, usages)
def test_what_is_refused_before_it_is_placed_is_refused_anywhere(quota, pod, used):
    """A lower bound of the pod, on no known GPU."""
    unplaced = PodUsage({"": pod.total})
    if check(quota, used.by_model, unplaced, is_placed=False) is not None:
        assert check(quota, used.by_model, pod) is not None


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.none() | usages), max_size=20))
def test_the_sum_is_that_of_the_pods_in_whatever_order_they_come_and_go(events):
    used, pods = NamespaceUsage(), {}
    for uid, usage in events:
        used.set(uid, usage)
        pods[uid] = usage
    expected = {
        model: plus(*(each.by_model.get(model, {}) for each in pods.values() if each))
        for model in MODELS
    }
    assert used.by_model == {model: sums for model, sums in expected.items() if sums}


def test_the_refusal_has_the_amounts_and_the_place():
    limit = DeclaredLimit(MEMORY, 200 * GIB, "Namespace team-a, vgpu.dev/quota-memory")
    quota = resolve("team-a", Declarations((limit,)))
    used = {"": {MEMORY: 180 * GIB}}
    refusal = check(quota, used, PodUsage({"": {MEMORY: 24 * GIB}}))
    assert refusal.reason is PlacementReason.QUOTA
    assert refusal.detail == (
        "memory: 180.0 GiB of 200.0 GiB used, 24.0 GiB requested"
        " (Namespace team-a, vgpu.dev/quota-memory)"
    )
    assert check(quota, used, PodUsage({"": {MEMORY: 20 * GIB}})) is None


def test_a_pod_that_counts_nothing_of_an_exceeded_limit_passes():
    quota = resolve("team-a", Declarations((DeclaredLimit(MEMORY, 0, "here"),)))
    assert check(quota, {"": {MEMORY: 1}}, PodUsage({"": {GPUS: 1}})) is None


def test_an_unreadable_limit_refuses_only_pods_that_count_for_it():
    unreadable = (
        UnreadableLimit(MEMORY, "here", "wrong"),
        UnreadableLimit(NAMES.cores, "there", "wrong"),
    )
    quota = resolve("team-a", Declarations(unreadable=unreadable))
    refusal = check(quota, {}, PodUsage({"": {MEMORY: 1}}))
    assert (refusal.reason, refusal.detail) == (PlacementReason.QUOTA_UNREADABLE, "here: wrong")
    assert check(quota, {}, PodUsage({"": {NAMES.cores: 1}})).detail == "there: wrong"
    assert check(quota, {}, PodUsage({"": {GPUS: 1}})) is None
    everything = resolve("team-a", Declarations(unreadable=(UnreadableLimit("", "all", "wrong"),)))
    assert check(everything, {}, PodUsage({"": {GPUS: 1}})).detail == "all: wrong"
    assert check(everything, {}, PodUsage()) is None


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({"gaia.tencent.com/gpu-model": "M40", "gaia.tencent.com/gpu-pool": "public"}, None),
        ({"tkestack.io/gpu-model": "M40", "tkestack.io/gpu-pool": "public"}, None),
        ({"gaia.tencent.com/gpu-model": "M40"}, PlacementReason.QUOTA_POOL),
        ({"gaia.tencent.com/gpu-model": "P100"}, PlacementReason.QUOTA_MODEL),
        ({}, PlacementReason.QUOTA_MODEL),
    ],
)
def test_gpu_admissions_quota_excludes_nodes_by_model_and_pool(labels, reason):
    rule = NodeRule("there", frozenset({"M40"}), frozenset({"public"}))
    quota = resolve("team-a", Declarations(node_rule=rule))
    node = Node("n", labels=labels)
    refusal = check_node(quota, PodUsage({"": {NAMES.cores: 100}}), node)
    assert (refusal and refusal.reason) == reason
    assert check_node(quota, PodUsage({"": {MEMORY: 100}}), node) is None


# ---------------------------------------------------------------- pods

DEVICES = {
    "GPU-a": Device("GPU-a", 0, 80 * GIB, model="NVIDIA A100"),
    "GPU-b": Device("GPU-b", 1, 16 * GIB),
}


def pod(*containers):
    return Pod(PodRef("uid", "team-a", "p"), containers=containers)


def container(name, kind=ContainerKind.APP, **limits):
    units = {key.replace("__", "/").replace("_", "-"): number for key, number in limits.items()}
    return Container(name, units, kind)


def test_units_are_counted_as_kubernetes_counts_a_pod():
    counted = pod(
        container("app", aliyun__gpu_mem=2),
        container("other", aliyun__gpu_mem=3),
        container("init", ContainerKind.INIT, aliyun__gpu_mem=4),
        container("sidecar", ContainerKind.SIDECAR, aliyun__gpu_mem=1),
        container("later", ContainerKind.INIT, aliyun__gpu_mem=6),
    ).requested_units()
    assert counted == {"aliyun/gpu-mem": 7}


def test_shares_count_for_the_model_of_their_gpu():
    shares = (Share("GPU-a", None, 500), Share("GPU-b", 4 * GIB), Share("GPU-gone", None))
    usage = usage_of_shares({"nvidia.com/gpu": 3}, shares, DEVICES, "NVIDIA T4")
    assert usage.by_model == {
        "NVIDIA A100": {
            GPUS: 1,
            MEMORY: 80 * GIB,
            CORES: 500,
            hami_memory(): 80 * GIB // MIB,
            hami_cores(): 50,
        },
        "NVIDIA T4": {"nvidia.com/gpu": 3, GPUS: 2, MEMORY: 4 * GIB, hami_memory(): 4 * GIB // MIB},
    }
    assert usage.total[GPUS] == 3


def test_a_request_counts_every_gpu_and_its_peak():
    requests = (
        Request("app", 2, 4 * GIB, cores_milli=300),
        Request("init", 1, 10 * GIB, kind=ContainerKind.INIT),
        Request("unknown", 1, memory_percent=50),
    )
    usage = usage_of_requests({}, requests, "")
    assert usage.by_model == {"": {GPUS: 3, MEMORY: 10 * GIB, CORES: 600}}


def test_the_model_of_a_node_is_its_first_label():
    labels = {"nvidia.com/gpu.product": "Tesla-T4", "gaia.tencent.com/gpu-model": ""}
    assert node_model(Node("n", labels=labels)) == "Tesla-T4"
    assert node_model(None) == ""
