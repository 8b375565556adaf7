"""What an explanation needs of a cluster's objects, by the very code of the programs.

Placements and quotas are answers of the scheduler's cache, filled with these objects; findings are
those of the reconciler's rules. Only the objects near the explained one are judged: a whole cluster
would take seconds.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Final

import msgspec
from msgspec import structs

from reconciler.cluster_index import ClusterIndex
from reconciler.ledger_cache import LedgerCache
from reconciler.model import Coverage, Finding, ObjectKind, Snapshot
from reconciler.observe.cluster import cluster_view
from reconciler.observe.dump import uses_share_pods
from reconciler.observe.owners import named_owners
from reconciler.plan import find
from reconciler.policy import Mode, Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.conflicts import CAUSES
from scheduler.cache.scheduler_cache import SchedulerCache
from vgpu.inventory import DetectedSchemes, Objects, Units, detect_schemes
from vgpu.inventory.nvidia import advertised_units
from vgpu.kube.closed_nodes import ClosedNode, closed_to, with_all_allocatable
from vgpu.kube.installation import ReportedNode
from vgpu.kube.scheduling_objects import SchedulingObjects
from vgpu.ledger import Conflict, Ledger
from vgpu.ledger.cluster import home, node_ledger
from vgpu.ledger.from_api import Reading, read_pod
from vgpu.ledger.from_resource_claims import (
    NO_RESOURCE_CLAIMS,
    ClusterResourceClaims,
    NodeResourceClaims,
    node_resource_claims,
)
from vgpu.model.objects import (
    ContainerState,
    MalformedObject,
    Namespace,
    Node,
    Pod,
    ResourceQuota,
    holds_devices,
)
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import (
    PlacementPolicies,
    SchedulerScheme,
    demand_of,
    scheduler_schemes,
)
from vgpu.placement.node_view import scheme_of
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.quota.check import OVER_QUOTA
from vgpu.quota.limits import cluster_quotas
from vgpu.quota.usage import with_observed
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.other_schedulers import other_scheduler
from vgpu.schemes.registry import registry
from vgpucli.doctor.check_systems import node_errors
from vgpucli.doctor.facts import ClusterFacts
from vgpucli.explain.installation import InstallationError, installation_errors
from vgpucli.explain.known_objects import InTheWay, KnownNode, KnownPod, NodeAnswer
from vgpucli.explain.model import StepReason
from vgpucli.explain.obstacles import (
    foreign_reservations,
    missing_resources,
    node_locks,
    placing_schedulers,
    requested_names,
    skipped_by_webhook,
)
from vgpucli.explain.pod_claims import free_devices, known_claims
from vgpucli.explain.pod_group import GroupOfPod, group_name
from vgpucli.node_offers import NodeOffers
from vgpucli.prediction import ReadObjects, filled_cache

_MOST_LISTED: Final = 5
"""Maximum number of nodes whose units are listed."""

_MOST_LOCKED: Final = 8
"""Maximum number of nodes, locked or with pods in the way, that the reconciler's rules judge."""

EVERY_RULE: Final = Policy(modes=dict.fromkeys(Rule, Mode.PLAN))
"""All rules are on, with their default ages: a state that is normal for a while is no finding."""


Installation = Callable[[], ClusterFacts | None]
"""Reads how the sharing systems are installed; None if that cannot be read."""


ReadGroup = Callable[[str, str], GroupOfPod]
"""Reads the PodGroup of a namespace and a name."""


class ClusterObjects(msgspec.Struct, frozen=True):
    """The objects of a cluster, or those that an explanation needs.

    Attributes:
        objects: nodes, pods, SharePods, lists of unhealthy GPUs, unreadable objects.
        as_of: unix seconds of the read.
        namespaces, resource_quotas, gpu_quota: what declares quotas.
        lock_owners: pods that locks of nodes name, None for one that does not exist; those that
            were not asked for are missing.
        quotas_read: whether the API server was asked for these, and answered.
        is_dump: whether a file was read, so that ages are estimated from status times.
        notes: what is missing.
        pods_read: whether the pods were read: a dump without one shows nothing about them.
        claims_read: whether the ResourceClaims were read.
        scheduling: what kube-scheduler reads of all nodes and pods, if these were read.
        installation: reads the components of the sharing systems; None if nothing has them.
        group: reads a PodGroup and its queue; None if nothing has one.
    """

    objects: Objects
    as_of: float
    namespaces: tuple[Namespace, ...] = ()
    resource_quotas: tuple[ResourceQuota, ...] = ()
    gpu_quota: Mapping[str, str] | None = None
    lock_owners: Mapping[tuple[str, str], Pod | None] = {}
    is_dump: bool = False
    notes: tuple[str, ...] = ()
    quotas_read: bool = False
    pods_read: bool = True
    claims_read: bool = False
    scheduling: SchedulingObjects = SchedulingObjects()
    installation: Installation | None = None
    group: ReadGroup | None = None


class ClusterEvidence:
    """A cluster's objects, ready for questions about one of them."""

    def __init__(
        self,
        cluster: ClusterObjects,
        units: Units = Units(),  # noqa: B008 - frozen
        policies: PlacementPolicies = PlacementPolicies(),  # noqa: B008 - frozen
    ) -> None:
        """``units`` are the operators' units of memory, ``policies`` those of the scheduler."""
        self.cluster = cluster
        self.now = cluster.as_of
        self.schemes: DetectedSchemes = detect_schemes(cluster.objects, units)
        self.placing = scheduler_schemes(self.schemes.unit_bytes, policies)
        self._policies = policies

    # ------------------------------------------------------------ look-ups

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name, joined with its SharePod; else the SharePod."""
        named = [pod for pod in self._all_pods if _is_named(pod, namespace, name)]
        living = [pod for pod in named if not pod.terminal]
        return next(iter(living or named), None)

    @property
    def pod_names(self) -> tuple[str, ...]:
        """``<namespace>/<name>`` of the pods."""
        return tuple(f"{pod.ref.namespace}/{pod.ref.name}" for pod in self._all_pods)

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return tuple(self._nodes)

    def malformed_pod(self, namespace: str, name: str) -> MalformedObject | None:
        """The unreadable pod or SharePod of this name."""
        kinds = (ObjectKind.POD, ObjectKind.SHARE_POD)
        for malformed in self.cluster.objects.malformed:
            ref = malformed.ref
            if malformed.kind in kinds and (ref.namespace, ref.name) == (namespace, name):
                return malformed
        return None

    def node(self, name: str) -> Node | None:
        """The node of this name."""
        return self._nodes.get(name)

    def malformed_node(self, name: str) -> MalformedObject | None:
        """The unreadable node of this name."""
        malformed = self.cluster.objects.malformed
        return next((e for e in malformed if (e.kind, e.name) == (ObjectKind.NODE, name)), None)

    @cached_property
    def _nodes(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.cluster.objects.nodes}

    @property
    def _nodes_read(self) -> bool:
        """Whether the nodes were read; an API server without a node has none."""
        kinds = {each.kind for each in self.cluster.objects.malformed}
        return bool(self._nodes) or not self.cluster.is_dump or ObjectKind.NODE in kinds

    @cached_property
    def _complete(self) -> frozenset[Coverage]:
        """What the rules may take as seen in full; the absence of an unread kind shows nothing."""
        objects = self.cluster.objects
        kinds = {each.kind for each in objects.malformed}
        has_share_pods = bool(objects.share_pods) or ObjectKind.SHARE_POD in kinds
        unread_share_pods = self.cluster.is_dump and not has_share_pods
        unread = {
            Coverage.PODS: not self.cluster.pods_read,
            Coverage.NODES: not self._nodes_read,
            Coverage.SHARE_PODS: unread_share_pods and uses_share_pods(objects),
            Coverage.QUOTAS: False,
        }
        return frozenset(view for view, is_unread in unread.items() if not is_unread)

    @cached_property
    def _all_pods(self) -> tuple[Pod, ...]:
        sharing = {pod.ref.uid for pod in self.schemes.pods}
        known = (*self.cluster.objects.pods, *self.cluster.objects.resource_claims.pods)
        others = {pod.ref.uid: pod for pod in known if pod.ref.uid not in sharing}
        return (*self.schemes.pods, *others.values())

    # ------------------------------------------------------------ evidence

    def of_pod(self, pod: Pod) -> KnownPod:
        """What is known about the pod."""
        bound_to = self._nodes.get(pod.node)
        advertised = None if bound_to is None else bound_to.advertised or None
        reading = read_pod(pod, self.schemes.codecs, advertised)
        demanded = demand_of(pod, self.placing)
        observed: Mapping[str, int] = {}
        if pod.ref.uid in self.schemes.nvidia:
            reading, observed = Reading(), pod.requested_units()
            demanded = PlacementRefusal.of(PlacementReason.NOTHING_REQUESTED)
        other = other_scheduler(pod)
        if other is not None:
            reading, observed = Reading(), {}
            demanded = PlacementRefusal.of(PlacementReason.NOTHING_REQUESTED)
        supplied = self._supplied(pod, observed)
        if supplied:
            observed = {}
        by_claims = (
            (pod.uses_resource_claims or bool(supplied))
            and isinstance(demanded, PlacementRefusal)
            and not (observed or other or reading.wanted or reading.claims)
        )
        name = home(pod, reading)
        findings = self._findings(
            {name} - {""}, frozenset({pod.ref.namespace}), {pod.ref.uid, pod.kubelet_uid}
        )
        ledger = self.ledger(name) if name else None
        held = {each.share.device for each in ledger.of_pod(pod.kubelet_uid)} if ledger else set()
        is_running = pod.terminal or any(
            status.state is ContainerState.RUNNING for status in pod.statuses
        )
        own = [each for each in findings if self._is_about(each, pod) and other is None]
        nearby = [
            each
            for each in findings
            if (
                each.object_ref.kind in (ObjectKind.RESOURCE_QUOTA, ObjectKind.NAMESPACE)
                and each.object_ref.namespace == pod.ref.namespace
            )
            or (each.object_ref.kind is ObjectKind.DEVICE and each.object_ref.name in held)
            or (each.object_ref.kind is ObjectKind.NODE and not is_running)
        ]
        evidence = KnownPod(
            pod,
            self.now,
            demanded,
            reading,
            self._nodes.get(name),
            ledger,
            tuple(own),
            tuple(nearby),
            observed=observed,
            other=other,
            node_gone=bool(pod.node and self._nodes) and pod.node not in self._nodes,
            nodes_read=self._nodes_read,
            unit_bytes=self.schemes.unit_bytes,
            quotas_read=self.cluster.quotas_read
            or any(each.name == pod.ref.namespace for each in self.cluster.namespaces)
            or bool(self.cluster.resource_quotas),
            by_claims=by_claims,
            claims=known_claims(
                pod, self.cluster.objects.resource_claims, are_read=self.cluster.claims_read
            ),
            free_devices=tuple(free_devices(self.cluster.objects.resource_claims))
            if by_claims
            else (),
            supplied=supplied,
            declared=tuple(
                quota
                for quota in self.cluster.resource_quotas
                if quota.namespace == pod.ref.namespace and quota.hard
            ),
            conflicts=()
            if ledger is None
            else tuple(_unreported(ledger, pod, held, (*own, *nearby))),
        )
        if observed:
            evidence = self._with_observed_quota(evidence)
        if observed and not pod.node:
            evidence = self._with_observed_units(evidence)
        if not isinstance(demanded, PlacementRefusal):
            evidence = self._with_placement(evidence, *demanded)
        in_the_way = structs.replace(
            self._in_the_way(evidence),
            installation=self._installation_errors(evidence),
            group=self._group(pod),
        )
        return structs.replace(
            evidence, in_the_way=in_the_way, nearby=(*evidence.nearby, *in_the_way.findings)
        )

    def of_node(self, node: Node) -> KnownNode:
        """What is known about the node."""
        cache = self._cache([node], self.pods_at(node.name))
        scheme = scheme_of(node, self.placing)
        view = cache.view(node.name)
        reserved = {
            (each.pod.namespace, each.pod.name) for each in (() if view is None else view.standing)
        }
        near = self._findings({node.name}, frozenset(), frozenset())
        here = [each for each in near if each.object_ref.home == node.name]
        of_node = (ObjectKind.NODE, ObjectKind.DEVICE, ObjectKind.FOLDER)
        findings = [each for each in here if each.object_ref.kind in of_node]
        claiming = [each for each in here if each.cause is Cause.CLAIM_WITHOUT_REQUEST]
        claiming += (
            each
            for each in near
            if each.rule is Rule.ASSUMED_UNBOUND
            and (each.object_ref.namespace, each.object_ref.name) in reserved
        )
        schemes = registry().schemes_of(node)
        of_claims = self._claims_of_nodes.get(node.name, NO_RESOURCE_CLAIMS)
        resources = {
            name: node.allocatable.get(name, 0)
            for codec in self.schemes.codecs
            if codec.scheme in schemes and not _is_renamed(codec, node)
            for name in codec.resources
            if name in node.allocatable or name in node.capacity
        }
        return KnownNode(
            node,
            self.now,
            tuple(scheme for scheme in registry().schemes if scheme in schemes),
            view,
            scheme if isinstance(scheme, PlacementReason) else None,
            self.ledger(node.name),
            tuple(findings),
            tuple(
                pod
                for pod in (
                    *self.pods_at(node.name),
                    *of_claims.pods,
                    *self._of_nvidia(node.name),
                )
                if holds_devices(pod)
            ),
            resources,
            {
                name: units
                for name, units in advertised_units(node).items()
                if name not in resources
            },
            tuple(
                sorted(
                    (
                        f"pod {each.object_ref.namespace}/{each.object_ref.name}",
                        each.cause.explanation
                        + (f" ({each.rule})" if each.rule is Rule.ASSUMED_UNBOUND else ""),
                    )
                    for each in claiming
                )
            ),
            tuple(lock for _, lock in node_locks((node,), self.schemes.codecs)),
            tuple(row.name for row in registry().rows if row.has_devices(node)),
            {
                each.driver: len(each.devices)
                for each in self.cluster.objects.resource_claims.slices
                if each.node == node.name and any(device.uuid for device in each.devices)
            },
            tuple(
                StepReason(each.reason.value, each.reason.explanation)
                for each in node_errors(node, self.now)
            ),
            self.cluster.pods_read,
        )

    def ledger(self, name: str) -> Ledger:
        """The ledger of a node."""
        pods = [pod for pod in self.pods_at(name) if holds_devices(pod)]
        node = with_all_allocatable(self._nodes.get(name) or Node(name))
        unhealthy = self.cluster.objects.unhealthy.get(name, "")
        claims = self._claims_of_nodes.get(name, NO_RESOURCE_CLAIMS)
        return node_ledger(node, pods, self.schemes.codecs, unhealthy, claims)

    @cached_property
    def _claims_of_nodes(self) -> Mapping[str, NodeResourceClaims]:
        return node_resource_claims(self.cluster.objects.resource_claims, self.schemes.pods)

    def pods_at(self, name: str) -> tuple[Pod, ...]:
        """The pods that are bound to the node, or reserved to it."""
        return tuple(
            pod
            for pod in self.schemes.pods
            if pod.node == name
            or (not pod.node and home(pod, read_pod(pod, self.schemes.codecs)) == name)
        )

    def _of_nvidia(self, name: str) -> Iterator[Pod]:
        """The pods of NVIDIA's own plugin on the node."""
        uids = self.schemes.nvidia
        pods = self.cluster.objects.pods if uids else ()
        return (pod for pod in pods if pod.node == name and pod.ref.uid in uids)

    # ------------------------------------------------------------ parts

    def _with_placement(
        self, evidence: KnownPod, scheme: SchedulerScheme, demand: PodDemand
    ) -> KnownPod:
        """The evidence with the answers of the scheduler's cache."""
        pod = evidence.pod
        namespace = pod.ref.namespace
        of_namespace = [each for each in self.schemes.pods if each.ref.namespace == namespace]
        is_placed = bool(pod.node) or not holds_devices(pod)
        if is_placed:
            names = {each.node for each in of_namespace} | {pod.node}
            nodes: Iterable[Node] = (node for name, node in self._nodes.items() if name in names)
            pods: Iterable[Pod] = of_namespace
        else:
            nodes, pods = self.cluster.objects.nodes, self.schemes.pods
        cache = self._cache(nodes, pods, namespace)
        quota = cache.quota_of(demand)
        evidence = structs.replace(
            evidence,
            quota=quota.quota,
            used=with_observed(quota.used, self._observed_of(namespace)),
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
            closed=self._closed_to(pod),
            units_free=self._with_free_units(demand, fitting),
        )

    def _supplied(self, pod: Pod, observed: Mapping[str, int]) -> Mapping[str, int]:
        """What the pod requests of NVIDIA's resources, if no node but a driver of DRA has them.

        kube-scheduler makes a ResourceClaim for it only when it binds the pod.
        """
        known = self.cluster.objects.resource_claims
        published = known.slices or pod.uses_resource_claims
        if pod.node or not (published and self._nodes) or observed.keys() & self._advertised:
            return {}
        return observed

    def _observed_of(self, namespace: str) -> list[Pod]:
        """The bound pods of a namespace with GPUs of NVIDIA's own plugin."""
        return [
            pod
            for pod in self.cluster.objects.pods
            if pod.ref.uid in self.schemes.nvidia
            and pod.ref.namespace == namespace
            and pod.node
            and holds_devices(pod)
        ]

    def _with_observed_quota(self, evidence: KnownPod) -> KnownPod:
        """The evidence of a pod of NVIDIA's plugin with the quota of its namespace.

        The API server refuses pods over it when they are created.
        """
        namespace = evidence.pod.ref.namespace
        pods = [each for each in self.schemes.pods if each.ref.namespace == namespace]
        names = {each.node for each in pods}
        nodes = (node for name, node in self._nodes.items() if name in names)
        limited = self._cache(nodes, pods, namespace).limited()
        for quota in limited:
            used = with_observed(quota.used, self._observed_of(namespace))
            evidence = structs.replace(evidence, quota=quota.quota, used=used)
        return evidence

    def _with_observed_units(self, evidence: KnownPod) -> KnownPod:
        """The evidence with what the nodes have of resources that kube-scheduler alone counts."""
        used: dict[str, Counter[str]] = {}
        for pod in self._all_pods:
            if pod.node and not pod.terminal:
                used.setdefault(pod.node, Counter()).update(pod.requested_units())
        rows: list[tuple[int, str, str]] = []
        free = set()
        for name, node in self._nodes.items():
            held = used.get(name, Counter())
            for resource in evidence.observed:
                capacity = node.capacity.get(resource, 0)
                allocatable = node.allocatable.get(resource, 0)
                if capacity or allocatable:
                    text = (
                        f"{name}: {allocatable} of {capacity} {resource} allocatable,"
                        f" bound pods request {held[resource]}"
                    )
                    rows.append((allocatable - capacity, name, text))
            if all(
                node.allocatable.get(resource, 0) - held[resource] >= units
                for resource, units in evidence.observed.items()
            ):
                free.add(name)
        units = tuple(text for _, _, text in sorted(rows)[:_MOST_LISTED])
        closed = self._closed_to(evidence.pod)
        none = bool(rows) and all(": 0 of " in text for _, _, text in rows)
        return structs.replace(
            evidence,
            units=units,
            units_free=frozenset(free),
            closed=closed,
            none_allocatable=none,
        )

    def _closed_to(self, pod: Pod) -> Mapping[str, ClosedNode]:
        """The nodes that do not take the pod, whatever their GPUs, by name.

        The units of GPUs are compared elsewhere.
        """
        read = self.cluster.scheduling
        own = (each.scheduling for each in read.placed if each.uid == pod.ref.uid)
        asking = next(filter(None, own), None)
        if asking is None:
            return closed_to(pod.tolerations, self._nodes.values(), pod.requested_units())
        units = (name for container in pod.containers for name in container.limits)
        return NodeOffers(read, asking, unjudged=frozenset(units)).closed_to(asking)

    def _in_the_way(self, evidence: KnownPod) -> InTheWay:
        """What may keep the pod from GPUs that are free by the allocation records."""
        pod, pods = evidence.pod, self.schemes.pods
        demanded = evidence.demanded
        codec = None
        if not isinstance(demanded, PlacementRefusal):
            own = (each for each in self.schemes.codecs if each.name == demanded[0].row.name)
            codec = next(own, None)
        spaces = (each for each in self.cluster.namespaces if each.name == pod.ref.namespace)
        uncounted = frozenset(() if codec is None else codec.only_counted)
        in_the_way = InTheWay(
            uncounted=uncounted & requested_names(pod),
            schedulers={} if codec is None else placing_schedulers(pods, codec),
            webhook=skipped_by_webhook(pod, next(spaces, None)),
        )
        if pod.node or pod.terminal or not self._nodes:
            return in_the_way
        gpu_nodes = [
            self._nodes[name] for name, view, _ in evidence.answers if view and name in self._nodes
        ]
        roomy = {name for name, _, refusal in evidence.answers if refusal is None}
        names = roomy - evidence.closed.keys() or roomy
        fitting = [self._nodes[name] for name in names if name in self._nodes]
        with_room = [self._nodes[name] for name in sorted(roomy) if name in self._nodes]
        locks = tuple(node_locks(with_room, self.schemes.codecs))
        locked = {name for name, _ in locks[:_MOST_LOCKED]}
        of_all = node_locks(gpu_nodes, self.schemes.codecs)
        full_locked = tuple(islice((lock for lock in of_all if lock[0] not in roomy), _MOST_LOCKED))
        named = {*locked, *(node for node, _ in full_locked)}
        standing = {
            each.pod.uid: name
            for name, view, _ in evidence.answers
            for each in (view.standing if view is not None else ())
            if each.pod.uid != pod.ref.uid
        }
        near = {*named, *islice(dict.fromkeys(standing.values()), _MOST_LOCKED)}
        supplied = pod.uses_resource_claims or self._serves_claims
        return structs.replace(
            in_the_way,
            locks=locks,
            full_locked=full_locked,
            findings=tuple(
                each
                for each in (self._findings(near, frozenset(), frozenset()) if near else ())
                if (each.object_ref.kind is ObjectKind.NODE and each.object_ref.name in named)
                or (each.object_ref.kind is ObjectKind.POD and each.object_ref.uid in standing)
            ),
            foreign=tuple(foreign_reservations(pods, names, self.schemes.codecs)) if names else (),
            missing=()
            if supplied
            else missing_resources(
                pod,
                self._advertised,
                uncounted,
                fits=bool(evidence.observed or roomy - evidence.closed.keys()),
            ),
            taints=frozenset(taint.key for node in gpu_nodes for taint in node.taints),
            unallocatable=tuple(_unallocatable(fitting, demanded))[:_MOST_LISTED],
        )

    def _group(self, pod: Pod) -> GroupOfPod | None:
        """The PodGroup of a pod that waits to be placed."""
        name = group_name(pod)
        if not name or pod.node or pod.terminal or pod.gated:
            return None
        read = self.cluster.group
        namespace = pod.ref.namespace
        return GroupOfPod(f"{namespace}/{name}") if read is None else read(namespace, name)

    def _installation_errors(self, evidence: KnownPod) -> tuple[InstallationError, ...]:
        """The errors of components, if a pod waits for a scheduler of its sharing system."""
        pod, read = evidence.pod, self.cluster.installation
        if pod.node or pod.terminal or pod.gated or read is None or evidence.by_claims:
            return ()
        facts = read()
        if facts is None:
            return ()
        if not facts.nodes:
            nodes = tuple(map(ReportedNode, self.cluster.objects.nodes))
            facts = structs.replace(facts, nodes=nodes)
        demanded = evidence.demanded
        schemes = (want.scheme.value for want in evidence.reading.wanted)
        if isinstance(demanded, PlacementRefusal):
            system = next(schemes, "")
        else:
            system = demanded[0].row.name
        return tuple(dict.fromkeys(installation_errors(facts, system)))

    @property
    def _serves_claims(self) -> bool:
        """Whether ResourceClaims serve GPUs: they may serve a resource that no node advertises."""
        return self.cluster.objects.resource_claims != ClusterResourceClaims()

    @cached_property
    def _advertised(self) -> frozenset[str]:
        """The extended resources that some node has."""
        return frozenset(name for node in self._nodes.values() for name in node.advertised)

    def _with_free_units(self, demand: PodDemand, names: Sequence[str]) -> frozenset[str]:
        """The nodes whose advertised resources suffice for the pod beside the bound ones."""
        wanted = set(names)
        used: dict[str, Counter[str]] = {name: Counter() for name in names}
        for pod in self.schemes.pods:
            if pod.node in wanted and not pod.terminal and pod.ref.uid != demand.pod.uid:
                used[pod.node].update(pod.requested_units())
        return frozenset(
            name
            for name in names
            if all(
                used[name][resource] + units <= self._nodes[name].allocatable[resource]
                for resource, units in demand.units
                if resource in self._nodes[name].allocatable
            )
        )

    def _cache(
        self, nodes: Iterable[Node], pods: Iterable[Pod], namespace: str = ""
    ) -> SchedulerCache:
        """The scheduler's cache with these objects, and the quota of a namespace."""
        cluster = self.cluster
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

    def _findings(
        self, nodes: Collection[str], namespaces: frozenset[str], uids: Collection[str]
    ) -> tuple[Finding, ...]:
        """The findings of all rules about objects on these nodes and in these namespaces.

        Pods that a SharePod or its holder may be are judged together with all others of the kind.
        """
        whole = self.cluster.objects
        quotas = cluster_quotas(
            self.cluster.namespaces,
            self.cluster.resource_quotas,
            self.cluster.gpu_quota,
            namespaces,
        )
        quotas = {name: quota for name, quota in quotas.items() if name in namespaces}
        declared = tuple(q for q in self.cluster.resource_quotas if q.namespace in namespaces)
        marked = tuple(
            each
            for each in self.cluster.namespaces
            if each.name in namespaces and OVER_QUOTA in each.annotations
        )
        is_limited = bool(quotas or declared or marked)
        codecs = self.schemes.codecs

        def is_near(pod: Pod) -> bool:
            return (
                pod.node in nodes
                or pod.ref.uid in uids
                or (is_limited and pod.ref.namespace in namespaces)
                or (not pod.node and home(pod, read_pod(pod, codecs)) in nodes)
                or registry().uses_share_pods((*pod.annotations, *pod.labels))
            )

        pods = tuple(filter(is_near, whole.pods))
        names = {*nodes, *(pod.node for pod in pods)}
        near = structs.replace(
            whole,
            pods=pods,
            nodes=tuple(node for name, node in self._nodes.items() if name in names),
        )
        near_uids = {pod.ref.uid for pod in (*pods, *whole.share_pods)}
        schemes = structs.replace(
            self.schemes,
            pods=tuple(pod for pod in self.schemes.pods if pod.ref.uid in near_uids),
        )
        by_name = {(pod.ref.namespace, pod.ref.name): pod for pod in whole.pods}
        snapshot = Snapshot(
            now=self.now,
            complete=self._complete,
            lock_owners={**self._gone_owners(near.nodes, by_name), **self.cluster.lock_owners},
            quotas=quotas,
            quota_namespaces=marked,
            resource_quotas=declared,
            dated_by_status=self.cluster.is_dump,
        )
        view = cluster_view(snapshot, near, schemes, LedgerCache(), whole.unhealthy)
        return tuple(find(ClusterIndex(view.snapshot, view.codecs), EVERY_RULE))

    def _gone_owners(
        self, nodes: Iterable[Node], pods: Mapping[tuple[str, str], Pod]
    ) -> Mapping[tuple[str, str], Pod | None]:
        """The owners of locks: a dump that has pods has all of them, and other pods are gone."""
        if not (self.cluster.is_dump and self.cluster.pods_read):
            return pods
        owners = named_owners(nodes, self.schemes.codecs)
        return {**dict.fromkeys(owners), **pods}

    @staticmethod
    def _is_about(finding: Finding, pod: Pod) -> bool:
        """Whether the finding is about this pod, or about its SharePod."""
        about = finding.object_ref
        if about.kind not in (ObjectKind.POD, ObjectKind.SHARE_POD):
            return False
        named = (about.namespace, about.name) == (pod.ref.namespace, pod.ref.name)
        return about.uid in (pod.ref.uid, pod.kubelet_uid) or (
            named and about.kind is ObjectKind.SHARE_POD
        )


def _unallocatable(
    nodes: Iterable[Node], demanded: tuple[SchedulerScheme, PodDemand] | PlacementRefusal
) -> Iterator[str]:
    """The requested units that the nodes have and cannot allocate, as sentences."""
    units = () if isinstance(demanded, PlacementRefusal) else demanded[1].units
    for node in nodes:
        for name, _ in units:
            allocatable, capacity = node.allocatable.get(name, 0), node.capacity.get(name, 0)
            if allocatable < capacity:
                yield f"{node.name}: {allocatable} of {capacity} {name} allocatable"


def _unreported(
    ledger: Ledger, pod: Pod, held: Collection[str], findings: Iterable[Finding]
) -> Iterator[Conflict]:
    """The conflicts about the pod, and about devices that it holds, that no finding reports."""
    rules = {finding.rule for finding in findings}
    uids = {pod.ref.uid, pod.kubelet_uid}
    for conflict in ledger.conflicts:
        is_own = conflict.pod is not None and conflict.pod.uid in uids
        is_of_device = conflict.pod is None and conflict.device in held
        rule = CAUSES[conflict.kind][0] if conflict.kind in CAUSES else None
        if (is_own or is_of_device) and rule not in rules:
            yield conflict


def _is_renamed(codec: SchemeCodec, node: Node) -> bool:
    """Whether the known name is another plugin's on this node."""
    is_renamed = registry().row(codec).is_renamed
    return is_renamed is not None and is_renamed(node)


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


def _is_named(pod: Pod, namespace: str, name: str) -> bool:
    return (pod.ref.namespace, pod.ref.name) == (namespace, name)
