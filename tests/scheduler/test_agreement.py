"""One view of what is free: `vgpu inspect`, `vgpu fit` and the extender give the same answers.

A generated cluster costs more than each of the comparisons, so that all are made on the same one.
"""

import pytest
from hypothesis import given
from msgspec import structs

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Snapshot
from reconciler.rules.quotas import quota_holders, used_by
from tests.scheduler.agreement import (
    NOW,
    SCHEMES,
    UNITS,
    Cluster,
    clusters,
    nodes_of_one_system,
    nodes_with_unseen_holders,
)
from tests.scheduler.served import Served
from tests.scheduler.test_differential import limits
from tests.scheduler.test_promise import NODES
from tests.scheduler.test_same_numbers import amounts
from vgpu.inventory import Objects, available_bytes, detect_schemes, inventory, unavailable
from vgpu.inventory.pod_usage import pod_accounts, usage_by_namespace
from vgpu.kube.scheduling_objects import (
    PlacedPod,
    SchedulingNode,
    SchedulingObjects,
    SchedulingPod,
)
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Namespace, Pod, holds_devices
from vgpu.model.units import GIB
from vgpu.placement.cluster_views import cluster_views
from vgpu.placement.dialects import demand_of
from vgpu.placement.node_offers import NodeOffers
from vgpu.placement.result import PlacementReason
from vgpu.quota.usage import NamespaceUsage, with_observed
from vgpu.schemes.kubeshare.codec import KubeShare
from vgpu.schemes.kubeshare.labels import GPU_UUID
from vgpucli.fit.answer import answer
from vgpucli.prediction import ReadObjects, SchedulingSimulation, filled_cache

WHOLE = "GPU-1,NVIDIA,16384,0:;"
DECLARED = {"vgpu.dev/quota-gpus": "9"}


def read(cluster):
    objects = cluster.objects
    return ReadObjects(
        cluster.now, objects.nodes, objects.pods, objects.malformed, objects.unhealthy
    )


def offers(cluster, probe):
    """What kube-scheduler offers for such pods, by taints and by the units that it counts."""
    own = None if probe.pending is None else PODS_ASKING[number_of(probe.pending)]
    units = dict(probe.demand.units)
    wanted = SchedulingPod(units, tolerations=probe.tolerations)
    if own is not None:
        wanted = structs.replace(own, requests=own.requests | units, tolerations=probe.tolerations)
    return NodeOffers(scheduling(cluster), wanted)


PODS_ASKING = (
    SchedulingPod({"cpu": 700, "memory": 5 << 30}),
    SchedulingPod({"cpu": 2500}, node_selector={"zone": "a"}),
    SchedulingPod(),
)
"""What pods request beside GPUs, by their number."""

LIMITED_NODES = (
    ({"pods": 3, "cpu": 8000, "memory": 16 << 30}, {"zone": "a"}),
    ({"pods": 110, "cpu": 2000, "memory": 64 << 30}, {"zone": "a"}),
    ({"pods": 110, "cpu": 64000}, {}),
)
"""What is allocatable of nodes beside GPUs, and their labels, by their number."""


def number_of(ref):
    return sum(map(ord, ref.name)) % len(PODS_ASKING)


def scheduling(cluster):
    """What kube-scheduler reads of the cluster."""
    nodes = []
    for node in cluster.objects.nodes:
        allocatable, labels = LIMITED_NODES[sum(map(ord, node.name)) % len(LIMITED_NODES)]
        nodes.append(SchedulingNode(node, labels, {**node.allocatable, **allocatable}))
    placed = []
    for pod in cluster.objects.pods:
        asked = PODS_ASKING[number_of(pod.ref)]
        requests = {**asked.requests, **pod.requested_units()}
        own = structs.replace(asked, requests=requests, tolerations=pod.tolerations)
        where = "" if pod.terminal else pod.node
        placed.append(PlacedPod(pod.ref.uid, where, requests, scheduling=own))
    return SchedulingObjects(tuple(nodes), tuple(placed))


def views_are_those_of_the_schedulers_cache(cluster):
    objects = cluster.objects
    cache = filled_cache(SCHEMES, read(cluster))
    views = cluster_views(
        SCHEMES,
        objects.nodes,
        objects.pods,
        now=cluster.now,
        malformed=objects.malformed,
        unhealthy=objects.unhealthy,
    )
    assert {name: each.view for name, each in views.items()} == {
        node.name: cache.view(node.name) for node in objects.nodes
    }


def free_capacities_are_what_fit_counts(cluster, shown):
    cache = filled_cache(SCHEMES, read(cluster))
    by_name = {scheme.row.name: scheme for scheme in SCHEMES}
    for free in shown.free_capacities:
        if free.probe is not None and free.probe.demand is not None and free.system in by_name:
            offered = offers(cluster, free.probe)
            selected = offered.selected_by(offered.wanted)
            simulation = SchedulingSimulation(cache, selected, offered)
            fit = answer(simulation, (by_name[free.system], free.probe.demand))
            assert free.fits == fit.pods
            closed = offered.closed_to(offered.wanted)
            for each in free.closed:
                assert {closed[name].reason for name in each.names} == {each.why.reason}
            assert free.usable_bytes <= free.available_bytes


def each_gpu_counts_once_and_has_free_what_the_scheduler_has(cluster, shown):
    cache = filled_cache(SCHEMES, read(cluster))
    unseen = nodes_with_unseen_holders(cluster.objects)
    free = kept = held = gpus = available = of_no_system = 0
    for view in shown.nodes:
        found = cache.view(view.node.name)
        of_cache = {} if found is None else {gpu.device.name: gpu for gpu in found.candidate.gpus}
        for entry in view.ledger.devices:
            if view.system_of(entry):
                gpus += 1
                held += entry.held.memory_bytes
                kept += view.kept_of(entry).memory_bytes
                free += view.free_memory_bytes(entry) or 0
                if unavailable(view, entry) is None:
                    available += view.free_memory_bytes(entry) or 0
            elif unavailable(view, entry) is None:  # in the ResourceSlices of a driver alone
                of_no_system += view.free_memory_bytes(entry) or 0
            gpu = of_cache.get(entry.device.name)
            if gpu is not None:
                amounts = view.free_memory_bytes(entry), view.free_cores_milli(entry)
                if view.node.name not in unseen:
                    assert amounts == (gpu.free_bytes, gpu.free_milli)
                assert amounts[0] <= gpu.free_bytes
                assert amounts[1] <= gpu.free_milli
    capacities = shown.free_capacities
    assert sum(each.gpus for each in capacities) == gpus
    assert sum(each.held_bytes for each in capacities) == held
    assert sum(each.kept_bytes for each in capacities) == kept
    assert sum(each.free_bytes for each in capacities) == free
    assert sum(each.available_bytes for each in capacities) == available
    assert sum(map(available_bytes, shown.nodes)) == available + of_no_system


def the_extender_binds_as_many_pods_as_there_is_room_for(cluster, shown):
    objects = cluster.objects
    for free in shown.free_capacities:
        if free.probe is None or free.probe.pending is None or free.probe.demand is None:
            continue
        (pod,) = (each for each in objects.pods if each.ref == free.probe.pending)
        with Served(clock=lambda: cluster.now, units=UNITS.by_row) as served:
            for node in objects.nodes:
                served.cache.set_node(node.name, node)
            served.cache.set_unhealthy(
                {f"unhealthy-gpu-{name}": text for name, text in objects.unhealthy.items()}
            )
            for broken in objects.malformed:
                served.cache.set_malformed(f"ns/{broken.name}", broken)
            for each in objects.pods:
                served.show(each.ref.name, each)
            offered = offers(cluster, free.probe)
            bound = 0
            while bound <= free.fits:
                ref = PodRef(f"uid-more-{bound}", pod.ref.namespace, f"more-{bound}")
                # What a user has written there would be no reservation.
                more = served.api.store(structs.replace(pod, ref=ref, annotations={}))
                names = offered.open_to(offered.wanted)
                nodes, _ = served.filter(more, names) if names else ([], {})
                if not nodes:
                    break
                assert served.bind(more.ref, nodes[0]) == ""
                offered.count(nodes[0], offered.wanted)
                bound += 1
        assert demand_of(pod, SCHEMES)[1] == free.probe.demand
        assert bound == free.fits


def quotas_count_alike_for_the_scheduler_the_reconciler_and_inspect(cluster):
    """Of bound pods on nodes of their own system; the scheduler does not place KubeShare's."""
    named = nodes_of_one_system(cluster.objects)
    nodes = tuple(node for node in cluster.objects.nodes if node.name in named)
    bound = (pod for pod in cluster.objects.pods if pod.node in named)
    pods = tuple(pod for pod in bound if not KubeShare().claim_keys(pod))
    spaces = [Namespace(name, annotations=DECLARED) for name in ("ns", "other")]
    cache = filled_cache(SCHEMES, ReadObjects(cluster.now, nodes, pods, namespaces=spaces))
    of_scheduler = {view.quota.namespace: amounts(view.used) for view in cache.limited()}
    codecs = [each.codec for each in SCHEMES]
    uids = detect_schemes(Objects(nodes, pods), UNITS).nvidia
    nvidia = tuple(pod for pod in pods if pod.ref.uid in uids and holds_devices(pod))
    sharing = tuple(pod for pod in pods if pod.ref.uid not in uids)
    shown = inventory(Objects(nodes, pods), UNITS, cluster.now)
    ledgers = {view.node.name: view.ledger for view in shown.nodes}
    usage = usage_by_namespace(pod_accounts(nodes, ledgers, sharing, codecs))
    snapshot = Snapshot(cluster.now, nodes=nodes, pods=sharing, nvidia_pods=nvidia)
    holders = quota_holders(ClusterIndex(snapshot, codecs), set(of_scheduler))
    for name, used in of_scheduler.items():
        observed = [pod for pod in nvidia if pod.ref.namespace == name]
        of_inspect = with_observed(usage.get(name, NamespaceUsage()).by_model, observed)
        assert amounts(of_inspect) == used
        assert amounts(used_by(holders.get(name, ()))) == used


@given(clusters())
def test_inspect_fit_the_extender_and_quotas_have_one_answer(cluster):
    shown = inventory(cluster.objects, UNITS, cluster.now, scheduling(cluster))
    views_are_those_of_the_schedulers_cache(cluster)
    free_capacities_are_what_fit_counts(cluster, shown)
    each_gpu_counts_once_and_has_free_what_the_scheduler_has(cluster, shown)
    the_extender_binds_as_many_pods_as_there_is_room_for(cluster, shown)
    quotas_count_alike_for_the_scheduler_the_reconciler_and_inspect(cluster)


OF_OTHER_SYSTEMS = {
    "hami": ("volcano", {"nvidia.com/gpu": 1}, {"hami.io/vgpu-devices-allocated": WHOLE}),
    "volcano": ("hami", {"volcano.sh/vgpu-number": 1}, {"volcano.sh/vgpu-ids-new": WHOLE}),
    "kubeshare": ("hami", {}, {GPU_UUID: "GPU-1", "sharedgpu/gpu_mem": str(16 * GIB)}),
    "gpushare": (
        "hami",
        {"aliyun.com/gpu-mem": 16},
        {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "16"},
    ),
}
"""Pods that hold a whole GPU of a node of another system, with the system of the node."""


@pytest.mark.parametrize("system", sorted(OF_OTHER_SYSTEMS))
def test_a_pod_of_another_system_holds_the_gpu_that_it_names_in_every_answer(system):
    own, asked, annotations = OF_OTHER_SYSTEMS[system]
    labels = {"sharedgpu/gpu_request": "1.0", "sharedgpu/gpu_limit": "1.0"}
    stray = Pod(
        PodRef("uid-stray", "ns", "stray"),
        node="n1",
        annotations=annotations,
        labels=labels if system == "kubeshare" else {},
        containers=(Container("main", asked),),
        phase="Running",
    )
    ref = PodRef("uid-wants", "ns", "wants")
    wants = Pod(ref, containers=(Container("main", limits(own, 1, 2)),), phase="Pending")
    node = structs.replace(NODES[own], ready=True)
    objects = Objects((node,), (stray, wants))
    shown = inventory(objects, UNITS, NOW)
    (view,) = shown.nodes
    (free,) = (each for each in shown.free_capacities if each.system == own)
    with Served() as served:
        served.cache.set_node("n1", node)
        served.show("stray", stray)
        _, refused = served.filter(wants, ["n1"])
        known = served.cache.view("n1").candidate.gpus
    assert free.fits == 0
    assert refused == {"n1": PlacementReason.MEMORY}
    assert [each.free_bytes for each in known] == [16 * GIB, 0]
    assert [view.free_memory_bytes(entry) for entry in view.ledger.devices] == [16 * GIB, 0]
    assert view.kept_bytes == 0


def test_a_pod_of_nvidias_plugin_stands_in_no_way_where_hamis_resource_has_another_name():
    """The node has 2 units, and HAMi would advertise 20 of two GPUs."""
    units = {"nvidia.com/gpu": 2}
    node = structs.replace(NODES["hami"], ready=True, capacity=units, allocatable=units)
    asked = Container("main", {"nvidia.com/gpu": 1})
    whole = Pod(PodRef("uid", "ns", "whole"), node="n1", containers=(asked,), phase="Running")
    view = filled_cache(SCHEMES, ReadObjects(NOW, [node], [whole])).view("n1")
    assert view.standing == ()
    assert (
        view.candidate == filled_cache(SCHEMES, ReadObjects(NOW, [node], [])).view("n1").candidate
    )


@pytest.mark.parametrize(
    "claimed",
    [
        {"volcano.sh/vgpu-node": "n2", "volcano.sh/vgpu-ids-new": WHOLE},  # of another node
        {"volcano.sh/vgpu-ids-new": "GPU-0,NVIDIA,16384,0:GPU-1,NVIDIA,16384,0:;"},  # too much
    ],
)
def test_quotas_count_alike_on_a_node_whose_register_cannot_be_read(claimed):
    node = structs.replace(NODES["volcano"], annotations={"volcano.sh/node-vgpu-register": "x:"})
    moved = Pod(
        PodRef("uid", "ns", "moved"),
        node="n1",
        annotations=claimed,
        containers=(Container("main", limits("volcano", 1, 1)),),
        phase="Running",
    )
    quotas_count_alike_for_the_scheduler_the_reconciler_and_inspect(
        Cluster(Objects((node,), (moved,)), NOW)
    )
