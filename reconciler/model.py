"""The reconciler's frozen values: what it sees, what is wrong, and what is to be done.

``Snapshot`` -> rules -> ``Finding`` -> plan -> ``Plan`` -> apply -> ``ActionResult``. A plan is a
value: the plan that is shown is the plan that is applied.
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from reconciler.owners.eviction import OwnerId, OwnerSeen
from reconciler.policy import Labels
from reconciler.reasons import ActionOutcome, Cause, Effect, Rule, SkipReason
from vgpu.inventory import NodeDoubt, doubt_notes
from vgpu.ledger import Ledger
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.ledger.usage import Usage
from vgpu.model.names import PodRef
from vgpu.model.objects import (
    NODE_KIND,
    POD_KIND,
    SHARE_POD_KIND,
    MalformedObject,
    Namespace,
    Node,
    Pod,
    ResourceQuota,
)
from vgpu.model.resource_claims import ResourceClaim
from vgpu.quota.check import Overrun
from vgpu.quota.kai_tree import KaiQueues
from vgpu.quota.kueue_tree import KueueObjects
from vgpu.quota.limits import NamespaceQuota
from vgpu.quota.queue_amounts import QueueNumbers
from vgpu.quota.resources import Amounts
from vgpu.quota.volcano_tree import VolcanoObjects
from vgpu.schemes.registry import UnitBytes

OPT_OUT: Final = "vgpu.dev/reconcile"
"""With the value ``false``, a pod is never changed, nor is a node or any object on it, nor a
Namespace. A ResourceQuota is not compared, and a ResourceClaim not reported."""


def opted_out(thing: Pod | Node | Namespace | ResourceQuota | ResourceClaim) -> bool:
    """Whether the annotation opts the object out."""
    return thing.annotations.get(OPT_OUT) == "false"


class Scope(StrEnum):
    """The sources that the reconciler reads."""

    CLUSTER = "cluster"  # the API server alone
    NODE = "node"  # the API server and one node's own sources


class Coverage(StrEnum):
    """The parts that a snapshot can have seen in full."""

    PODS = "pods"
    NODES = "nodes"
    SHARE_PODS = "sharepods"
    LEDGER = "ledger"  # a node's own sources, not only annotations
    FOLDERS = "folders"  # the shims' folders, and the processes that map files in them
    QUOTAS = "quotas"  # the quotas of all namespaces
    RESOURCE_CLAIMS = "resourceclaims"
    USAGE = "usage"  # the driver's processes, and their containers


class ShimFolder(msgspec.Struct, frozen=True, gc=False):
    """A folder ``<podUID>_<container>`` of a shim, as it was at one time.

    ``identity`` is device, inode and the newest change of the folder or its files (nanoseconds):
    another identity is another folder. ``mapped``: a process has a file of it open or mapped.
    """

    path: str
    pod_uid: str
    container: str
    identity: tuple[int, int, int]
    mapped: bool


class KernelLaunch(msgspec.Struct, frozen=True, gc=False):
    """When a container last launched a kernel, by the sharing library; 0 if it never did.

    ``pod_uid`` is the pod's UID on the node, ``launched_at`` unix seconds.
    """

    pod_uid: str
    container: str
    launched_at: float


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a cluster, or of one node, at one time.

    Attributes:
        now: unix seconds, by our clock.
        scope: the sources that were read.
        complete: the parts that were seen in full; the other parts are no evidence.
        nodes: all nodes, or the one node.
        pods: all pods that share GPUs, with KubeShare's holder pods.
        nvidia_pods: pods with GPUs, replicas or MIG instances of NVIDIA's own plugin, which vgpu
            only observes.
        share_pods: KubeShare's SharePods, as pods.
        malformed: objects that were seen and cannot be read: their content is no evidence.
        lock_owners: the pods that nodes' locks name and that are not in ``pods``, by namespace
            and name, None for a pod that does not exist; None if no owner was asked for.
        ledgers: by node; a node without any disagreement may be left out.
        folders: the shims' folders.
        owners: the owners of Failed pods whose own policy decides.
        usage: what containers use of devices, where that is known for certain.
        last_kernels: when containers last launched a kernel, where their library reports it.
        device_pods: UIDs of the pods that have a process on a device, by the device's UUID; only of
            devices of which all processes and their containers are known.
        namespaces: the labels of namespaces by name, if a policy asks for them; those that could
            not be read are missing.
        quotas: the quotas of namespaces by name, of those that have one, if a rule asks for them.
        quota_namespaces: the Namespaces, likewise.
        resource_quotas: the ResourceQuotas with entries about shared GPUs, likewise.
        resource_claims: the ResourceClaims and the pods that only use these, likewise.
        live_pods: UIDs with a cgroup on the node, None if cgroups were not read.
        continuous: the snapshot is one of many of a loop that missed no change in between.
        dated_by_status: a finding without a time of its own counts from the newest time in the
            pod's status; else it counts from our first sight.
        notes: what a reader must know, in words.
        unit_doubts: what contradicts the units of memory in force.
        unit_bytes: these units, by the name of the system's row.
        kueue, volcano, kai: the objects of each system of queues, if metrics ask for them.
        held: what each pod holds by the ledgers, likewise.
    """

    now: float
    scope: Scope = Scope.CLUSTER
    complete: frozenset[Coverage] = frozenset()
    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    nvidia_pods: tuple[Pod, ...] = ()
    share_pods: tuple[Pod, ...] = ()
    malformed: tuple[MalformedObject, ...] = ()
    lock_owners: Mapping[tuple[str, str], Pod | None] | None = None
    owners: Mapping[OwnerId, OwnerSeen] = {}
    ledgers: Mapping[str, Ledger] = {}
    folders: tuple[ShimFolder, ...] = ()
    usage: tuple[Usage, ...] = ()
    last_kernels: tuple[KernelLaunch, ...] = ()
    device_pods: Mapping[str, frozenset[str]] = {}
    namespaces: Labels = {}
    quotas: Mapping[str, NamespaceQuota] = {}
    quota_namespaces: tuple[Namespace, ...] = ()
    resource_quotas: tuple[ResourceQuota, ...] = ()
    resource_claims: ClusterResourceClaims = ClusterResourceClaims()
    live_pods: frozenset[str] | None = None
    continuous: bool = False
    dated_by_status: bool = False
    notes: tuple[str, ...] = ()
    unit_doubts: tuple[NodeDoubt, ...] = ()
    unit_bytes: UnitBytes = {}
    kueue: KueueObjects = KueueObjects()
    volcano: VolcanoObjects = VolcanoObjects()
    kai: KaiQueues = KaiQueues()
    held: tuple[tuple[Pod, Amounts], ...] = ()


class ObjectKind(StrEnum):
    """The kind of an object."""

    POD = POD_KIND
    SHARE_POD = SHARE_POD_KIND
    NODE = NODE_KIND
    DEVICE = "Device"
    FOLDER = "Folder"
    RESOURCE_QUOTA = "ResourceQuota"
    NAMESPACE = "Namespace"
    RESOURCE_CLAIM = "ResourceClaim"


class ObjectRef(msgspec.Struct, frozen=True, gc=False, order=True):
    """The object of a finding; it appears once in a plan.

    Attributes:
        kind: the kind of the object.
        namespace: "" for an object without a namespace; of a Namespace its name.
        name: of the object; of a device its UUID or index, of a folder its path.
        uid: of the object; of a folder its pod's.
        part: which annotation of a node, which entry of a ResourceQuota; "" for the whole.
        node: the node that the object is on, "" if none.
    """

    kind: ObjectKind
    namespace: str
    name: str
    uid: str
    part: str = ""
    node: str = ""

    @property
    def key(self) -> str:
        """The short name in the reconciler's state; unique among objects of the same name."""
        if self.uid and self.kind in _HAVE_UIDS:
            return f"{self.kind}/{self.uid}/{self.part}"
        return f"{self.kind}/{self.node}/{self.namespace}/{self.name}/{self.part}"

    @property
    def home(self) -> str:
        """The node that the object is on, or that the object is; "" if none."""
        return self.name if self.kind is ObjectKind.NODE else self.node


_HAVE_UIDS: Final = frozenset(
    {
        ObjectKind.POD,
        ObjectKind.SHARE_POD,
        ObjectKind.NODE,
        ObjectKind.NAMESPACE,
        ObjectKind.RESOURCE_CLAIM,
    }
)
"""Kinds whose objects have UIDs of their own; several folders and devices may have one pod's."""


# ---------------------------------------------------------------- what is to be done


class OwnerState(StrEnum):
    """The state of the pod that a node lock serves."""

    GONE = "gone"
    ENDED = "ended"
    SERVED = "served"  # running, or its claim is assigned
    WAITS = "waits"  # Allocate may still serve it
    TERMINATING = "terminating"


class OwnerGuard(msgspec.Struct, frozen=True, tag="owner"):
    """A lock may be removed only while its owner is still in this state."""

    namespace: str
    name: str
    state: OwnerState


class NobodyWaitsGuard(msgspec.Struct, frozen=True, tag="nobody_waits"):
    """A lock may be removed only while no pod that is bound to the node, or has a reservation on
    it, waits for Allocate.
    """

    node: str


class UnusedGuard(msgspec.Struct, frozen=True, tag="unused"):
    """A holder pod may be evicted only while no SharePod and no pod uses its virtual GPU on the
    node.
    """

    node: str
    gpuid: str


class PolicyGuard(msgspec.Struct, frozen=True, tag="policy"):
    """A pod may be evicted only while its owner would then change nothing else."""

    owner: str


Guard = OwnerGuard | NobodyWaitsGuard | UnusedGuard | PolicyGuard


class Evict(msgspec.Struct, frozen=True, tag="evict"):
    """Evict the pod, if it still has this version.

    ``guards`` check what the version does not show, such as who uses a holder pod's GPU.
    """

    pod: PodRef
    resource_version: str
    guards: tuple[Guard, ...] = ()


class Edit(msgspec.Struct, frozen=True, tag="edit"):
    """Change annotations of a pod, SharePod, node or Namespace, if they are what they were.

    Attributes:
        target: the object that has the annotations; ``part`` is ignored.
        resource_version: that of the pod or SharePod as it was seen; "" for a node, whose
            version changes with every heartbeat, and for a Namespace: only values are compared.
        before: each annotation as it was, None where there was none: the before-image.
        after: each annotation as it is to be, None to remove it. Same keys.
        unbind: clear a SharePod's ``spec.nodeName``, which was this; "" does not change it.
        bind: set a SharePod's ``spec.nodeName`` to this again; only the inverse of an edit does.
        guards: checks that must still pass.
    """

    target: ObjectRef
    resource_version: str
    before: Mapping[str, str | None]
    after: Mapping[str, str | None]
    unbind: str = ""
    guards: tuple[Guard, ...] = ()
    bind: str = ""

    @property
    def moves(self) -> bool:
        """Whether the edit changes the node of a SharePod: from ``unbind`` to ``bind``."""
        return bool(self.unbind or self.bind)

    def __post_init__(self) -> None:
        """Raises ValueError: an edit without a before-image can neither be checked nor undone."""
        if self.before.keys() != self.after.keys():
            raise ValueError("before and after are of other annotations")


class RemoveFolder(msgspec.Struct, frozen=True, tag="remove_folder"):
    """Remove a shim's folder, if its identity is unchanged and no process uses it."""

    path: str
    pod_uid: str
    identity: tuple[int, int, int]


Action = Evict | Edit | RemoveFolder

_DIGEST: Final = 8
"""Length of the digest that distinguishes findings of one rule about one object, in bytes."""


class Finding(msgspec.Struct, frozen=True):
    """One problem of one object.

    Attributes:
        rule: the rule that found the problem.
        cause: the reason code.
        object_ref: the object.
        evidence: what shows the problem, in words that a person can check; never empty.
        since: when the problem began at the latest, by another machine's clock (unix seconds);
            None if unknown: then it counts from the time at which we first saw it.
        grace: minimum age of the problem before an action, in seconds.
        effect: what the action achieves.
        action: the repair of the object itself; None if the problem can only be reported.
        skip_reason: why the rule itself would not act now.
        part: the part of the object that has the problem, if each part has its own finding.
        place: the order among findings of the rule that are equally old; the lowest comes first.
        condition: the state that several findings of the rule are a consequence of, such as a
            namespace over its quota. They are as old as this state, however old each of them is;
            "" if the finding is as old as itself.
    """

    rule: Rule
    cause: Cause
    object_ref: ObjectRef
    evidence: tuple[str, ...]
    since: float | None = None
    grace: float = 0.0
    effect: Effect = Effect.RECOVERY
    action: Action | None = None
    skip_reason: SkipReason | None = None
    part: str = ""
    place: int = 0
    condition: str = ""

    @property
    def age_key(self) -> str:
        """The name under which the reconciler's state has the time of the first sight."""
        return f"{self.rule}/{self.condition}" if self.condition else self.key

    @property
    def replaces(self) -> bool:
        """Whether the action evicts a pod so that its owner creates another, not to tidy up."""
        return isinstance(self.action, Evict) and self.effect is Effect.RECOVERY

    @property
    def key(self) -> str:
        """The name in the reconciler's state; another text in the annotations is another key.

        Without the text, a node whose lock is often taken and released would seem to have one old
        lock. The evidence is not in the key, because amounts change.
        """
        identity = self.part.encode(errors="surrogatepass")
        if isinstance(self.action, Edit):
            identity += msgspec.json.encode(self.action.before, order="sorted")
        digest = hashlib.blake2s(identity, digest_size=_DIGEST).hexdigest() if identity else ""
        return f"{self.rule}/{self.object_ref.key}/{digest}"


# ---------------------------------------------------------------- the plan


class Entry(msgspec.Struct, frozen=True):
    """An object in a plan: its leading finding, and the other rules that found it too.

    ``skip`` is why the object is skipped, None for an action and for report only; ``detail``
    completes the reason: for how long yet, by which limit. ``owner`` is the UID of the object's
    controller, "" if it has none.
    """

    finding: Finding
    also: tuple[Rule, ...] = ()
    owner: str = ""
    skip: SkipReason | None = None
    detail: str = ""


class Breaker(msgspec.Struct, frozen=True):
    """The circuit breaker: ``wanted`` actions of at most ``allowed``, with ``pods`` GPU pods.

    ``pods`` counts live pods that ask for a share of a GPU or hold a claim to one. Tidying actions
    and repairs of one rule in one namespace, or in one node's folders, count once in ``wanted``.
    """

    wanted: int
    allowed: int
    pods: int

    @property
    def tripped(self) -> bool:
        """Whether the breaker allows no action."""
        return self.wanted > self.allowed


class NamespaceDemand(msgspec.Struct, frozen=True):
    """What a namespace waits for, and its quota: what no exporter of a node knows.

    Attributes:
        name: of the namespace.
        team: of its Namespace, "" if it names none, or if Namespaces are not read.
        waiting_pods: pods that no node has, and for which no scheduler has reserved a GPU.
        waiting: what these pods request: ``gpus``, ``memory``, ``cores`` (:mod:`vgpu.quota`).
        limits: each limit of its quota, with what its pods hold of it.
        unreadable: number of declarations of its quota that cannot be read.
    """

    name: str
    team: str = ""
    waiting_pods: int = 0
    waiting: Amounts = {}
    limits: tuple[Overrun, ...] = ()
    unreadable: int = 0


class Plan(msgspec.Struct, frozen=True):
    """The actions, in this order, and every object that is skipped with its reason.

    Attributes:
        id: the same for the same actions.
        made_at: unix seconds.
        scope: the sources that were read.
        actions: to be applied.
        skipped: objects with an action that ``skip`` prevents, and pods of other GPU schedulers.
        findings: report only.
        breaker: the number of needed actions, and its limit.
        object_counts: number of examined objects of each kind.
        notes: what a reader must know, in words.
        unit_doubts: what contradicts the units of memory in force.
        namespaces: the namespaces with shared GPUs, for metrics.
        queues: the numbers of queues, for metrics.
    """

    id: str
    made_at: float
    scope: Scope
    actions: tuple[Entry, ...]
    skipped: tuple[Entry, ...]
    findings: tuple[Entry, ...]
    breaker: Breaker
    object_counts: Mapping[str, int] = {}
    notes: tuple[str, ...] = ()
    unit_doubts: tuple[NodeDoubt, ...] = ()
    namespaces: tuple[NamespaceDemand, ...] = ()
    queues: QueueNumbers = QueueNumbers()

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, and a note for each unit that nodes' data contradicts."""
        return (*self.notes, *doubt_notes(self.unit_doubts))

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries of actions, skipped and findings."""
        return (*self.actions, *self.skipped, *self.findings)


class ActionResult(msgspec.Struct, frozen=True):
    """The outcome of one action, and when it ended, in unix seconds.

    ``detail`` is the message of the API server or file system.
    """

    entry: Entry
    outcome: ActionOutcome
    detail: str = ""
    ended_at: float = 0.0
