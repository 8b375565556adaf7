"""The quotas of namespaces: who is refused, why, who is woken, and that no order passes a limit."""

import json

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from msgspec import structs

from scheduler.filter.node_filter import NodeFilter
from scheduler.reasons import BindFailure
from tests.scheduler.model_api import UNITS, gpushare_node
from tests.scheduler.served import Served, query
from tests.scheduler.test_binder_machine import NAMES, Binding
from tests.support.web_helpers import fetch
from vgpu.model.names import PodRef
from vgpu.model.objects import (
    Container,
    MalformedObject,
    Namespace,
    Node,
    Pod,
    ResourceQuota,
)
from vgpu.model.units import GIB
from vgpu.placement.result import PlacementReason
from vgpu.quota.resources import MEMORY

GPU_MEM = "aliyun.com/gpu-mem"


def quota(units, name="q"):
    return ResourceQuota("ns", name, {f"requests.{GPU_MEM}": str(units)})


def namespace(**annotations):
    return Namespace("ns", annotations={f"vgpu.dev/quota-{k}": v for k, v in annotations.items()})


def pod(name, units=4, space="ns", **changes):
    container = Container("main", {GPU_MEM: units})
    return Pod(PodRef(f"uid-{name}", space, name), containers=(container,), **changes)


class Cluster(Served):
    """Two nodes of gpushare."""

    def __init__(self):
        super().__init__()
        for name in NAMES:
            self.cache.set_node(name, gpushare_node(name, 4))

    def nodes(self, wanted, names=NAMES):
        """The nodes that take the pod."""
        return set(self.filter(wanted, names)[0])

    def reasons(self, wanted, names=NAMES):
        """Why no node takes the pod."""
        nodes, refused = self.filter(wanted, names)
        assert not nodes
        return set(refused.values())

    def tried(self, wanted, node="n1"):
        """Why the pod is not bound, "" if it is; no event has shown it yet."""
        if wanted.ref.name not in self.api.pods:
            self.api.store(wanted)
        return self.bind(wanted.ref, node)

    def bound(self, wanted, node="n1"):
        """A bound pod with its event."""
        assert not self.tried(wanted, node)
        bound = self.api.pods[wanted.ref.name]
        self.show(bound.ref.name, bound)
        return bound

    def end(self, bound):
        self.cache.set_pod(f"{bound.ref.namespace}/{bound.ref.name}", None)


@pytest.fixture
def cluster():
    with Cluster() as cluster:
        yield cluster


def test_a_pod_over_its_quota_is_refused_by_every_node_with_the_amounts(cluster):
    cluster.cache.set_resource_quota("ns", "q", quota(6))
    cluster.bound(pod("a"))
    assert cluster.reasons(pod("b")) == {PlacementReason.QUOTA}
    assert cluster.nodes(pod("c", 2)) == set(NAMES)
    assert cluster.nodes(pod("d", space="other")) == set(NAMES)
    (message,) = cluster.events()
    assert message == (
        "2 nodes: the pod would exceed a GPU quota of its namespace"
        " (aliyun.com/gpu-mem: 4 of 6 used, 4 requested (ResourceQuota ns/q,"
        " requests.aliyun.com/gpu-mem))"
    )


def test_a_pod_of_a_system_without_a_scheduler_counts_its_resource(cluster):
    """Kubernetes enforces it, and the page of metrics has what is used."""
    instance = "nvidia.com/mig-1g.10gb"
    declared = ResourceQuota("ns", "q", {f"requests.{instance}": "7"})
    cluster.cache.set_resource_quota("ns", "q", declared)
    container = Container("main", {instance: 2})
    bound = Pod(PodRef("uid-mig", "ns", "mig"), containers=(container,), node="n1")
    cluster.cache.set_pod("ns/mig", bound)
    assert [view.used for view in cluster.cache.limited()] == [{"": {instance: 2}}]
    cluster.end(bound)
    assert [view.used for view in cluster.cache.limited()] == [{}]


def test_a_reservation_counts_before_its_pod_is_bound(cluster):
    cluster.cache.set_namespace("ns", namespace(memory="6Gi"))
    cluster.api.fault = "late"
    assert cluster.tried(pod("a"), "n1") is BindFailure.UNREACHABLE
    cluster.api.fault = "none"
    assert cluster.tried(pod("b"), "n2") is PlacementReason.QUOTA
    assert "4.0 GiB of 6.0 GiB used, 4.0 GiB requested" in cluster.error
    assert not cluster.tried(pod("a"), "n1"), "its own is kept"
    cluster.api.delete("a")
    assert cluster.bind(pod("a").ref, "n1") is BindFailure.GONE
    assert not cluster.tried(pod("b"), "n2")


def test_pods_that_were_bound_before_the_quota_was_declared_count(cluster):
    cluster.bound(pod("a"))
    assert not cluster.tried(pod("b"), "n2")
    cluster.cache.set_namespace("ns", namespace(gpus="2"))
    assert cluster.tried(pod("c"), "n1") is PlacementReason.QUOTA
    cluster.cache.set_namespace("ns", None)
    assert not cluster.tried(pod("c"), "n1")


def test_a_pod_that_is_over_nothing_passes_in_a_namespace_that_is_over(cluster):
    """Quotas were lowered: what is there stays, and a pod that counts nothing of them passes."""
    cluster.bound(pod("a"))
    cluster.cache.set_namespace("ns", namespace(cores="0", memory="T4=0"))
    assert cluster.nodes(pod("b"))


def test_what_frees_quota_wakes_the_pods_that_it_refused_and_no_others(cluster):
    cache = cluster.cache
    cache.set_resource_quota("ns", "q", quota(8))
    first = cluster.bound(pod("a", 8))
    for name, units, priority in (("low", 6, 0), ("big", 6, 9), ("small", 2, 5)):
        assert not cluster.nodes(pod(name, units, priority=priority))
    assert not cluster.nodes(pod("elsewhere", UNITS + 1)), "no GPU is so large"
    cluster.relieved()
    assert cache.take_relieved("ns") == []
    cluster.end(first)
    assert cluster.relieved() == ["ns"]
    taken = [rejected.pod.name for rejected in cache.take_relieved("ns")]
    assert taken == ["big", "small"], "the third does not fit beside them"
    assert cache.take_relieved("ns")[0].pod.name == "low", "nothing was counted that is not there"
    assert cache.take_relieved("ns") == []


def test_a_raised_quota_is_a_relief(cluster):
    cluster.cache.set_resource_quota("ns", "q", quota(2))
    assert not cluster.nodes(pod("a"))
    cluster.relieved()
    cluster.cache.set_resource_quota("ns", "q", quota(4))
    assert "ns" in cluster.relieved()
    assert [rejected.pod.name for rejected in cluster.cache.take_relieved("ns")] == ["a"]


def test_a_changed_node_wakes_no_pod_that_its_quota_refuses(cluster):
    cluster.cache.set_resource_quota("ns", "q", quota(2))
    assert not cluster.nodes(pod("a"))
    assert not cluster.nodes(pod("b", space="other"), ["gone"])
    assert cluster.cache.take_rejected("n1") == []


def test_nobody_is_preempted_for_a_pod_that_its_quota_refuses(cluster):
    low = cluster.bound(pod("low", UNITS, space="other"), "n1")
    wanted = pod("high", UNITS, priority=10)
    cluster.cache.set_node("n1", gpushare_node("n1", 1))
    chosen = {"n1": [low.ref.uid]}
    assert cluster.preempt(wanted, chosen) == chosen
    cluster.cache.set_resource_quota("ns", "q", quota(1))
    assert cluster.preempt(wanted, chosen) == {}


def test_a_quota_that_cannot_be_read_refuses_until_it_can(cluster):
    cluster.cache.set_namespace("ns", namespace(memory="200GB"))
    assert cluster.reasons(pod("a")) == {PlacementReason.QUOTA_UNREADABLE}
    broken = MalformedObject("ResourceQuota", PodRef("", "other", "q"), "spec: wrong")
    cluster.cache.set_resource_quota("other", "q", broken)
    assert cluster.reasons(pod("b", space="other")) == {PlacementReason.QUOTA_UNREADABLE}
    cluster.cache.set_resource_quota("other", "q", None)
    cluster.cache.set_namespace("ns", namespace(memory="200G"))
    assert cluster.nodes(pod("a"))
    assert cluster.nodes(pod("b", space="other"))


# ---------------------------------------------------------------- models, pools, unknown sizes

LABEL = "nvidia.com/gpu.product"


def test_a_limit_of_a_model_counts_where_the_model_is(cluster):
    for name, model in (("n1", "NVIDIA-A100-SXM4-80GB"), ("n2", "Tesla-T4")):
        node = structs.replace(gpushare_node(name, 4), labels={LABEL: model})
        cluster.cache.set_node(name, node)
    cluster.cache.set_namespace("ns", namespace(memory="A100=4Gi"))
    assert cluster.nodes(pod("a")) == set(NAMES)
    cluster.bound(pod("a"), "n1")
    assert cluster.filter(pod("b"), NAMES) == (["n2"], {"n1": PlacementReason.QUOTA})
    assert cluster.tried(pod("b"), "n1") is PlacementReason.QUOTA
    assert "memory of A100" in cluster.error
    relabelled = structs.replace(gpushare_node("n1", 4), labels={LABEL: "Tesla-T4"})
    cluster.cache.set_node("n1", relabelled)
    assert cluster.nodes(pod("b")) == set(NAMES), "its pods count for the new model"


CORE, BLOCKS = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"


def gaia_node(name, **labels):
    capacity = {CORE: 400, BLOCKS: 400}
    labels = {f"gaia.tencent.com/gpu-{key}": value for key, value in labels.items()}
    return Node(name, capacity=capacity, allocatable=capacity, labels=labels)


def test_gpu_admissions_quota_is_enforced_with_reservations(cluster):
    """gpu-admission counted bound pods only, so that two pods at once passed it."""
    text = json.dumps({"ns": {"quota": {"M40": 2}, "pool": ["public"]}})
    cluster.cache.set_node("n1", gaia_node("n1", model="M40", pool="public"))
    cluster.cache.set_node("n2", gaia_node("n2", model="M40", pool="private"))
    cluster.cache.set_node("n3", gaia_node("n3", model="P100", pool="public"))
    cluster.cache.set_gpu_admission({"gpu_quota": text})
    wanted = [
        Pod(PodRef(f"uid-{name}", "ns", name), containers=(Container("main", {CORE: 100}),))
        for name in "abc"
    ]
    assert cluster.filter(wanted[0], ("n1", "n2", "n3")) == (
        ["n1"],
        {"n2": PlacementReason.QUOTA_POOL, "n3": PlacementReason.QUOTA_MODEL},
    )
    for each in wanted[:2]:
        assert not cluster.tried(each, "n1")
    assert cluster.tried(wanted[2], "n1") is PlacementReason.QUOTA
    assert cluster.tried(wanted[2], "n3") is PlacementReason.QUOTA_MODEL
    cluster.cache.set_gpu_admission({"gpu_quota": "{"})
    assert cluster.reasons(wanted[2]) == {PlacementReason.QUOTA_UNREADABLE}
    cluster.cache.set_gpu_admission(None)
    assert not cluster.tried(wanted[2], "n1")


def test_memory_that_the_request_leaves_open_counts_as_the_gpu_has_it(cluster):
    cluster.cache.set_node("n1", gaia_node("n1"))
    container = Container("main", {CORE: 100})
    whole = Pod(PodRef("uid-w", "ns", "w"), containers=(container,))
    size = 100 * 256 << 20
    cluster.cache.set_namespace("ns", namespace(memory=str(size - 1)))
    assert cluster.reasons(whole, ["n1"]) == {PlacementReason.QUOTA}
    cluster.cache.set_namespace("ns", namespace(memory=str(size)))
    assert cluster.nodes(whole, ["n1"]) == {"n1"}


# ---------------------------------------------------------------- what people see


def test_event_metric_and_page_of_a_refused_pod_have_the_limit(cluster):
    cluster.cache.set_namespace("ns", namespace(memory="4Gi"))
    cluster.cache.set_resource_quota("ns", "a", quota(9, "a"))
    cluster.cache.set_resource_quota("ns", "b", quota(8, "b"))
    cluster.bound(pod("a", 3))
    waiting = pod("b", 2)
    cluster.show("b", waiting)
    answer = cluster.post("/filter", query(waiting, NAMES))
    assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(
        NAMES, PlacementReason.QUOTA.explanation
    )
    (message,) = cluster.events()
    assert "memory: 3.0 GiB of 4.0 GiB used, 2.0 GiB requested" in message
    assert cluster.counts()["rejections"] == {PlacementReason.QUOTA: 1}
    text = fetch(cluster.server.addresses[0], "/explain/ns/b")[2].decode()
    assert "memory: 3.0 GiB of 4.0 GiB (Namespace ns, vgpu.dev/quota-memory)" in text
    assert "contradicted by 9 (ResourceQuota ns/a, requests.aliyun.com/gpu-mem)" in text
    assert "Namespace ns, vgpu.dev/quota-memory" in text.splitlines()[-1]
    (view,) = cluster.cache.limited()
    assert {limit.resource: limit.of(view.used) for limit in view.quota.limits} == {
        MEMORY: 3 * GIB,
        GPU_MEM: 3,
    }


def test_a_quota_refuses_before_a_placement_is_searched(cluster, monkeypatch):
    """A repeated rejection costs one comparison, not one for each node."""
    cluster.cache.set_resource_quota("ns", "q", quota(1))
    monkeypatch.setattr(NodeFilter, "place", None)
    assert not cluster.nodes(pod("a"), [f"n{n}" for n in range(5000)])


# ---------------------------------------------------------------- any order of events

MOST = 14


class BindingWithQuota(Binding):
    """The machine of binds, in a namespace with a quota, which comes and goes and is never passed.

    The quota is never lowered below what is bound: that is what the reconciler reports.
    """

    def __init__(self):
        super().__init__()
        self.cache.set_resource_quota("ns", "q", quota(MOST))

    @rule(units=st.integers(MOST, 3 * UNITS))
    def change_quota(self, units):
        self.cache.set_namespace("ns", namespace(memory=f"{units}Gi"))

    @rule(name=st.sampled_from(NAMES), model=st.sampled_from(("T4", "A100")))
    def label_node(self, name, model):
        node = structs.replace(self.cache.node(name), labels={LABEL: model})
        self.cache.set_node(name, node)

    @invariant()
    def no_quota_is_passed(self):
        bound = [pod for pod in self.api.pods.values() if pod.node]
        assert sum(pod.containers[0].limits[GPU_MEM] for pod in bound) <= MOST

    def at_rest(self):
        super().at_rest()
        bound = [pod for pod in self.api.pods.values() if pod.node]
        view = next(each for each in self.cache.limited() if each.quota.namespace == "ns")
        limit = next(each for each in view.quota.limits if each.resource == GPU_MEM)
        assert limit.of(view.used) == sum(pod.containers[0].limits[GPU_MEM] for pod in bound)


TestBindingWithQuota = pytest.mark.slow(BindingWithQuota.TestCase)
