"""What an explanation needs of a cluster's objects for one pod."""

from collections.abc import Iterable, Mapping

from msgspec import structs

from reconciler.model import ObjectKind
from reconciler.reasons import Rule
from scheduler.cache.scheduler_cache import SchedulerCache
from vgpu.inventory.kai_shares import held_by_kai
from vgpu.inventory.nvidia import (
    plugin_refusal,
)
from vgpu.kube.closed_nodes import ClosedNode, closed_to
from vgpu.ledger.cluster import home
from vgpu.ledger.from_api import Reading, read_pod
from vgpu.model.objects import (
    ContainerState,
    Node,
    Pod,
    holds_devices,
)
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import (
    SchedulerScheme,
    demand_of,
)
from vgpu.placement.node_offers import NodeOffers
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.quota.usage import with_observed
from vgpu.schemes.kai.groups import gpu_groups, groups_of, is_reservation
from vgpu.schemes.other_schedulers import other_scheduler
from vgpucli.explain.free_units import (
    nodes_with_units,
    nothing_allocatable,
    observed_units,
)
from vgpucli.explain.in_the_way import in_the_way, installation_errors_of
from vgpucli.explain.known_cluster import KnownCluster
from vgpucli.explain.known_objects import KnownPod, NodeAnswer
from vgpucli.explain.near_findings import group_findings, is_about, unreported
from vgpucli.explain.pod_claims import free_devices, known_claims
from vgpucli.explain.queue_evidence import kai_of, kueue_of, pod_group_of


def pod_evidence(cluster: KnownCluster, pod: Pod) -> KnownPod:
    """What is known about the pod."""
    bound_to = cluster.nodes.get(pod.node)
    advertised = None if bound_to is None else bound_to.advertised or None
    reading = read_pod(pod, cluster.schemes.codecs, advertised)
    demanded = demand_of(pod, cluster.placing)
    observed: Mapping[str, int] = {}
    if pod.ref.uid in cluster.schemes.nvidia:
        reading, observed = Reading(), pod.requested_units()
        demanded = PlacementRefusal.of(PlacementReason.NOTHING_REQUESTED)
    other = other_scheduler(pod)
    if other is not None and pod.node and _is_read(cluster, pod):
        other = None
    if other is not None:
        reading, observed = Reading(), {}
        demanded = PlacementRefusal.of(PlacementReason.NOTHING_REQUESTED)
    supplied = _supplied(cluster, pod, observed)
    if supplied:
        observed = {}
    by_claims = (
        (pod.uses_resource_claims or bool(supplied))
        and isinstance(demanded, PlacementRefusal)
        and not (observed or other or reading.wanted or reading.claims)
    )
    name = home(pod, reading)
    findings = cluster.near.findings(
        {name} - {""}, frozenset({pod.ref.namespace}), {pod.ref.uid, pod.kubelet_uid}
    )
    ledger = cluster.ledger(name) if name else None
    held = {each.share.device for each in ledger.of_pod(pod.kubelet_uid)} if ledger else set()
    is_running = pod.terminal or any(
        status.state is ContainerState.RUNNING for status in pod.statuses
    )
    own = [
        each
        for each in findings
        if is_about(each, pod) and other is None and each.rule is not Rule.KAI
    ]
    own += () if ledger is None else group_findings(ledger, pod)
    nearby = [
        each
        for each in findings
        if (
            each.object_ref.kind in (ObjectKind.RESOURCE_QUOTA, ObjectKind.NAMESPACE)
            and each.object_ref.namespace == pod.ref.namespace
        )
        or (each.object_ref.kind is ObjectKind.DEVICE and each.object_ref.name in held)
        or (
            each.object_ref.kind is ObjectKind.NODE
            and name in ("", each.object_ref.name)
            and (not is_running or each.rule is Rule.MALFORMED_OBJECT)
        )
    ]
    evidence = KnownPod(
        pod,
        cluster.now,
        demanded,
        reading,
        cluster.nodes.get(name),
        ledger,
        tuple(own),
        tuple(nearby),
        observed=observed,
        other=other,
        node_gone=bool(pod.node and cluster.nodes)
        and pod.node not in cluster.nodes
        and cluster.malformed_node(pod.node) is None,
        nodes_read=cluster.read.nodes_read,
        unit_bytes=cluster.schemes.unit_bytes,
        quotas_read=cluster.read.quotas_read
        or any(each.name == pod.ref.namespace for each in cluster.read.namespaces)
        or bool(cluster.read.resource_quotas),
        by_claims=by_claims,
        claims=known_claims(
            pod, cluster.read.objects.resource_claims, are_read=cluster.read.claims_read
        ),
        free_devices=tuple(free_devices(cluster.read.objects.resource_claims)) if by_claims else (),
        supplied=supplied,
        declared=tuple(
            quota
            for quota in cluster.read.resource_quotas
            if quota.namespace == pod.ref.namespace and quota.hard
        ),
        conflicts=() if ledger is None else tuple(unreported(ledger, pod, held, (*own, *nearby))),
        queue=kueue_of(cluster, pod),
        kai=kai_of(cluster, pod),
        tenants=_tenants(cluster, pod),
    )
    if observed:
        evidence = _with_observed_quota(cluster, evidence)
    if observed:
        refused = (
            (node.name, plugin_refusal(pod, node))
            for node in cluster.nodes.values()
            if pod.node in ("", node.name)
        )
        evidence = structs.replace(evidence, refusing={name: why for name, why in refused if why})
    if observed and not pod.node:
        nodes = cluster.nodes.values()
        free, texts = observed_units(observed, nodes, cluster.all_pods)
        evidence = structs.replace(
            evidence,
            units=texts,
            units_free=free,
            closed=_closed_to(cluster, pod),
            none_allocatable=nothing_allocatable(observed, nodes),
        )
    if not isinstance(demanded, PlacementRefusal):
        evidence = _with_placement(cluster, evidence, *demanded)
    obstacles = structs.replace(
        in_the_way(cluster, evidence),
        installation=installation_errors_of(cluster, evidence),
        group=pod_group_of(cluster, pod),
    )
    return structs.replace(
        evidence, in_the_way=obstacles, nearby=(*evidence.nearby, *obstacles.findings)
    )


def _with_placement(
    cluster: KnownCluster, evidence: KnownPod, scheme: SchedulerScheme, demand: PodDemand
) -> KnownPod:
    """The evidence with the answers of the scheduler's cache."""
    pod = evidence.pod
    namespace = pod.ref.namespace
    of_namespace = [each for each in cluster.schemes.pods if each.ref.namespace == namespace]
    is_placed = bool(pod.node) or not holds_devices(pod)
    if is_placed:
        names = {each.node for each in of_namespace} | {pod.node}
        nodes: Iterable[Node] = (node for name, node in cluster.nodes.items() if name in names)
        pods: Iterable[Pod] = of_namespace
    else:
        nodes, pods = cluster.read.objects.nodes, cluster.schemes.pods
    cache = cluster.cache(nodes, pods, namespace)
    quota = cache.quota_of(demand)
    evidence = structs.replace(
        evidence,
        quota=quota.quota,
        used=with_observed(quota.used, _observed_of(cluster, namespace)),
        over_quota=quota.refusal,
        shares_cores=scheme.row.shares_cores,
    )
    if is_placed:
        return evidence
    answers = _answers(cache, scheme, demand, limited=bool(quota.quota))
    fitting = [name for name, _, refusal in answers if refusal is None]
    return structs.replace(
        evidence,
        answers=answers,
        closed=_closed_to(cluster, pod),
        units_free=nodes_with_units(
            demand, [cluster.nodes[name] for name in fitting], cluster.schemes.pods
        ),
    )


def _tenants(cluster: KnownCluster, reservation: Pod) -> tuple[str, ...]:
    """The living pods of the groups of a reservation pod; none of another pod."""
    if not (reservation.node and is_reservation(reservation)):
        return ()
    groups = gpu_groups(cluster.pods_at(reservation.node)).tenants
    pods = (
        pod
        for group in groups_of(reservation)
        for pod in groups.get((reservation.node, group), ())
        if holds_devices(pod)
    )
    return tuple(dict.fromkeys(pod.ref.key for pod in pods))


def _is_read(cluster: KnownCluster, pod: Pod) -> bool:
    """Whether the ledger of its node has the share of a pod of KAI Scheduler."""
    return pod.kubelet_uid in held_by_kai([cluster.ledger(pod.node)])


def _supplied(cluster: KnownCluster, pod: Pod, observed: Mapping[str, int]) -> Mapping[str, int]:
    """What the pod requests of NVIDIA's resources, if no node but a driver of DRA has them.

    kube-scheduler makes a ResourceClaim for it only when it binds the pod.
    """
    known = cluster.read.objects.resource_claims
    published = known.slices or pod.uses_resource_claims
    if pod.node or not (published and cluster.nodes) or observed.keys() & cluster.advertised:
        return {}
    return observed


def _observed_of(cluster: KnownCluster, namespace: str) -> list[Pod]:
    """The bound pods of a namespace with GPUs of NVIDIA's own plugin."""
    return [
        pod
        for pod in cluster.read.objects.pods
        if pod.ref.uid in cluster.schemes.nvidia
        and pod.ref.namespace == namespace
        and pod.node
        and holds_devices(pod)
    ]


def _with_observed_quota(cluster: KnownCluster, evidence: KnownPod) -> KnownPod:
    """The evidence of a pod of NVIDIA's plugin with the quota of its namespace.

    The API server refuses pods over it when they are created.
    """
    namespace = evidence.pod.ref.namespace
    pods = [each for each in cluster.schemes.pods if each.ref.namespace == namespace]
    names = {each.node for each in pods}
    nodes = (node for name, node in cluster.nodes.items() if name in names)
    limited = cluster.cache(nodes, pods, namespace).limited()
    for quota in limited:
        used = with_observed(quota.used, _observed_of(cluster, namespace))
        evidence = structs.replace(evidence, quota=quota.quota, used=used)
    return evidence


def _closed_to(cluster: KnownCluster, pod: Pod) -> Mapping[str, ClosedNode]:
    """The nodes that do not take the pod, whatever their GPUs, by name.

    The units of GPUs are compared elsewhere.
    """
    read = cluster.read.scheduling
    own = (each.scheduling for each in read.placed if each.uid == pod.ref.uid)
    asking = next(filter(None, own), None)
    if asking is None:
        return closed_to(pod.tolerations, cluster.nodes.values(), pod.requested_units())
    units = (name for container in pod.containers for name in container.limits)
    return NodeOffers(read, asking, unjudged=frozenset(units)).closed_to(asking)


def _answers(
    cache: SchedulerCache, scheme: SchedulerScheme, demand: PodDemand, *, limited: bool
) -> tuple[NodeAnswer, ...]:
    """The answers of the nodes with GPUs: those of the extender's filter, with their GPUs.

    A quota may refuse some of the nodes (``limited``); without one, the placement alone decides.
    """
    explained = cache.explain(scheme, demand)
    if not limited:
        return tuple(explained)
    refused = cache.filter(scheme, demand, [name for name, _, _ in explained]).refused.of_quota()
    return tuple((name, view, refused.get(name, refusal)) for name, view, refusal in explained)
