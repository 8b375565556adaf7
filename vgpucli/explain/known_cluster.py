"""A cluster's objects, with look-ups and what is computed of them once."""

from collections.abc import Iterable, Mapping
from functools import cached_property

from msgspec import structs

from reconciler.model import ObjectKind
from scheduler.cache.scheduler_cache import SchedulerCache
from vgpu.inventory import DetectedSchemes, Units, detect_schemes
from vgpu.kube.closed_nodes import with_all_allocatable
from vgpu.kube.kai_kinds import BindRequest
from vgpu.kube.kueue_kinds import QueuedWorkload
from vgpu.ledger import Ledger
from vgpu.ledger.cluster import home, node_ledger
from vgpu.ledger.from_api import read_pod
from vgpu.ledger.from_kai import awaited_groups, promises
from vgpu.ledger.from_resource_claims import (
    NO_RESOURCE_CLAIMS,
    NodeResourceClaims,
    node_resource_claims,
)
from vgpu.model.objects import (
    MalformedObject,
    Node,
    Pod,
    holds_devices,
)
from vgpu.placement.dialects import (
    PlacementPolicies,
    scheduler_schemes,
)
from vgpu.quota.kueue_tree import kueue_tree
from vgpu.quota.queue_answer import QueueAnswer, queue_answer
from vgpu.quota.tree import QuotaTree
from vgpu.schemes.kai.groups import doubted_groups
from vgpu.schemes.registry import registry
from vgpucli.explain.cluster_objects import ClusterObjects
from vgpucli.explain.near_findings import NearFindings
from vgpucli.prediction import ReadObjects, filled_cache


class KnownCluster:
    """A cluster's objects, ready for questions about one of them."""

    def __init__(
        self,
        cluster: ClusterObjects,
        units: Units = Units(),  # noqa: B008 - frozen
        policies: PlacementPolicies = PlacementPolicies(),  # noqa: B008 - frozen
    ) -> None:
        """``units`` are the operators' units of memory, ``policies`` those of the scheduler."""
        pods = registry().resolved(cluster.objects.pods)
        self.read = structs.replace(cluster, objects=structs.replace(cluster.objects, pods=pods))
        self.now = cluster.as_of
        self.schemes: DetectedSchemes = detect_schemes(self.read.objects, units)
        self.placing = scheduler_schemes(self.schemes.unit_bytes, policies)
        self._policies = policies
        self._ledgers: dict[str, Ledger] = {}

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name, joined with its SharePod; else the SharePod."""
        named = [pod for pod in self.all_pods if _is_named(pod, namespace, name)]
        living = [pod for pod in named if not pod.terminal]
        return next(iter(living or named), None)

    @property
    def pod_names(self) -> tuple[str, ...]:
        """``<namespace>/<name>`` of the pods."""
        return tuple(f"{pod.ref.namespace}/{pod.ref.name}" for pod in self.all_pods)

    def pods_bound_to(self, name: str) -> list[str]:
        """``<namespace>/<name>`` of the living pods that are bound to a node, in order."""
        pods = (pod.ref for pod in self.all_pods if pod.node == name and not pod.terminal)
        return sorted(f"{ref.namespace}/{ref.name}" for ref in pods)

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return tuple(self.nodes)

    def malformed_pod(self, namespace: str, name: str) -> MalformedObject | None:
        """The unreadable pod or SharePod of this name."""
        kinds = (ObjectKind.POD, ObjectKind.SHARE_POD)
        for malformed in self.read.objects.malformed:
            ref = malformed.ref
            if malformed.kind in kinds and (ref.namespace, ref.name) == (namespace, name):
                return malformed
        return None

    def node(self, name: str) -> Node | None:
        """The node of this name."""
        return self.nodes.get(name)

    def malformed_node(self, name: str) -> MalformedObject | None:
        """The unreadable node of this name."""
        malformed = self.read.objects.malformed
        return next((e for e in malformed if (e.kind, e.name) == (ObjectKind.NODE, name)), None)

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes, by name."""
        return {node.name: node for node in self.read.objects.nodes}

    @cached_property
    def near(self) -> NearFindings:
        """The findings of the reconciler's rules about objects near one."""
        return NearFindings(self.read, self.schemes, self.nodes)

    @cached_property
    def all_pods(self) -> tuple[Pod, ...]:
        """All pods, joined with their SharePods, also those that share no GPU."""
        sharing = {pod.ref.uid for pod in self.schemes.pods}
        known = (*self.read.objects.pods, *self.read.objects.resource_claims.pods)
        others = {pod.ref.uid: pod for pod in known if pod.ref.uid not in sharing}
        return (*self.schemes.pods, *others.values())

    def ledger(self, name: str) -> Ledger:
        """The ledger of a node."""
        if name not in self._ledgers:
            self._ledgers[name] = self._made_ledger(name)
        return self._ledgers[name]

    def _made_ledger(self, name: str) -> Ledger:
        is_reservation = registry().is_reservation
        pods = [pod for pod in self.pods_at(name) if holds_devices(pod) or is_reservation(pod)]
        node = with_all_allocatable(self.nodes.get(name) or Node(name))
        unhealthy = self.read.objects.unhealthy.get(name, "")
        claims = self.claims_of_nodes.get(name, NO_RESOURCE_CLAIMS)
        objects, uids = self.read.objects, {pod.ref.uid for pod in pods}
        promised = {uid: each for uid, each in self._promises.items() if each.node == name}
        pods += (
            pod
            for pod in (self.schemes.pods if promised else ())
            if pod.ref.uid in promised and pod.ref.uid not in uids
        )
        return node_ledger(
            node,
            pods,
            self.schemes.codecs,
            unhealthy,
            claims,
            lists_reservations=objects.lists_all
            or any(map(registry().is_reservation, self.schemes.pods)),
            lists_tenants=objects.lists_all,
            doubted_groups=doubted_groups(objects.pods),
            promised_to=promised,
            config_maps=objects.config_maps,
            labelled=awaited_groups(self.schemes.pods),
        )

    @cached_property
    def _promises(self) -> Mapping[str, BindRequest]:
        """KAI's BindRequests of pods without a node, by the UID of the pod."""
        return promises(self.schemes.pods, self.read.objects.bind_requests)

    @cached_property
    def claims_of_nodes(self) -> Mapping[str, NodeResourceClaims]:
        """The ResourceClaims of each node, by its name."""
        return node_resource_claims(self.read.objects.resource_claims, self.schemes.pods)

    def pods_at(self, name: str) -> tuple[Pod, ...]:
        """The pods that are bound to the node, or reserved to it."""
        return tuple(
            pod
            for pod in self.schemes.pods
            if pod.node == name
            or (not pod.node and home(pod, read_pod(pod, self.schemes.codecs)) == name)
        )

    @cached_property
    def advertised(self) -> frozenset[str]:
        """The extended resources that some node has."""
        return frozenset(name for node in self.nodes.values() for name in node.advertised)

    def cache(
        self, nodes: Iterable[Node], pods: Iterable[Pod], namespace: str = ""
    ) -> SchedulerCache:
        """The scheduler's cache with these objects, and the quota of a namespace."""
        cluster = self.read
        quotas = cluster.resource_quotas
        read = ReadObjects(
            self.now,
            map(with_all_allocatable, nodes),
            pods,
            cluster.objects.malformed,
            cluster.objects.unhealthy,
            [each for each in cluster.namespaces if each.name == namespace],
            [each for each in quotas if each.namespace == namespace and each.hard],
            cluster.gpu_quota if namespace else None,
        )
        return filled_cache(self.placing, read)

    def workload(self, namespace: str, name: str) -> QueuedWorkload | None:
        """Kueue's workload of this name; else that of a job of this name."""
        own = [each for each in self.read.kueue.workloads if each.namespace == namespace]
        named = [each for each in own if each.name == name]
        of_jobs = [each for each in own if each.owner.partition(" ")[2] == name]
        living = [each for each in of_jobs if not each.has_finished]
        return next(iter(named or living or of_jobs), None)

    @property
    def workload_names(self) -> tuple[str, ...]:
        """``<namespace>/<name>`` of Kueue's workloads."""
        return tuple(f"{each.namespace}/{each.name}" for each in self.read.kueue.workloads)

    def queue_answer(self, workload: QueuedWorkload) -> QueueAnswer:
        """Why Kueue has not admitted a workload."""
        return queue_answer(self.read.kueue, self._queues, workload)

    @cached_property
    def _queues(self) -> QuotaTree:
        return kueue_tree(self.read.kueue)


def _is_named(pod: Pod, namespace: str, name: str) -> bool:
    return (pod.ref.namespace, pod.ref.name) == (namespace, name)
