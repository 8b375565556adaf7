"""A snapshot with its indexes: each answer that rules ask for is computed once. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec

from reconciler.model import Coverage, ObjectKind, ObjectRef, OwnerState, Snapshot
from reconciler.owners.eviction import OwnerId, owner_id, reaction, row_of
from reconciler.owners.policies import Reaction
from reconciler.reasons import SkipReason
from vgpu.inventory.nvidia import SCHEME as NVIDIA
from vgpu.inventory.pods_without_gpu import pods_without_gpu
from vgpu.kube.kept_keys import asks_for_gpus, is_gpu_resource
from vgpu.ledger import Ledger
from vgpu.ledger.cluster import home
from vgpu.ledger.from_api import read_pod
from vgpu.model.allocation import Claim
from vgpu.model.names import Phase, Source
from vgpu.model.objects import ContainerState, MalformedObject, Node, Pod, holds_devices
from vgpu.placement.pods_without_gpu import PodWithoutGpu
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.counted_claims import empty_claim
from vgpu.schemes.kai.keys import KAI
from vgpu.schemes.other_schedulers import other_scheduler
from vgpu.schemes.registry import registry
from vgpu.schemes.row import SchemeRow

PLUGIN_LABEL: Final = "vgpu.dev/plugin"
"""The label of nodes for which an operator has installed our device plugin, with its scheme."""


class PluginService(msgspec.Struct, frozen=True):
    """A pod that the original device plugin of its sharing system can never serve.

    Attributes:
        limit: why the original cannot, in words.
        ours: what shows that the node's plugin is vgpu's, which can; "" if nothing does.
    """

    limit: str
    ours: str = ""


def plugin_service(
    pod: Pod,
    node: Node,
    codecs: Iterable[SchemeCodec],
    pods: Iterable[Pod],
    ledger: Ledger | None,
) -> PluginService | None:
    """The service of the pod on the node; None if the original may serve it, too.

    ``pods`` are those of the node, ``ledger`` is the node's.
    """
    for codec in codecs:
        row = registry().row(codec)
        limit = row.never_serves(pod, node) if row.never_serves else ""
        if limit:
            return PluginService(limit, next(_ours(row, codec, node, pods, ledger), ""))
    return None


def _ours(
    row: SchemeRow, codec: SchemeCodec, node: Node, pods: Iterable[Pod], ledger: Ledger | None
) -> Iterator[str]:
    """What shows that the node's plugin is vgpu's."""
    if node.labels.get(PLUGIN_LABEL) == row.adapter:
        yield f"node {node.name} has the label {PLUGIN_LABEL}: {row.adapter}"
    for holding in ledger.holdings if ledger else ():
        if holding.scheme is codec.scheme and Source.OWN_CHECKPOINT in holding.sources:
            yield f"the checkpoint of vgpu's device plugin on node {node.name}"
    for pod in pods:
        if row.never_serves and row.never_serves(pod, node) and _is_served(pod, codec):
            name = f"{pod.ref.namespace}/{pod.ref.name}"
            yield f"the plugin of node {node.name} has served such a pod: {name}"


def _is_served(pod: Pod, codec: SchemeCodec) -> bool:
    """Whether the plugin has marked the pod as served, and its containers have started."""
    try:
        claim = codec.claim(pod)
    except ClaimError:
        return False
    return (
        pod.phase == "Running"
        and claim is not None
        and bool(claim.allocations)
        and all(allocation.phase is Phase.ASSIGNED for allocation in claim.allocations)
    )


PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"


class ClaimReading:
    """A pod's claim in one scheme; ``error`` is what is wrong with it, if it cannot be read."""

    __slots__ = ("claim", "codec", "error")

    def __init__(self, codec: SchemeCodec, claim: Claim | None, error: ClaimError | None) -> None:
        """One of claim and error is None."""
        self.codec, self.claim, self.error = codec, claim, error


class ClusterIndex:
    """A snapshot as rules see it. All answers are the same for the same snapshot."""

    def __init__(self, snapshot: Snapshot, codecs: Sequence[SchemeCodec]) -> None:
        """``codecs`` are those of the schemes that the cluster uses."""
        self.snapshot = snapshot
        self.now = snapshot.now
        self.codecs = tuple(codecs)
        self._readings: dict[str, tuple[ClaimReading, ...]] = {}
        self._reactions: dict[tuple[OwnerId, str], Reaction] = {}

    def has(self, *views: Coverage) -> bool:
        """Whether the snapshot has seen all of these parts in full."""
        return self.snapshot.complete.issuperset(views)

    # ------------------------------------------------------------ indexes

    @cached_property
    def all_pods(self) -> tuple[Pod, ...]:
        """Pods that share GPUs, and pods of NVIDIA's own plugin."""
        return (*self.snapshot.pods, *self.snapshot.nvidia_pods)

    @cached_property
    def pods(self) -> Mapping[str, Pod]:
        """All pods, by UID."""
        return {pod.ref.uid: pod for pod in self.all_pods}

    @cached_property
    def _nvidia(self) -> frozenset[str]:
        """UIDs of the pods of NVIDIA's own plugin."""
        return frozenset(pod.ref.uid for pod in self.snapshot.nvidia_pods)

    def observed_scheme(self, pod: Pod) -> str:
        """The system of the pod, if it is one that vgpu only observes; else ""."""
        if pod.group_gpus:
            return KAI.value
        return NVIDIA.value if pod.ref.uid in self._nvidia else ""

    def has_gpus(self, pod: Pod) -> bool:
        """Whether the pod shares GPUs, or is of a system that vgpu only observes."""
        return bool(self.observed_scheme(pod)) or self.shares(pod)

    @cached_property
    def living(self) -> int:
        """Number of pods that share GPUs, and have neither ended nor are being deleted."""
        pods = self.snapshot.pods
        return sum(
            1 for pod in pods if pod.deleted_at is None and not pod.terminal and self.shares(pod)
        )

    @cached_property
    def share_pods(self) -> Mapping[str, Pod]:
        """KubeShare's SharePods, by UID."""
        return {pod.ref.uid: pod for pod in self.snapshot.share_pods}

    def pod_of(self, object_ref: ObjectRef) -> Pod | None:
        """The pod or SharePod of this reference; None if it is neither, or does not exist."""
        if object_ref.kind is ObjectKind.POD:
            return self.pods.get(object_ref.uid)
        return (
            self.share_pods.get(object_ref.uid) if object_ref.kind is ObjectKind.SHARE_POD else None
        )

    @cached_property
    def pods_by_name(self) -> Mapping[tuple[str, str], Pod]:
        """All pods, by namespace and name."""
        return {(pod.ref.namespace, pod.ref.name): pod for pod in self.all_pods}

    def lock_owner(self, namespace: str, name: str) -> Pod | None:
        """The pod that a lock names; None if it does not exist, or was not read."""
        owner = self.pods_by_name.get((namespace, name))
        return owner or (self.snapshot.lock_owners or {}).get((namespace, name))

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes, by name."""
        return {node.name: node for node in self.snapshot.nodes}

    @cached_property
    def replicas(self) -> Mapping[str, int]:
        """Number of each controller's pods that neither ended nor are being deleted, by its UID."""
        return Counter(
            pod.owner.uid
            for pod in self.all_pods
            if pod.owner is not None and pod.deleted_at is None and not pod.terminal
        )

    @cached_property
    def newest_replica(self) -> Mapping[str, float]:
        """Creation time of each controller's newest pod of :attr:`replicas`, by its UID."""
        newest: dict[str, float] = {}
        for pod in self.all_pods:
            if pod.owner is not None and pod.deleted_at is None and not pod.terminal:
                made = newest.get(pod.owner.uid, 0.0)
                newest[pod.owner.uid] = max(made, pod.created_at or 0.0)
        return newest

    @cached_property
    def waiting_on_node(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods that Allocate may still serve, by the node that they are bound to or reserved on."""
        waiting: dict[str, list[Pod]] = {}
        for pod in self.snapshot.pods:
            waits = self.owner_state(pod) is OwnerState.WAITS and not pod.gated
            if pod.phase == PENDING and waits:  # behind a gate no scheduler has seen it
                homes = {pod.node} | {claim.node for claim in self.claims(pod)}
                for home in homes - {""}:
                    waiting.setdefault(home, []).append(pod)
        return {node: tuple(pods) for node, pods in waiting.items()}

    @cached_property
    def at_home(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods, joined with their SharePods, by the node that they are bound to or reserved on."""
        by_node: dict[str, list[Pod]] = {}
        for pod in registry().join(self.snapshot.pods, self.snapshot.share_pods):
            by_node.setdefault(home(pod, read_pod(pod, self.codecs)), []).append(pod)
        return {node: tuple(pods) for node, pods in by_node.items()}

    @cached_property
    def without_gpu(self) -> Mapping[str, PodWithoutGpu]:
        """Bound pods of which not all GPUs are known, by UID: their requests are kept free."""
        found: dict[str, PodWithoutGpu] = {}
        for name, ledger in self.snapshot.ledgers.items():
            node = self.nodes.get(name)
            pods = [pod for pod in self._pods_by_node.get(name, ()) if other_scheduler(pod) is None]
            if node is not None and pods:
                for _, _, lacking in pods_without_gpu(node, ledger, pods, self.codecs):
                    found.update((each.pod.uid, each) for each in lacking)
        return found

    def empty_claim(self, pod: Pod) -> tuple[str, ...]:
        """What a bound pod has of sharing systems although it requests no GPU of them."""
        if not holds_devices(pod) or is_holder(pod) or other_scheduler(pod) is not None:
            return ()
        node = self.nodes.get(pod.node)
        if node is None:
            return ()
        advertised, systems = node.advertised or None, self._systems_of(node)
        return tuple(
            dict.fromkeys(
                text
                for codec in self.codecs
                for text in empty_claim(pod, codec, advertised, is_here=systems == {codec.name})
            )
        )

    def _systems_of(self, node: Node) -> frozenset[str]:
        """The sharing systems whose plugins have GPUs of the node, by the names of their rows."""
        plugins = (registry().row(codec) for codec in self.codecs if codec.advertised)
        return frozenset(row.name for row in plugins if row.has_devices(node))

    # ------------------------------------------------------------ what cannot be read

    @cached_property
    def malformed(self) -> Mapping[str, tuple[MalformedObject, ...]]:
        """Objects that cannot be read, by kind."""
        by_kind: dict[str, list[MalformedObject]] = {kind: [] for kind in ObjectKind}
        for malformed in self.snapshot.malformed:
            by_kind.setdefault(malformed.kind, []).append(malformed)
        return {kind: tuple(objects) for kind, objects in by_kind.items()}

    @cached_property
    def malformed_nodes(self) -> frozenset[str]:
        """Names of the nodes that cannot be read."""
        return frozenset(node.name for node in self.malformed[ObjectKind.NODE])

    def hidden_pods(self, node: str) -> tuple[MalformedObject, ...]:
        """Pods that cannot be read and are on the node, or may be."""
        return tuple(pod for pod in self.malformed[ObjectKind.POD] if pod.may_be_on(node))

    def hidden_tenants(self, node: str) -> tuple[MalformedObject, ...]:
        """Objects that cannot be read and may hold a share of the node's GPUs.

        A SharePod holds nothing before it is placed, nor where KubeShare is not in use.
        """
        share_pods = (
            self.malformed[ObjectKind.SHARE_POD] if node in self._shared_by_share_pods else ()
        )
        placed = (share_pod for share_pod in share_pods if share_pod.node in (None, node))
        return (*self.hidden_pods(node), *placed)

    @cached_property
    def _shared_by_share_pods(self) -> frozenset[str]:
        return frozenset(
            pod.node
            for pod in self.snapshot.pods
            if registry().uses_share_pods((*pod.annotations, *pod.labels))
        )

    # ------------------------------------------------------------ one pod

    def readings(self, pod: Pod) -> tuple[ClaimReading, ...]:
        """The readings of the pod's claim, of each scheme in which the pod has one."""
        readings = self._readings.get(pod.ref.uid)
        if readings is None:
            readings = tuple(
                reading for codec in self.codecs if (reading := _read_claim(codec, pod))
            )
            self._readings[pod.ref.uid] = readings
        return readings

    def claims(self, pod: Pod) -> tuple[Claim, ...]:
        """The pod's claims that can be read."""
        return tuple(reading.claim for reading in self.readings(pod) if reading.claim is not None)

    def shares(self, pod: Pod) -> bool:
        """Whether the pod asks for a share of a GPU, or holds a claim to one.

        An annotation such as ``kubeshare/x`` alone is neither. KubeShare's holder pods keep a GPU
        for other pods: those pods are counted.
        """
        asks = asks_for_gpus(pod) or any(_asks(pod, self.codecs)) or bool(self.readings(pod))
        return asks and not is_holder(pod)

    def reaction(self, pod: Pod) -> Reaction:
        """The owner's reaction to the deletion of this Failed pod."""
        asked, row = owner_id(pod), row_of(pod)
        if asked is None or row is None:
            return reaction(pod, None)
        key = asked, row.part(pod)
        if key not in self._reactions:
            self._reactions[key] = reaction(pod, self.snapshot.owners.get(asked))
        return self._reactions[key]

    def owner_state(self, pod: Pod | None) -> OwnerState:
        """The state of a pod that a node lock may serve; None is a pod that does not exist.

        A claim that cannot be read may be one that Allocate still has to serve.
        """
        readings = () if pod is None else self.readings(pod)
        legible = all(reading.error is None for reading in readings)
        return owner_state(pod, self.claims(pod) if pod is not None and legible else ())

    def node_skip_reason(self, name: str) -> SkipReason | None:
        """Why no action on the node's pods is possible."""
        if not self.has(Coverage.NODES):
            return SkipReason.INCOMPLETE_VIEW
        node = self.nodes.get(name)
        if node is None:
            return SkipReason.NODE_UNKNOWN
        return None if node.ready else SkipReason.NODE_NOT_READY

    def plugin_skip_reason(self, pod: Pod) -> SkipReason | None:
        """Why another try of this pod on its node would fail again."""
        skip_reason = self.node_skip_reason(pod.node)
        if skip_reason is not None:
            return skip_reason
        allocatable = self.nodes[pod.node].allocatable
        asked = {
            name
            for container in pod.containers
            for name, number in container.limits.items()
            if number and is_gpu_resource(name)
        }
        # Only the scheduler counts some resources, such as HAMi's gpumem: no node offers them.
        offered = [allocatable[name] for name in asked if name in allocatable]
        return None if not asked or (offered and all(offered)) else SkipReason.PLUGIN_NOT_READY

    def plugin_service(self, pod: Pod) -> PluginService | None:
        """The service of a pod that the original plugin of its node can never serve."""
        node = self.nodes.get(pod.node)
        if node is None:
            return None
        of_node = [each for each in self._pods_by_node[node.name] if each.ref.uid != pod.ref.uid]
        ledger = self.snapshot.ledgers.get(node.name)
        return plugin_service(pod, node, self.codecs, of_node, ledger)

    @cached_property
    def _pods_by_node(self) -> Mapping[str, Sequence[Pod]]:
        by_node: dict[str, list[Pod]] = defaultdict(list)
        for pod in self.snapshot.pods:
            by_node[pod.node].append(pod)
        return by_node


def owner_state(pod: Pod | None, claims: Sequence[Claim]) -> OwnerState:
    """The state of the pod that a node lock serves, with the claims in its annotations."""
    if pod is None:
        return OwnerState.GONE
    if not holds_devices(pod):
        return OwnerState.ENDED if pod.terminal else OwnerState.TERMINATING
    if pod.deleted_at is not None:
        return OwnerState.TERMINATING
    runs = any(status.state is ContainerState.RUNNING for status in pod.statuses)
    served = runs or pod.phase == RUNNING or (bool(claims) and all(map(_assigned, claims)))
    return OwnerState.SERVED if served else OwnerState.WAITS


def _assigned(claim: Claim) -> bool:
    """Whether Allocate has served the claim: all containers, for each of which it is called."""
    return not claim.unserved and all(
        allocation.phase is Phase.ASSIGNED for allocation in claim.allocations
    )


def _asks(pod: Pod, codecs: Sequence[SchemeCodec]) -> Iterator[bool]:
    """Whether the pod asks in each of the schemes; an invalid request counts as one."""
    for codec in codecs:
        try:
            yield bool(codec.requests(pod))
        except ClaimError:
            yield True


def is_holder(pod: Pod) -> bool:
    """Whether the pod is a holder pod, which keeps a GPU for other pods and does not use it."""
    return registry().keeps_for_others(pod)


def _read_claim(codec: SchemeCodec, pod: Pod) -> ClaimReading | None:
    try:
        claim = codec.claim(pod)
    except ClaimError as error:
        return ClaimReading(codec, None, error)
    return None if claim is None else ClaimReading(codec, claim, None)
