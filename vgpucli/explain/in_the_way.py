"""What may keep a pod from GPUs that are free by the allocation records, of a cluster's objects."""

from itertools import islice
from typing import Final

from msgspec import structs

from reconciler.model import ObjectKind
from vgpu.inventory.kai_shares import held_by_kai
from vgpu.inventory.nvidia import (
    is_on_unknown_gpu,
)
from vgpu.kube.installation import ReportedNode
from vgpu.ledger.from_resource_claims import (
    ClusterResourceClaims,
)
from vgpu.model.objects import Pod
from vgpu.placement.result import PlacementRefusal
from vgpucli.doctor.components import HAMIS
from vgpucli.explain.free_units import (
    MOST_LISTED,
    unallocatable,
)
from vgpucli.explain.installation import InstallationError, installation_errors
from vgpucli.explain.known_cluster import KnownCluster
from vgpucli.explain.known_objects import InTheWay, KnownPod
from vgpucli.explain.obstacles import (
    foreign_reservations,
    is_of_other_system,
    missing_resources,
    node_locks,
    placing_schedulers,
    requested_names,
)
from vgpucli.explain.webhooks import (
    PodWebhooks,
    needs_webhook,
    skipped_by_webhook,
    webhook_remarks,
)

_MOST_LOCKED: Final = 8
"""Maximum number of nodes, locked or with pods in the way, that the reconciler's rules judge."""


def in_the_way(cluster: KnownCluster, evidence: KnownPod) -> InTheWay:
    """What may keep the pod from GPUs that are free by the allocation records."""
    pod, pods = evidence.pod, cluster.schemes.pods
    demanded = evidence.demanded
    codec = None
    if not isinstance(demanded, PlacementRefusal):
        own = (each for each in cluster.schemes.codecs if each.name == demanded[0].row.name)
        codec = next(own, None)
    spaces = (each for each in cluster.read.namespaces if each.name == pod.ref.namespace)
    uncounted = frozenset(() if codec is None else codec.only_counted)
    in_the_way = InTheWay(
        uncounted=uncounted & requested_names(pod),
        schedulers={} if codec is None else placing_schedulers(pods, codec),
        is_of_other_system=codec is not None and is_of_other_system(pod.scheduler, codec),
    )
    if codec is None or codec.name == HAMIS:
        webhooks, space = _webhooks(cluster, evidence), next(spaces, None)
        in_the_way = structs.replace(
            in_the_way,
            webhook=skipped_by_webhook(pod, space, webhooks),
            webhook_remarks=tuple(webhook_remarks(pod, space, webhooks)),
        )
    if pod.node or pod.terminal or not cluster.nodes:
        return in_the_way
    gpu_nodes = [
        cluster.nodes[name] for name, view, _ in evidence.answers if view and name in cluster.nodes
    ]
    roomy = {name for name, _, refusal in evidence.answers if refusal is None}
    full = {name for name, view, refusal in evidence.answers if view and refusal is not None}
    names = roomy - evidence.closed.keys() or roomy
    fitting = [cluster.nodes[name] for name in names if name in cluster.nodes]
    with_room = [cluster.nodes[name] for name in sorted(roomy) if name in cluster.nodes]
    locks = tuple(node_locks(with_room, cluster.schemes.codecs))
    locked = {name for name, _ in locks[:_MOST_LOCKED]}
    of_all = tuple(node_locks(gpu_nodes, cluster.schemes.codecs))
    full_locked = tuple(islice((lock for lock in of_all if lock[0] not in roomy), _MOST_LOCKED))
    unlocked = {node.name for node in gpu_nodes} - {name for name, _ in of_all}
    named = {*locked, *(node for node, _ in full_locked)}
    standing = {
        each.pod.uid: name
        for name, view, _ in evidence.answers
        for each in (view.standing if view is not None else ())
        if each.pod.uid != pod.ref.uid
    }
    ending = {
        each.ref.uid: each.node
        for each in pods
        if each.deleted_at is not None and not each.terminal and each.node in full
    }
    holders = standing.keys() | ending.keys()
    near = {
        *named,
        *islice(dict.fromkeys(standing.values()), _MOST_LOCKED),
        *islice(dict.fromkeys(ending.values()), _MOST_LOCKED),
    }
    supplied = pod.uses_resource_claims or _serves_claims(cluster)
    return structs.replace(
        in_the_way,
        locks=locks,
        full_locked=full_locked,
        unlocked=frozenset(unlocked),
        findings=tuple(
            each
            for each in (cluster.near.findings(near, frozenset(), frozenset()) if near else ())
            if (each.object_ref.kind is ObjectKind.NODE and each.object_ref.name in named)
            or (each.object_ref.kind is ObjectKind.POD and each.object_ref.uid in holders)
        ),
        foreign=tuple(foreign_reservations(pods, names, cluster.schemes.codecs)) if names else (),
        missing=()
        if supplied
        else missing_resources(
            pod,
            cluster.advertised,
            uncounted,
            fits=bool(evidence.observed or roomy - evidence.closed.keys()),
        ),
        taints=frozenset(taint.key for node in gpu_nodes for taint in node.taints),
        on_unknown_gpus=tuple(
            f"{each.ref.namespace}/{each.ref.name}"
            for each in cluster.read.objects.pods
            if each.node in names and is_on_unknown_gpu(each) and not _is_placed(cluster, each)
        ),
        unallocatable=()
        if isinstance(demanded, PlacementRefusal)
        else tuple(unallocatable(fitting, demanded[1]))[:MOST_LISTED],
    )


def _is_placed(cluster: KnownCluster, pod: Pod) -> bool:
    """Whether the ledger of its node has the GPUs of a pod of KAI Scheduler."""
    return pod.kubelet_uid in held_by_kai([cluster.ledger(pod.node)])


def _webhooks(cluster: KnownCluster, evidence: KnownPod) -> PodWebhooks:
    """The webhooks, where one should have set the scheduler of a pod that has no GPU yet."""
    pod, read = evidence.pod, cluster.read.webhooks
    if read is None or evidence.reading.claims or not needs_webhook(pod):
        return PodWebhooks()
    return read(pod.ref.namespace, pod.ref.name)


def installation_errors_of(
    cluster: KnownCluster, evidence: KnownPod
) -> tuple[InstallationError, ...]:
    """The errors of components, if a pod waits for a scheduler of its sharing system."""
    pod, read = evidence.pod, cluster.read.installation
    if pod.node or pod.terminal or pod.gated or read is None or evidence.by_claims:
        return ()
    facts = read()
    if facts is None:
        return ()
    if not facts.nodes:
        nodes = tuple(map(ReportedNode, cluster.read.objects.nodes))
        facts = structs.replace(facts, nodes=nodes)
    demanded = evidence.demanded
    schemes = (want.scheme.value for want in evidence.reading.wanted)
    system = next(schemes, "") if isinstance(demanded, PlacementRefusal) else demanded[0].row.name
    return tuple(dict.fromkeys(installation_errors(facts, system)))


def _serves_claims(cluster: KnownCluster) -> bool:
    """Whether ResourceClaims serve GPUs: they may serve a resource that no node advertises."""
    return cluster.read.objects.resource_claims != ClusterResourceClaims()
