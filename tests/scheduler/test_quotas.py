"""The quotas of namespaces: who is refused, why, who is woken, and that no order passes a limit."""

import json

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from msgspec import structs

from scheduler.binder import PodBinder
from scheduler.cache import SchedulerCache
from scheduler.events import RejectionEvents
from scheduler.explanation import rejection_text, summary_of
from scheduler.extender import Extender
from scheduler.metrics import SchedulerMetrics
from scheduler.pages import page_routes
from scheduler.wire import PlacementQuery
from tests.scheduler.test_binder_machine import (
    NAMES,
    SCHEMES,
    UNITS,
    Binding,
    ModelApi,
    gpushare_node,
)
from vgpu.kube.objects import (
    Container,
    MalformedObject,
    Namespace,
    Node,
    Pod,
    ResourceQuota,
)
from vgpu.model import PodRef
from vgpu.placement.dialects import demand_of
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.quota.resources import MEMORY
from vgpu.units import GIB
from vgpu.web.message import HttpRequest

NOW = 1_000_000.0
GPU_MEM = "aliyun.com/gpu-mem"


def quota(units, name="q"):
    return ResourceQuota("ns", name, {f"requests.{GPU_MEM}": str(units)})


def namespace(**annotations):
    return Namespace("ns", annotations={f"vgpu.dev/quota-{k}": v for k, v in annotations.items()})


def pod(name, units=4, space="ns", **changes):
    container = Container("main", {GPU_MEM: units})
    return Pod(PodRef(f"uid-{name}", space, name), containers=(container,), **changes)


class Cluster:
    """A cache with two nodes of gpushare, and what the callbacks were told."""

    def __init__(self):
        self.relieved = []
        self.cache = SchedulerCache(SCHEMES, lambda: NOW, relieved=self.relieved.append)
        for name in NAMES:
            self.cache.set_node(name, gpushare_node(name, 4))

    def filter(self, wanted, names=NAMES):
        return self.cache.filter(*demand_of(wanted, SCHEMES), names)

    def reserve(self, wanted, node):
        return self.cache.reserve(*demand_of(wanted, SCHEMES), node)

    def bind(self, wanted, node="n1"):
        """As the event of a bound pod."""
        placement = self.reserve(wanted, node)
        assert not isinstance(placement, PlacementRefusal), placement
        (allocation,) = placement.allocations
        annotations = {
            "ALIYUN_COM_GPU_MEM_IDX": allocation.shares[0].device,
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1",
        }
        bound = structs.replace(wanted, node=node, annotations=annotations)
        self.cache.set_pod(f"{bound.ref.namespace}/{bound.ref.name}", bound)
        return bound

    def end(self, bound):
        self.cache.set_pod(f"{bound.ref.namespace}/{bound.ref.name}", None)


@pytest.fixture
def cluster():
    return Cluster()


def reasons(filtered):
    return {refusal.reason for refusal in filtered.refused.distinct()}


def test_a_pod_over_its_quota_is_refused_by_every_node_with_the_amounts(cluster):
    cluster.cache.set_resource_quota("ns", "q", quota(6))
    cluster.bind(pod("a"))
    filtered = cluster.filter(pod("b"))
    assert not filtered.nodes
    assert reasons(filtered) == {PlacementReason.QUOTA}
    _, demand = demand_of(pod("b"), SCHEMES)
    assert rejection_text(summary_of(filtered.refused), demand) == (
        "2 nodes: the pod would exceed a GPU quota of its namespace"
        " (aliyun.com/gpu-mem: 4 of 6 used, 4 requested (ResourceQuota ns/q,"
        " requests.aliyun.com/gpu-mem))"
    )
    assert set(cluster.filter(pod("c", 2)).nodes) == set(NAMES)
    assert set(cluster.filter(pod("d", space="other")).nodes) == set(NAMES)


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
    assert not isinstance(cluster.reserve(pod("a"), "n1"), PlacementRefusal)
    refused = cluster.reserve(pod("b"), "n2")
    assert refused.reason is PlacementReason.QUOTA
    assert "4.0 GiB of 6.0 GiB used, 4.0 GiB requested" in refused.text
    assert not isinstance(cluster.reserve(pod("a"), "n1"), PlacementRefusal), "its own is kept"
    cluster.cache.release("uid-a", "n1")
    assert not isinstance(cluster.reserve(pod("b"), "n2"), PlacementRefusal)


def test_pods_that_were_bound_before_the_quota_was_declared_count(cluster):
    cluster.bind(pod("a"))
    reserved = cluster.reserve(pod("b"), "n2")
    assert not isinstance(reserved, PlacementRefusal)
    cluster.cache.set_namespace("ns", namespace(gpus="2"))
    assert cluster.reserve(pod("c"), "n1").reason is PlacementReason.QUOTA
    cluster.cache.set_namespace("ns", None)
    assert not isinstance(cluster.reserve(pod("c"), "n1"), PlacementRefusal)


def test_a_pod_that_is_over_nothing_passes_in_a_namespace_that_is_over(cluster):
    """Quotas were lowered: what is there stays, and a pod that counts nothing of them passes."""
    cluster.bind(pod("a"))
    cluster.cache.set_namespace("ns", namespace(cores="0", memory="T4=0"))
    assert cluster.filter(pod("b")).nodes


def test_what_frees_quota_wakes_the_pods_that_it_refused_and_no_others(cluster):
    cache = cluster.cache
    cache.set_resource_quota("ns", "q", quota(8))
    first = cluster.bind(pod("a", 8))
    for name, units, priority in (("low", 6, 0), ("big", 6, 9), ("small", 2, 5)):
        assert not cluster.filter(pod(name, units, priority=priority)).nodes
    assert not cluster.filter(pod("elsewhere", UNITS + 1)).nodes, "no GPU is so large"
    cluster.relieved.clear()
    assert cache.take_relieved("ns") == []
    cluster.end(first)
    assert cluster.relieved == ["ns"]
    taken = [rejected.pod.name for rejected in cache.take_relieved("ns")]
    assert taken == ["big", "small"], "the third does not fit beside them"
    assert cache.take_relieved("ns")[0].pod.name == "low", "nothing was counted that is not there"
    assert cache.take_relieved("ns") == []


def test_a_raised_quota_is_a_relief(cluster):
    cluster.cache.set_resource_quota("ns", "q", quota(2))
    assert not cluster.filter(pod("a")).nodes
    cluster.relieved.clear()
    cluster.cache.set_resource_quota("ns", "q", quota(4))
    assert "ns" in cluster.relieved
    assert [rejected.pod.name for rejected in cluster.cache.take_relieved("ns")] == ["a"]


def test_a_changed_node_wakes_no_pod_that_its_quota_refuses(cluster):
    cluster.cache.set_resource_quota("ns", "q", quota(2))
    assert not cluster.filter(pod("a")).nodes
    assert not cluster.filter(pod("b", space="other"), ["gone"]).nodes
    assert cluster.cache.take_rejected("n1") == []


def test_nobody_is_preempted_for_a_pod_that_its_quota_refuses(cluster):
    cluster.bind(pod("low", UNITS, space="other"), "n1")
    wanted = pod("high", UNITS, priority=10)
    scheme, demand = demand_of(wanted, SCHEMES)
    cluster.cache.set_node("n1", gpushare_node("n1", 1))
    assert cluster.cache.preempt(scheme, demand, "n1", frozenset()) is not None
    cluster.cache.set_resource_quota("ns", "q", quota(1))
    assert cluster.cache.preempt(scheme, demand, "n1", frozenset()) is None


def test_a_quota_that_cannot_be_read_refuses_until_it_can(cluster):
    cluster.cache.set_namespace("ns", namespace(memory="200GB"))
    assert reasons(cluster.filter(pod("a"))) == {PlacementReason.QUOTA_UNREADABLE}
    broken = MalformedObject("ResourceQuota", PodRef("", "other", "q"), "spec: wrong")
    cluster.cache.set_resource_quota("other", "q", broken)
    assert reasons(cluster.filter(pod("b", space="other"))) == {PlacementReason.QUOTA_UNREADABLE}
    cluster.cache.set_resource_quota("other", "q", None)
    cluster.cache.set_namespace("ns", namespace(memory="200G"))
    assert cluster.filter(pod("a")).nodes
    assert cluster.filter(pod("b", space="other")).nodes


# ---------------------------------------------------------------- models, pools, unknown sizes

LABEL = "nvidia.com/gpu.product"


def test_a_limit_of_a_model_counts_where_the_model_is(cluster):
    for name, model in (("n1", "NVIDIA-A100-SXM4-80GB"), ("n2", "Tesla-T4")):
        node = structs.replace(gpushare_node(name, 4), labels={LABEL: model})
        cluster.cache.set_node(name, node)
    cluster.cache.set_namespace("ns", namespace(memory="A100=4Gi"))
    assert set(cluster.filter(pod("a")).nodes) == set(NAMES)
    cluster.bind(pod("a"), "n1")
    filtered = cluster.filter(pod("b"))
    assert filtered.nodes == ("n2",)
    assert filtered.refused.by_name()["n1"].reason is PlacementReason.QUOTA
    assert "memory of A100" in filtered.refused.by_name()["n1"].message
    assert cluster.reserve(pod("b"), "n1").reason is PlacementReason.QUOTA
    relabelled = structs.replace(gpushare_node("n1", 4), labels={LABEL: "Tesla-T4"})
    cluster.cache.set_node("n1", relabelled)
    assert set(cluster.filter(pod("b")).nodes) == set(NAMES), "its pods count for the new model"


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
    filtered = cluster.filter(wanted[0], ("n1", "n2", "n3"))
    assert filtered.nodes == ("n1",)
    assert filtered.refused.by_name()["n2"].reason is PlacementReason.QUOTA_POOL
    assert filtered.refused.by_name()["n3"].reason is PlacementReason.QUOTA_MODEL
    for each in wanted[:2]:
        assert not isinstance(cluster.reserve(each, "n1"), PlacementRefusal)
    assert cluster.reserve(wanted[2], "n1").reason is PlacementReason.QUOTA
    assert cluster.reserve(wanted[2], "n3").reason is PlacementReason.QUOTA_MODEL
    cluster.cache.set_gpu_admission({"gpu_quota": "{"})
    assert reasons(cluster.filter(wanted[2])) == {PlacementReason.QUOTA_UNREADABLE}
    cluster.cache.set_gpu_admission(None)
    assert not isinstance(cluster.reserve(wanted[2], "n1"), PlacementRefusal)


def test_memory_that_the_request_leaves_open_counts_as_the_gpu_has_it(cluster):
    cluster.cache.set_node("n1", gaia_node("n1"))
    container = Container("main", {CORE: 100})
    whole = Pod(PodRef("uid-w", "ns", "w"), containers=(container,))
    size = 100 * 256 << 20
    cluster.cache.set_namespace("ns", namespace(memory=str(size - 1)))
    assert reasons(cluster.filter(whole, ["n1"])) == {PlacementReason.QUOTA}
    cluster.cache.set_namespace("ns", namespace(memory=str(size)))
    assert cluster.filter(whole, ["n1"]).nodes == ("n1",)


# ---------------------------------------------------------------- what people see


def test_event_metric_and_page_of_a_refused_pod_have_the_limit(cluster):
    events, metrics = [], SchedulerMetrics()
    recorder = RejectionEvents(events.append, lambda: NOW)
    extender = Extender(
        cluster.cache,
        PodBinder(ModelApi(), cluster.cache, lambda: NOW),
        metrics,
        recorder,
        lambda: "",
    )
    cluster.cache.set_namespace("ns", namespace(memory="4Gi"))
    cluster.cache.set_resource_quota("ns", "a", quota(9, "a"))
    cluster.cache.set_resource_quota("ns", "b", quota(8, "b"))
    cluster.bind(pod("a", 3))
    waiting = pod("b", 2)
    cluster.cache.set_pod("ns/b", waiting)
    answer = extender.filter(PlacementQuery(waiting, NAMES))
    assert set(answer.unresolvable.values()) == {PlacementReason.QUOTA.explanation}
    recorder.finish(10.0)
    assert "memory: 3.0 GiB of 4.0 GiB used, 2.0 GiB requested" in events[0].message
    assert metrics.counts()["rejections"] == {PlacementReason.QUOTA: 1}
    page = page_routes(cluster.cache)["/explain/*"](HttpRequest("GET", "/explain/ns/b", "", {}))
    text = page.body.decode()
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
    monkeypatch.setattr(cluster.cache._nodes, "place", None)
    assert not cluster.filter(pod("a"), [f"n{n}" for n in range(5000)]).nodes


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

    def teardown(self):
        super().teardown()
        bound = [pod for pod in self.api.pods.values() if pod.node]
        view = next(each for each in self.cache.limited() if each.quota.namespace == "ns")
        limit = next(each for each in view.quota.limits if each.resource == GPU_MEM)
        assert limit.of(view.used) == sum(pod.containers[0].limits[GPU_MEM] for pod in bound)


TestBindingWithQuota = pytest.mark.slow(BindingWithQuota.TestCase)
