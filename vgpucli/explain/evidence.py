"""What an explanation needs of a cluster's objects, by the very code of the programs.

Placements and quotas are answers of the scheduler's cache, filled with these objects; findings are
those of the reconciler's rules. Only the objects near the explained one are judged: a whole cluster
would take seconds.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Final

from msgspec import structs

from reconciler.model import ObjectKind
from reconciler.reasons import Cause, Rule
from scheduler.cache.scheduler_cache import SchedulerCache
from vgpu.inventory import DetectedSchemes, Units, detect_schemes, of_other_systems
from vgpu.inventory.nvidia import (
    advertised_units,
    is_on_unknown_gpu,
    on_unknown_gpus,
    plugin_refusal,
)
from vgpu.inventory.pod_usage import pod_accounts
from vgpu.kube.closed_nodes import ClosedNode, closed_to, with_all_allocatable
from vgpu.kube.installation import ReportedNode
from vgpu.kube.kueue_kinds import QueuedWorkload
from vgpu.kube.volcano_kinds import POD_GROUPS
from vgpu.ledger import Ledger
from vgpu.ledger.cluster import home, node_ledger
from vgpu.ledger.from_api import Reading, read_pod
from vgpu.ledger.from_resource_claims import (
    NO_RESOURCE_CLAIMS,
    ClusterResourceClaims,
    NodeResourceClaims,
    node_resource_claims,
)
from vgpu.model.names import Scheme
from vgpu.model.objects import (
    ContainerState,
    MalformedObject,
    Node,
    Pod,
    holds_devices,
)
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import (
    PlacementPolicies,
    SchedulerScheme,
    demand_of,
    scheduler_schemes,
)
from vgpu.placement.node_offers import NodeOffers
from vgpu.placement.node_view import scheme_of
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.quota.kueue_config import KueueConfig
from vgpu.quota.kueue_tree import PodsInQueues, kueue_tree, waits_for_kueue
from vgpu.quota.queue_answer import QueueAnswer, queue_answer
from vgpu.quota.quota_units import quota_unit
from vgpu.quota.tree import QuotaTree
from vgpu.quota.usage import with_observed
from vgpu.quota.volcano_answer import holders_texts
from vgpu.quota.volcano_tree import (
    PodsOfQueues,
    VolcanoObjects,
    group_of,
    queue_name,
    requested_once,
    volcano_tree,
)
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.nvidia.resources import GPU
from vgpu.schemes.other_schedulers import other_scheduler
from vgpu.schemes.registry import registry
from vgpucli.doctor.check_systems import node_errors
from vgpucli.doctor.components import HAMIS
from vgpucli.explain.cluster_objects import ClusterObjects
from vgpucli.explain.free_units import (
    MOST_LISTED,
    nodes_with_units,
    nothing_allocatable,
    observed_units,
    unallocatable,
)
from vgpucli.explain.installation import InstallationError, installation_errors
from vgpucli.explain.kai_objects import KaiObjects, is_of_kai
from vgpucli.explain.known_objects import InTheWay, KnownNode, KnownPod, NodeAnswer
from vgpucli.explain.model import StepReason
from vgpucli.explain.near_findings import NearFindings, is_about, unreported
from vgpucli.explain.obstacles import (
    foreign_reservations,
    missing_resources,
    node_locks,
    placing_schedulers,
    requested_names,
)
from vgpucli.explain.pod_claims import free_devices, known_claims
from vgpucli.explain.pod_group import GroupOfPod
from vgpucli.explain.webhooks import (
    PodWebhooks,
    needs_webhook,
    skipped_by_webhook,
    webhook_remarks,
)
from vgpucli.prediction import ReadObjects, filled_cache

_MOST_LOCKED: Final = 8
"""Maximum number of nodes, locked or with pods in the way, that the reconciler's rules judge."""


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

    def pods_bound_to(self, name: str) -> list[str]:
        """``<namespace>/<name>`` of the living pods that are bound to a node, in order."""
        pods = (pod.ref for pod in self._all_pods if pod.node == name and not pod.terminal)
        return sorted(f"{ref.namespace}/{ref.name}" for ref in pods)

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

    @cached_property
    def _near(self) -> NearFindings:
        return NearFindings(self.cluster, self.schemes, self._nodes)

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
        findings = self._near.findings(
            {name} - {""}, frozenset({pod.ref.namespace}), {pod.ref.uid, pod.kubelet_uid}
        )
        ledger = self.ledger(name) if name else None
        held = {each.share.device for each in ledger.of_pod(pod.kubelet_uid)} if ledger else set()
        is_running = pod.terminal or any(
            status.state is ContainerState.RUNNING for status in pod.statuses
        )
        own = [each for each in findings if is_about(each, pod) and other is None]
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
            self.now,
            demanded,
            reading,
            self._nodes.get(name),
            ledger,
            tuple(own),
            tuple(nearby),
            observed=observed,
            other=other,
            node_gone=bool(pod.node and self._nodes)
            and pod.node not in self._nodes
            and self.malformed_node(pod.node) is None,
            nodes_read=self.cluster.nodes_read,
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
            else tuple(unreported(ledger, pod, held, (*own, *nearby))),
            queue=self._queue(pod),
            kai=self._kai(pod),
        )
        if observed:
            evidence = self._with_observed_quota(evidence)
        if observed:
            refused = (
                (node.name, plugin_refusal(pod, node))
                for node in self._nodes.values()
                if pod.node in ("", node.name)
            )
            evidence = structs.replace(
                evidence, refusing={name: why for name, why in refused if why}
            )
        if observed and not pod.node:
            nodes = self._nodes.values()
            free, texts = observed_units(observed, nodes, self._all_pods)
            evidence = structs.replace(
                evidence,
                units=texts,
                units_free=free,
                closed=self._closed_to(pod),
                none_allocatable=nothing_allocatable(observed, nodes),
            )
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
        near = self._near.findings({node.name}, frozenset(), frozenset())
        here = [each for each in near if each.object_ref.home == node.name]
        of_node = (
            ObjectKind.NODE,
            ObjectKind.DEVICE,
            ObjectKind.FOLDER,
            ObjectKind.RESOURCE_CLAIM,
        )
        findings = [each for each in here if each.object_ref.kind in of_node]
        claiming = [each for each in here if each.cause is Cause.CLAIM_WITHOUT_REQUEST]
        claiming += (
            each
            for each in near
            if each.rule is Rule.ASSUMED_UNBOUND
            and (each.object_ref.namespace, each.object_ref.name) in reserved
        )
        schemes = registry().schemes_of(node)
        ledger = self.ledger(node.name)
        of_claims = self._claims_of_nodes.get(node.name, NO_RESOURCE_CLAIMS)
        resources = {
            name: node.allocatable.get(name, 0)
            for codec in self.schemes.codecs
            if codec.scheme in schemes and not _is_renamed(codec, node)
            for name in codec.resources
            if name in node.allocatable or name in node.capacity
        }
        systems = tuple(row.name for row in registry().rows if row.has_devices(node))
        published = {
            each.driver: len(each.devices)
            for each in self.cluster.objects.resource_claims.slices
            if each.node == node.name and any(device.uuid for device in each.devices)
        }
        present = {*schemes, *(each.scheme for each in ledger.holdings)}
        present |= {Scheme.DRA} if published else set()
        return KnownNode(
            node,
            self.now,
            tuple(scheme for scheme in registry().schemes if scheme in schemes),
            view,
            scheme if isinstance(scheme, PlacementReason) else None,
            ledger,
            tuple(findings),
            tuple(
                pod
                for pod in (
                    *self.pods_at(node.name),
                    *of_claims.pods,
                    *self._of_nvidia(node.name),
                )
                if holds_devices(pod) and other_scheduler(pod) is None
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
            tuple(lock for _, lock in node_locks((node,), self.schemes.codecs)),
            systems,
            published,
            tuple(
                StepReason(each.reason.value, each.reason.explanation)
                for each in node_errors(node, self.now)
            ),
            self.cluster.pods_read,
            on_unknown_gpus(self._on_unknown_gpus(node.name), ledger),
            of_other_systems(node, ledger, systems, present, self.schemes.codecs),
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

    def _on_unknown_gpus(self, name: str) -> Iterator[Pod]:
        """The pods on the node whose GPUs no object names."""
        uids = self.schemes.nvidia
        return (
            pod
            for pod in self.cluster.objects.pods
            if pod.node == name and (pod.ref.uid in uids or is_on_unknown_gpu(pod))
        )

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
            units_free=nodes_with_units(
                demand, [self._nodes[name] for name in fitting], self.schemes.pods
            ),
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
        )
        if codec is None or codec.name == HAMIS:
            webhooks, space = self._webhooks(evidence), next(spaces, None)
            in_the_way = structs.replace(
                in_the_way,
                webhook=skipped_by_webhook(pod, space, webhooks),
                webhook_remarks=tuple(webhook_remarks(pod, space, webhooks)),
            )
        if pod.node or pod.terminal or not self._nodes:
            return in_the_way
        gpu_nodes = [
            self._nodes[name] for name, view, _ in evidence.answers if view and name in self._nodes
        ]
        roomy = {name for name, _, refusal in evidence.answers if refusal is None}
        full = {name for name, view, refusal in evidence.answers if view and refusal is not None}
        names = roomy - evidence.closed.keys() or roomy
        fitting = [self._nodes[name] for name in names if name in self._nodes]
        with_room = [self._nodes[name] for name in sorted(roomy) if name in self._nodes]
        locks = tuple(node_locks(with_room, self.schemes.codecs))
        locked = {name for name, _ in locks[:_MOST_LOCKED]}
        of_all = tuple(node_locks(gpu_nodes, self.schemes.codecs))
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
        supplied = pod.uses_resource_claims or self._serves_claims
        return structs.replace(
            in_the_way,
            locks=locks,
            full_locked=full_locked,
            unlocked=frozenset(unlocked),
            findings=tuple(
                each
                for each in (self._near.findings(near, frozenset(), frozenset()) if near else ())
                if (each.object_ref.kind is ObjectKind.NODE and each.object_ref.name in named)
                or (each.object_ref.kind is ObjectKind.POD and each.object_ref.uid in holders)
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
            on_unknown_gpus=tuple(
                f"{each.ref.namespace}/{each.ref.name}"
                for each in self.cluster.objects.pods
                if each.node in names and is_on_unknown_gpu(each)
            ),
            unallocatable=()
            if isinstance(demanded, PlacementRefusal)
            else tuple(unallocatable(fitting, demanded[1]))[:MOST_LISTED],
        )

    def _webhooks(self, evidence: KnownPod) -> PodWebhooks:
        """The webhooks, where one should have set the scheduler of a pod that has no GPU yet."""
        pod, read = evidence.pod, self.cluster.webhooks
        if read is None or evidence.reading.claims or not needs_webhook(pod):
            return PodWebhooks()
        return read(pod.ref.namespace, pod.ref.name)

    def workload(self, namespace: str, name: str) -> QueuedWorkload | None:
        """Kueue's workload of this name; else that of a job of this name."""
        own = [each for each in self.cluster.kueue.workloads if each.namespace == namespace]
        named = [each for each in own if each.name == name]
        of_jobs = [each for each in own if each.owner.partition(" ")[2] == name]
        living = [each for each in of_jobs if not each.has_finished]
        return next(iter(named or living or of_jobs), None)

    @property
    def workload_names(self) -> tuple[str, ...]:
        """``<namespace>/<name>`` of Kueue's workloads."""
        return tuple(f"{each.namespace}/{each.name}" for each in self.cluster.kueue.workloads)

    def queue_answer(self, workload: QueuedWorkload) -> QueueAnswer:
        """Why Kueue has not admitted a workload."""
        return queue_answer(self.cluster.kueue, self._queues, workload)

    @cached_property
    def _queues(self) -> QuotaTree:
        return kueue_tree(self.cluster.kueue)

    def _queue(self, pod: Pod) -> QueueAnswer | None:
        """Why Kueue has not admitted a pod that waits for it."""
        kueue = self.cluster.kueue
        if not waits_for_kueue(pod):
            return None
        found = PodsInQueues(kueue).of(pod)
        workload = None if found is None else found.workload
        return None if workload is None else self.queue_answer(workload)

    def _kai(self, pod: Pod) -> KaiObjects | None:
        """What KAI Scheduler has written about a pod that it has to place."""
        read = self.cluster.kai
        if read is None or pod.node or pod.terminal or not is_of_kai(pod):
            return None
        nodes = self._nodes.values()
        without = frozenset(each.name for each in nodes if not each.capacity.get(GPU))
        return structs.replace(read(pod.ref), without_gpus=without)

    def _group(self, pod: Pod) -> GroupOfPod | None:
        """The PodGroup of a pod that waits to be placed."""
        name = group_of(pod)
        if not name or pod.node or pod.terminal or pod.gated:
            return None
        full_name = f"{pod.ref.namespace}/{name}"
        read = self.cluster.volcano
        if read is None:
            return GroupOfPod(full_name)
        volcano = read(pod.ref.namespace, name)
        pods = PodsOfQueues(volcano)
        once = None
        if self.cluster.pods_read and POD_GROUPS.name not in volcano.unread:
            once = requested_once(volcano, self._all_pods)
        group = GroupOfPod(full_name, pods.group(pod), volcano, self._requests_of(pod), once)
        if not group.shortages:
            return group
        first = group.shortages[0]
        held = self._held_in(volcano, first.queue, first.resource)
        return structs.replace(group, holders=tuple(holders_texts(first, held)))

    def _held_in(self, volcano: VolcanoObjects, queue: str, resource: str) -> Mapping[str, int]:
        """What the PodGroups of a queue, and of those below it, hold of a resource, by name."""
        of_queues = PodsOfQueues(volcano)
        tree = volcano_tree(volcano)
        below = {node.name.name for node in tree.below(queue_name(queue))}
        own = [pod for pod in self._all_pods if pod.node and of_queues.of(pod) in below]
        unit = quota_unit(resource, KueueConfig(), self.schemes.unit_bytes)
        nodes = [self._nodes[name] for name in {pod.node for pod in own} if name in self._nodes]
        ledgers = {node.name: self.ledger(node.name) for node in nodes} if unit.amount else {}
        accounts = pod_accounts(nodes, ledgers, own, self.schemes.codecs) if unit.amount else []
        held: dict[str, int] = {}
        amounts = [(each.pod, unit.of_ledger(each.held) or 0) for each in accounts if each.phase]
        if not unit.amount:
            amounts = [
                (pod, self._requests_of(pod).get(resource, 0)) for pod in own if not pod.terminal
            ]
        for pod, amount in amounts:
            who = f"PodGroup {pod.ref.namespace}/{group_of(pod)}"
            if not group_of(pod):
                who = f"Pod {pod.ref.namespace}/{pod.ref.name}"
            held[who] = held.get(who, 0) + amount
        return held

    def _requests_of(self, pod: Pod) -> Mapping[str, int]:
        """All that the pod requests; of a pod that was read alone its extended resources."""
        placed = self.cluster.scheduling.placed
        own = (each.requests for each in placed if each.uid == pod.ref.uid)
        return next(own, pod.requested_units())

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


def _pod_and_code(claiming: tuple[str, StepReason]) -> tuple[str, str]:
    pod, cause = claiming
    return pod, cause.code


def _is_named(pod: Pod, namespace: str, name: str) -> bool:
    return (pod.ref.namespace, pod.ref.name) == (namespace, name)
