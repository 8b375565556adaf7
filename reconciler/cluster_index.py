"""A snapshot with its indexes: what rules ask of it, answered once. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from reconciler.model import Coverage, ObjectKind, ObjectRef, OwnerState, Snapshot
from reconciler.owners.eviction import OwnerId, owner_id, reaction, row_of
from reconciler.owners.policies import Reaction
from reconciler.reasons import SkipReason
from vgpu.kube.kept_keys import asks_for_gpus, resource_prefixes
from vgpu.kube.objects import ContainerState, MalformedObject, Node, Pod, holds_devices
from vgpu.ledger.cluster import home
from vgpu.ledger.from_api import read_pod
from vgpu.model import Claim, Phase
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.registry import registry

PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"


class ClaimReading:
    """A pod's claim in one language; ``error`` is what is wrong with it, if it cannot be read."""

    __slots__ = ("claim", "codec", "error")

    def __init__(self, codec: SchemeCodec, claim: Claim | None, error: ClaimError | None) -> None:
        """One of claim and error is None."""
        self.codec, self.claim, self.error = codec, claim, error


class ClusterIndex:
    """A snapshot as rules see it. All answers are the same for the same snapshot."""

    def __init__(self, snapshot: Snapshot, codecs: Sequence[SchemeCodec]) -> None:
        """``languages`` are those that somebody in the cluster speaks."""
        self.snapshot = snapshot
        self.now = snapshot.now
        self.codecs = tuple(codecs)
        self._spoken: dict[str, tuple[ClaimReading, ...]] = {}
        self._reactions: dict[tuple[OwnerId, str], Reaction] = {}

    def has(self, *views: Coverage) -> bool:
        """Whether all of these were seen in full."""
        return self.snapshot.complete.issuperset(views)

    # ------------------------------------------------------------ indexes

    @cached_property
    def all_pods(self) -> tuple[Pod, ...]:
        """Those that share GPUs, and those of NVIDIA's own plugin."""
        return (*self.snapshot.pods, *self.snapshot.nvidia_pods)

    @cached_property
    def pods(self) -> Mapping[str, Pod]:
        """All of them, by UID."""
        return {pod.ref.uid: pod for pod in self.all_pods}

    @cached_property
    def living(self) -> int:
        """How many pods share GPUs, and have neither ended nor are being deleted."""
        pods = self.snapshot.pods
        return sum(
            1 for pod in pods if pod.deleted_at is None and not pod.terminal and self.shares(pod)
        )

    @cached_property
    def share_pods(self) -> Mapping[str, Pod]:
        """KubeShare's, by UID."""
        return {pod.ref.uid: pod for pod in self.snapshot.share_pods}

    def pod_of(self, subject: ObjectRef) -> Pod | None:
        """The pod or SharePod that the object is; None if it is neither, or is not there."""
        if subject.kind is ObjectKind.POD:
            return self.pods.get(subject.uid)
        return self.share_pods.get(subject.uid) if subject.kind is ObjectKind.SHARE_POD else None

    @cached_property
    def pods_by_name(self) -> Mapping[tuple[str, str], Pod]:
        """By namespace and name."""
        return {(pod.ref.namespace, pod.ref.name): pod for pod in self.all_pods}

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """By name."""
        return {node.name: node for node in self.snapshot.nodes}

    @cached_property
    def replicas(self) -> Mapping[str, int]:
        """How many pods that may be of use each controller has, by its UID."""
        return Counter(
            pod.owner.uid
            for pod in self.all_pods
            if pod.owner is not None and pod.deleted_at is None and not pod.terminal
        )

    @cached_property
    def newest_replica(self) -> Mapping[str, float]:
        """When the newest of a controller's pods that may be of use was made, by its UID."""
        found: dict[str, float] = {}
        for pod in self.all_pods:
            if pod.owner is not None and pod.deleted_at is None and not pod.terminal:
                made = found.get(pod.owner.uid, 0.0)
                found[pod.owner.uid] = max(made, pod.created_at or 0.0)
        return found

    @cached_property
    def waiting_on_node(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods that Allocate may still serve, by the node that they are bound or promised to."""
        found: dict[str, list[Pod]] = {}
        for pod in self.snapshot.pods:
            waits = self.owner_state(pod) is OwnerState.WAITS and not pod.gated
            if pod.phase == PENDING and waits:  # behind a gate no scheduler has seen it
                homes = {pod.node} | {claim.node for claim in self.claims(pod)}
                for home in homes - {""}:
                    found.setdefault(home, []).append(pod)
        return {node: tuple(pods) for node, pods in found.items()}

    @cached_property
    def at_home(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods with what their SharePods know of them, by the node that they are at home on."""
        found: dict[str, list[Pod]] = {}
        for pod in registry().join(self.snapshot.pods, self.snapshot.share_pods):
            found.setdefault(home(pod, read_pod(pod, self.codecs)), []).append(pod)
        return {node: tuple(pods) for node, pods in found.items()}

    # ------------------------------------------------------------ what cannot be read

    @cached_property
    def malformed(self) -> Mapping[str, tuple[MalformedObject, ...]]:
        """By kind."""
        found: dict[str, list[MalformedObject]] = {kind: [] for kind in ObjectKind}
        for each in self.snapshot.malformed:
            found.setdefault(each.kind, []).append(each)
        return {kind: tuple(those) for kind, those in found.items()}

    @cached_property
    def malformed_nodes(self) -> frozenset[str]:
        """Their names."""
        return frozenset(each.name for each in self.malformed[ObjectKind.NODE])

    def hidden_pods(self, node: str) -> tuple[MalformedObject, ...]:
        """Pods that cannot be read and are on the node, or may be."""
        return tuple(each for each in self.malformed[ObjectKind.POD] if each.may_be_on(node))

    def hidden_tenants(self, node: str) -> tuple[MalformedObject, ...]:
        """Whatever cannot be read and may hold something of the node's GPUs.

        A SharePod holds nothing before it is placed, nor where KubeShare is not in use.
        """
        share_pods = (
            self.malformed[ObjectKind.SHARE_POD] if node in self._shared_by_share_pods else ()
        )
        placed = (each for each in share_pods if each.node in (None, node))
        return (*self.hidden_pods(node), *placed)

    @cached_property
    def _shared_by_share_pods(self) -> frozenset[str]:
        return frozenset(
            pod.node
            for pod in self.snapshot.pods
            if registry().uses_share_pods((*pod.annotations, *pod.labels))
        )

    # ------------------------------------------------------------ one pod

    def spoken(self, pod: Pod) -> tuple[ClaimReading, ...]:
        """What the pod reports about its devices, in each language in which it reports anything."""
        found = self._spoken.get(pod.ref.uid)
        if found is None:
            found = tuple(said for each in self.codecs if (said := _speak(each, pod)))
            self._spoken[pod.ref.uid] = found
        return found

    def claims(self, pod: Pod) -> tuple[Claim, ...]:
        """What of that can be read."""
        return tuple(said.claim for said in self.spoken(pod) if said.claim is not None)

    def shares(self, pod: Pod) -> bool:
        """Whether the pod asks for a share of a GPU, or holds a claim to one.

        A mark alone, such as any annotation ``kubeshare/x``, is neither. KubeShare's holder pods
        keep a GPU for others: the pods that they keep it for are counted.
        """
        asks = asks_for_gpus(pod) or any(_asks(pod, self.codecs)) or bool(self.spoken(pod))
        return asks and not is_holder(pod)

    def reaction(self, pod: Pod) -> Reaction:
        """What the owner does when this Failed pod is deleted."""
        asked, row = owner_id(pod), row_of(pod)
        if asked is None or row is None:
            return reaction(pod, None)
        key = asked, row.part(pod)
        if key not in self._reactions:
            self._reactions[key] = reaction(pod, self.snapshot.owners.get(asked))
        return self._reactions[key]

    def owner_state(self, pod: Pod | None) -> OwnerState:
        """How it is with a pod that a node lock may serve; None is one that does not exist.

        A claim that cannot be read may be one that is still to be kept, whatever others say.
        """
        said = () if pod is None else self.spoken(pod)
        legible = all(each.error is None for each in said)
        return owner_state(pod, self.claims(pod) if pod is not None and legible else ())

    def node_objection(self, name: str) -> SkipReason | None:
        """Why nothing that a node's pods say can be acted on."""
        if not self.has(Coverage.NODES):
            return SkipReason.INCOMPLETE_VIEW
        node = self.nodes.get(name)
        if node is None:
            return SkipReason.NODE_UNKNOWN
        return None if node.ready else SkipReason.NODE_NOT_READY

    def plugin_objection(self, pod: Pod) -> SkipReason | None:
        """Why another try of this pod on its node would fail again."""
        objection = self.node_objection(pod.node)
        if objection is not None:
            return objection
        allocatable = self.nodes[pod.node].allocatable
        asked = {
            name
            for container in pod.containers
            for name, number in container.limits.items()
            if number and name.startswith(resource_prefixes())
        }
        # Some are counted by the scheduler alone, such as HAMi's gpumem: no node offers them.
        offered = [allocatable[name] for name in asked if name in allocatable]
        return None if not asked or (offered and all(offered)) else SkipReason.PLUGIN_NOT_READY


def owner_state(pod: Pod | None, claims: Sequence[Claim]) -> OwnerState:
    """How it is with the pod that a node lock serves, given what its annotations claim."""
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
    """Whether Allocate is done with it: with every container, it is called for one at a time."""
    return not claim.unserved and all(
        allocation.phase is Phase.ASSIGNED for allocation in claim.allocations
    )


def _asks(pod: Pod, codecs: Sequence[SchemeCodec]) -> Iterator[bool]:
    """Whether it asks in each of the languages; who asks wrongly asks."""
    for codec in codecs:
        try:
            yield bool(codec.requests(pod))
        except ClaimError:
            yield True


def is_holder(pod: Pod) -> bool:
    """Whether it is a holder pod, which keeps a GPU for others and uses nothing of it."""
    return registry().keeps_for_others(pod)


def _speak(codec: SchemeCodec, pod: Pod) -> ClaimReading | None:
    try:
        claim = codec.claim(pod)
    except ClaimError as error:
        return ClaimReading(codec, None, error)
    return None if claim is None else ClaimReading(codec, claim, None)
