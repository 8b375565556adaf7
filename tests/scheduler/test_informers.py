"""What the informers feed into the cache, and when its view is too old to answer."""

import queue

import pytest

from scheduler.cache.informers import STALE_SECONDS, ClusterInformers
from scheduler.cache.scheduler_cache import SchedulerCache
from tests.scheduler.model_api import gpushare_node
from tests.support.waiting import wait_until
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.documents import EventType, ObjectPage, WatchEvent
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, MalformedObject, Namespace, Pod, ResourceQuota
from vgpu.model.reasons import Reason, SourceError
from vgpu.placement.dialects import scheduler_schemes
from vgpu.placement.result import PlacementReason


class Server:
    """An API server with lists that wait to be opened, and watches that send what a test puts."""

    server = "https://api"

    def __init__(self):
        kinds = ("pods", "configmaps", "namespaces", "resourcequotas")
        self.lists = dict.fromkeys(kinds, ()) | {"nodes": (gpushare_node("n1", 1),)}
        self.events = {plural: queue.Queue() for plural in self.lists}
        self.failing = False
        self.opened = 0
        self.forbidden = ()

    def pages(self, kind, **_):
        if kind.plural in self.forbidden:
            raise SourceError(Reason.FORBIDDEN, kind.plural, "no right to list")
        if self.failing:
            raise ClusterError(0, "Unreachable", "no route")
        yield ObjectPage(tuple(self.lists[kind.plural]), "", "1", 1)

    def watch(self, kind, version, opened, **_):
        if self.failing:
            raise ClusterError(0, "Unreachable", "no route")
        opened()
        self.opened += 1
        while True:
            event = self.events[kind.plural].get()
            if event is None:
                raise ClusterError(0, "Unreachable", "no route")
            yield event


@pytest.fixture
def followed():
    """The informers, their server, the cache, and a clock that a test sets."""
    server, now = Server(), [1000.0]
    cache = SchedulerCache(scheduler_schemes({}), lambda: 0.0)
    informers = ClusterInformers(server, cache, lambda: now[0])
    yield informers, server, cache, now
    informers.close()
    server.failing = True
    for events in server.events.values():
        events.put(None)


def pod(name, node=""):
    containers = (Container("main", {"aliyun.com/gpu-mem": 4}),)
    annotations = {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    annotations["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] = "1"
    ref = PodRef(f"uid-{name}", "ns", name)
    return Pod(ref, containers=containers, node=node, annotations=annotations if node else {})


def free(cache):
    (gpu,) = cache.view("n1").candidate.gpus
    return gpu.free_bytes >> 30


def test_it_is_ready_when_all_lists_are_in_the_cache(followed):
    informers, server, cache, _ = followed
    server.lists["pods"] = (pod("a", "n1"),)
    assert "not been read" in informers.complaint()
    informers.start()
    wait_until(lambda: not informers.complaint(), "ready", context=informers.complaint)
    assert free(cache) == 4


def test_events_change_the_cache_and_a_pod_that_cannot_be_read_holds_its_node_back(followed):
    informers, server, cache, _ = followed
    informers.start()
    wait_until(lambda: not informers.complaint(), "ready")
    server.events["pods"].put(WatchEvent(EventType.ADDED, "2", pod("a", "n1")))
    wait_until(lambda: free(cache) == 4, "the pod counts")
    broken = MalformedObject("Pod", PodRef("uid-a", "ns", "a"), "spec: wrong", "n1")
    server.events["pods"].put(WatchEvent(EventType.MODIFIED, "3", broken))
    wait_until(lambda: cache.view("n1").reason is PlacementReason.UNREADABLE, "held back")
    assert free(cache) == 4
    server.events["pods"].put(WatchEvent(EventType.DELETED, "4", pod("a", "n1")))
    wait_until(lambda: cache.view("n1").reason is None and free(cache) == 8, "free again")


def test_a_view_is_too_old_when_the_server_is_silent_and_does_not_answer(followed):
    """I9: an outage shorter than the bound changes nothing, and an answer ends a longer one."""
    informers, server, _, now = followed
    informers.start()
    wait_until(lambda: not informers.complaint(), "ready")
    server.failing = True
    server.events["pods"].put(None)
    wait_until(lambda: informers.pods.state().failure, "the watch is broken")
    now[0] += STALE_SECONDS - 1
    assert informers.complaint() == ""
    now[0] += 2
    assert "pods" in informers.complaint()
    server.failing = False  # no event comes: it lists again
    wait_until(lambda: not informers.complaint(), "ready again", context=informers.complaint)


@pytest.mark.slow
def test_a_watch_that_breaks_and_is_opened_again_costs_nothing_where_nothing_happens(followed):
    informers, server, _, now = followed
    informers.start()
    wait_until(lambda: not informers.complaint(), "ready")
    for events in server.events.values():
        events.put(None)
    wait_until(lambda: server.opened == 2 * len(server.events), "all watches are open again")
    now[0] += STALE_SECONDS + 1
    assert informers.complaint() == ""


def limits(cache):
    return {
        (view.quota.namespace, limit.resource): limit.amount
        for view in cache.limited()
        for limit in view.quota.limits
    }


def test_quotas_come_from_resource_quotas_namespaces_and_gpu_admissions_config_map(followed):
    informers, server, cache, _ = followed
    hard = {"requests.aliyun.com/gpu-mem": "8"}
    server.lists["resourcequotas"] = (ResourceQuota("ns", "q", hard),)
    server.lists["namespaces"] = (
        Namespace("ns", annotations={"vgpu.dev/quota-gpus": "2"}),
        Namespace("other", {"team": "b"}),
    )
    config = "gpuquota", {"gpu_quota": '{"ns": {"quota": {"M40": 1}}}'}
    server.lists["configmaps"] = (config, ("unhealthy-gpu-n1", {"gpus": "0"}), ("x", {}))
    informers.start()
    wait_until(lambda: not informers.complaint(), "ready", context=informers.complaint)
    everything = {("ns", "aliyun.com/gpu-mem"): 8, ("ns", "gpus"): 2}
    assert limits(cache) == {**everything, ("ns", "tencent.com/vcuda-core"): 100}
    assert not cache.view("n1").candidate.gpus[0].device.healthy
    server.events["configmaps"].put(WatchEvent(EventType.DELETED, "2", config))
    wait_until(lambda: limits(cache) == everything, "no ConfigMap", context=lambda: limits(cache))
    server.events["namespaces"].put(WatchEvent(EventType.MODIFIED, "3", Namespace("ns")))
    broken = MalformedObject("ResourceQuota", PodRef("", "ns", "q"), "spec: wrong")
    server.events["resourcequotas"].put(WatchEvent(EventType.MODIFIED, "4", broken))
    wait_until(lambda: not limits(cache), "no limit", context=lambda: limits(cache))
    wait_until(cache.limited, "a quota that cannot be read")
    (view,) = cache.limited()
    assert view.quota.unreadable[0].declared_in == "ResourceQuota ns/q"
    gone = ResourceQuota("ns", "q", hard)
    server.events["resourcequotas"].put(WatchEvent(EventType.DELETED, "5", gone))
    wait_until(lambda: not cache.limited(), "no quota", context=cache.limited)


@pytest.mark.parametrize("kind", ["namespaces", "resourcequotas"])
def test_without_the_right_to_read_quotas_the_complaint_names_the_remedy(followed, kind):
    informers, server, _, _ = followed
    server.forbidden = (kind,)
    informers.start()
    wait_until(lambda: "--no-quotas" in informers.complaint(), "hint", context=informers.complaint)
    assert informers.complaint() == (
        f"the cluster has not been read completely yet: {kind}: no right to list;"
        " add the right to list and watch them, or pass --no-quotas"
    )


def test_without_quotas_nothing_is_read_for_them():
    server = Server()
    server.forbidden = ("namespaces", "resourcequotas")
    server.lists["configmaps"] = (("gpuquota", {"gpu_quota": '{"ns": {"quota": {"M40": 1}}}'}),)
    cache = SchedulerCache(scheduler_schemes({}), lambda: 0.0)
    informers = ClusterInformers(server, cache, quotas=False)
    informers.start()
    wait_until(lambda: not informers.complaint(), "ready", context=informers.complaint)
    assert not cache.limited()
    informers.close()
    for events in server.events.values():
        events.put(None)
