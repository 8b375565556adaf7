"""What an explanation needs of a cluster's objects for one node."""

from collections.abc import Iterator

from reconciler.model import ObjectKind
from reconciler.reasons import Cause, Rule
from vgpu.inventory import of_other_systems
from vgpu.inventory.kai_shares import gpus_of_kai, held_by_kai, held_on_unknown_gpus
from vgpu.inventory.nvidia import (
    advertised_units,
    is_on_unknown_gpu,
)
from vgpu.ledger.from_resource_claims import (
    NO_RESOURCE_CLAIMS,
)
from vgpu.model.names import Scheme
from vgpu.model.objects import (
    Node,
    Pod,
    holds_devices,
)
from vgpu.placement.node_view import scheme_of
from vgpu.placement.result import PlacementReason
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.other_schedulers import other_scheduler
from vgpu.schemes.registry import registry
from vgpucli.doctor.check_systems import node_errors
from vgpucli.explain.known_cluster import KnownCluster
from vgpucli.explain.known_objects import KnownNode
from vgpucli.explain.model import StepReason
from vgpucli.explain.obstacles import (
    node_locks,
)


def node_evidence(cluster: KnownCluster, node: Node) -> KnownNode:
    """What is known about the node."""
    cache = cluster.cache([node], cluster.pods_at(node.name))
    scheme = scheme_of(node, cluster.placing)
    view = cache.view(node.name)
    reserved = {
        (each.pod.namespace, each.pod.name) for each in (() if view is None else view.standing)
    }
    near = cluster.near.findings({node.name}, frozenset(), frozenset())
    near_here = [each for each in near if each.object_ref.home == node.name]
    of_node = (
        ObjectKind.NODE,
        ObjectKind.DEVICE,
        ObjectKind.FOLDER,
        ObjectKind.RESOURCE_CLAIM,
    )
    findings = [each for each in near_here if each.object_ref.kind in of_node]
    claiming = [each for each in near_here if each.cause is Cause.CLAIM_WITHOUT_REQUEST]
    claiming += (
        each
        for each in near
        if each.rule is Rule.ASSUMED_UNBOUND
        and (each.object_ref.namespace, each.object_ref.name) in reserved
    )
    schemes = registry().schemes_of(node)
    ledger = cluster.ledger(node.name)
    of_claims = cluster.claims_of_nodes.get(node.name, NO_RESOURCE_CLAIMS)
    resources = {
        name: node.allocatable.get(name, 0)
        for codec in cluster.schemes.codecs
        if codec.scheme in schemes and not _is_renamed(codec, node)
        for name in codec.resources
        if name in node.allocatable or name in node.capacity
    }
    systems = tuple(row.name for row in registry().rows if row.has_devices(node))
    here = (pod for pod in cluster.read.objects.pods if pod.node == node.name)
    of_kai = gpus_of_kai(ledger, here)
    held_uids = held_by_kai([ledger])
    published = {
        each.driver: len(each.devices)
        for each in cluster.read.objects.resource_claims.slices
        if each.node == node.name and any(device.uuid for device in each.devices)
    }
    present = {*schemes, *(each.scheme for each in ledger.holdings)}
    present |= {Scheme.DRA} if published else set()
    return KnownNode(
        node,
        cluster.now,
        tuple(scheme for scheme in registry().schemes if scheme in schemes),
        view,
        scheme if isinstance(scheme, PlacementReason) else None,
        ledger,
        tuple(findings),
        tuple(
            pod
            for pod in (
                *cluster.pods_at(node.name),
                *of_claims.pods,
                *_of_nvidia(cluster, node.name),
            )
            if holds_devices(pod) and (other_scheduler(pod) is None or pod.kubelet_uid in held_uids)
        ),
        resources,
        {name: units for name, units in advertised_units(node).items() if name not in resources},
        tuple(
            sorted(
                (
                    (
                        f"pod {each.object_ref.namespace}/{each.object_ref.name}",
                        StepReason.of(
                            each.cause,
                            each.rule.value if each.rule is Rule.ASSUMED_UNBOUND else "",
                        ),
                    )
                    for each in claiming
                ),
                key=_pod_and_code,
            )
        ),
        tuple(lock for _, lock in node_locks((node,), cluster.schemes.codecs)),
        systems,
        published,
        tuple(
            StepReason(each.reason.value, each.reason.explanation)
            for each in node_errors(node, cluster.now)
        ),
        cluster.read.pods_read,
        held_on_unknown_gpus(ledger, _on_unknown_gpus(cluster, node.name), of_kai),
        {**of_other_systems(node, ledger, systems, present, cluster.schemes.codecs), **of_kai},
    )


def _of_nvidia(cluster: KnownCluster, name: str) -> Iterator[Pod]:
    """The pods of NVIDIA's own plugin on the node."""
    uids = cluster.schemes.nvidia
    pods = cluster.read.objects.pods if uids else ()
    return (pod for pod in pods if pod.node == name and pod.ref.uid in uids)


def _on_unknown_gpus(cluster: KnownCluster, name: str) -> Iterator[Pod]:
    """The pods on the node whose GPUs no object names."""
    uids = cluster.schemes.nvidia
    return (
        pod
        for pod in cluster.read.objects.pods
        if pod.node == name and (pod.ref.uid in uids or is_on_unknown_gpu(pod))
    )


def _is_renamed(codec: SchemeCodec, node: Node) -> bool:
    """Whether the known name is another plugin's on this node."""
    is_renamed = registry().row(codec).is_renamed
    return is_renamed is not None and is_renamed(node)


def _pod_and_code(claiming: tuple[str, StepReason]) -> tuple[str, str]:
    pod, cause = claiming
    return pod, cause.code
