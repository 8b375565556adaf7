"""What the reconciler thinks in: what is seen, what is wrong, what is to be done. Frozen values.

``Snapshot`` -> rules -> ``Finding`` -> plan -> ``Plan`` -> apply -> ``ActionResult``. A plan is a
value: the one that is shown is the one that is applied.
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from reconciler.owners.eviction import OwnerId, OwnerSeen
from reconciler.reasons import ActionOutcome, Cause, Effect, Rule, SkipReason
from vgpu.kube.objects import NODE_KIND, POD_KIND, SHARE_POD_KIND, MalformedObject, Node, Pod
from vgpu.ledger import Ledger
from vgpu.ledger.usage import Usage
from vgpu.model import PodRef


class Scope(StrEnum):
    """From where the reconciler looks."""

    CLUSTER = "cluster"  # the API server alone
    NODE = "node"  # one node's own sources too


class Coverage(StrEnum):
    """What a snapshot can have seen in full."""

    PODS = "pods"
    NODES = "nodes"
    SHARE_PODS = "sharepods"
    LEDGER = "ledger"  # a node's own sources, not only annotations
    FOLDERS = "folders"  # the shims' folders, and who maps the files in them
    USAGE = "usage"  # the driver's processes, and whose they are


class ShimFolder(msgspec.Struct, frozen=True, gc=False):
    """A folder ``<podUID>_<container>`` of a shim, as one look at it found it.

    ``identity`` is device, inode and the newest change of it or its files (nanoseconds): if it is
    another, it is another folder. ``mapped`` is whether a process has a file of it open or mapped.
    """

    path: str
    pod_uid: str
    container: str
    identity: tuple[int, int, int]
    mapped: bool


class Snapshot(msgspec.Struct, frozen=True):
    """One look at a cluster, or at one node of it.

    Attributes:
        now: unix seconds, by our clock.
        scope: from where.
        complete: what was seen in full; the rest is no evidence.
        nodes: all, or the one.
        pods: all that share GPUs, KubeShare's holder pods among them.
        nvidia_pods: those with GPUs or MIG instances of NVIDIA's own plugin, which shares none.
        share_pods: KubeShare's SharePods, as pods.
        malformed: objects that were seen and cannot be read: what they say is no evidence.
        lock_owners: the pods that nodes' locks name and that are not among ``pods``, by namespace
            and name, None for one that does not exist; None if nobody has asked for any.
        ledgers: by node; a node without any disagreement may be left out.
        folders: the shims' folders.
        owners: the owners of Failed pods whose own policy decides.
        usage: what containers use of devices, where that is known for certain.
        live_pods: UIDs with a cgroup on the node, None if that was not looked at.
        continuous: whether this is one of many looks of a loop that missed nothing in between.
        notes: what a reader must know, in words.
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
    live_pods: frozenset[str] | None = None
    continuous: bool = False
    notes: tuple[str, ...] = ()


class ObjectKind(StrEnum):
    """What an object is."""

    POD = POD_KIND
    SHARE_POD = SHARE_POD_KIND
    NODE = NODE_KIND
    DEVICE = "Device"
    FOLDER = "Folder"


class ObjectRef(msgspec.Struct, frozen=True, gc=False, order=True):
    """What a finding is about; it appears once in a plan.

    Attributes:
        kind: what it is.
        namespace: "" for what has none.
        name: of the object; of a device its UUID or index, of a folder its path.
        uid: its identity; of a folder its pod's.
        part: which annotation of a node; "" for the whole.
        node: where it is, "" if nowhere.
    """

    kind: ObjectKind
    namespace: str
    name: str
    uid: str
    part: str = ""
    node: str = ""

    @property
    def key(self) -> str:
        """What memory calls it: short, and another one for another object of the same name."""
        if self.uid and self.kind in _HAVE_UIDS:
            return f"{self.kind}/{self.uid}/{self.part}"
        return f"{self.kind}/{self.node}/{self.namespace}/{self.name}/{self.part}"

    @property
    def home(self) -> str:
        """The node that it is on, or that it is; "" if none."""
        return self.name if self.kind is ObjectKind.NODE else self.node


_HAVE_UIDS: Final = frozenset({ObjectKind.POD, ObjectKind.SHARE_POD, ObjectKind.NODE})
"""Kinds of which a UID is one object's own; several folders and devices may have a pod's."""


# ---------------------------------------------------------------- what is to be done


class OwnerState(StrEnum):
    """How it is with the pod that a node lock serves."""

    GONE = "gone"
    ENDED = "ended"
    SERVED = "served"  # running, or its claim is assigned
    WAITS = "waits"  # Allocate may still serve it
    TERMINATING = "terminating"


class OwnerGuard(msgspec.Struct, frozen=True, tag="owner"):
    """A lock may go only while its owner is still in this state."""

    namespace: str
    name: str
    state: OwnerState


class NobodyWaitsGuard(msgspec.Struct, frozen=True, tag="nobody_waits"):
    """A lock may go only while no pod that is bound or promised to the node waits for Allocate."""

    node: str


class UnusedGuard(msgspec.Struct, frozen=True, tag="unused"):
    """A holder pod may go only while no SharePod and no pod uses its virtual GPU on the node."""

    node: str
    gpuid: str


class PolicyGuard(msgspec.Struct, frozen=True, tag="policy"):
    """A pod may go only while its owner would touch nothing else because of that."""

    owner: str


Guard = OwnerGuard | NobodyWaitsGuard | UnusedGuard | PolicyGuard


class Evict(msgspec.Struct, frozen=True, tag="evict"):
    """Evict the pod, if it is still this very version of it.

    ``guards`` are what else must still be so: who uses a holder pod's GPU does not change it.
    """

    pod: PodRef
    resource_version: str
    guards: tuple[Guard, ...] = ()


class Edit(msgspec.Struct, frozen=True, tag="edit"):
    """Change annotations of a pod, node or SharePod, if they are still what they were.

    Attributes:
        target: whose annotations; ``part`` is not looked at.
        resource_version: that of the pod or SharePod as it was seen; "" for a node, whose
            version changes with every heartbeat: there only the values count.
        before: each annotation as it was, None where there was none: the before-image.
        after: each as it is to be, None to remove it. Same keys.
        unbind: clear a SharePod's ``spec.nodeName``, which was this; "" leaves it alone.
        bind: make a SharePod's ``spec.nodeName`` this again; only what undoes an edit does so.
        guards: what must still be so.
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
        """Whether it is about where a SharePod is bound: from ``unbind`` to ``bind``."""
        return bool(self.unbind or self.bind)

    def __post_init__(self) -> None:
        """Raises ValueError: what has no before-image can neither be checked nor undone."""
        if self.before.keys() != self.after.keys():
            raise ValueError("before and after are of other annotations")


class RemoveFolder(msgspec.Struct, frozen=True, tag="remove_folder"):
    """Remove a shim's folder, if it is still this very one and nobody uses it."""

    path: str
    pod_uid: str
    identity: tuple[int, int, int]


Action = Evict | Edit | RemoveFolder

_DIGEST: Final = 8
"""Bytes by which memory tells findings of one rule about one object apart."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong, about one object.

    Attributes:
        rule: who found it.
        cause: the reason code.
        subject: about what.
        evidence: what shows it, in words that a person can check; never empty.
        since: when it began at the latest, by another machine's clock (unix seconds); None if
            nothing tells: then it counts from when we first saw it.
        grace: seconds that it must have been so before it is acted on.
        effect: what acting is good for.
        action: what would repair it, done to the object itself; None if it can only be reported.
        objection: why the rule itself would not act now.
        part: which part of the object it is about, if each is found by itself.
    """

    rule: Rule
    cause: Cause
    subject: ObjectRef
    evidence: tuple[str, ...]
    since: float | None = None
    grace: float = 0.0
    effect: Effect = Effect.RECOVERY
    action: Action | None = None
    objection: SkipReason | None = None
    part: str = ""

    @property
    def replaces(self) -> bool:
        """Whether acting makes an owner create another pod: it evicts, and not to tidy up."""
        return isinstance(self.action, Evict) and self.effect is Effect.RECOVERY

    @property
    def key(self) -> str:
        """What memory calls it: with another text in its annotations it is another finding.

        Else a node whose lock is taken and released all the time would look as if it had one old
        lock, whenever we happen to look between. The evidence makes no difference: amounts change.
        """
        told = self.part.encode(errors="surrogatepass")
        if isinstance(self.action, Edit):
            told += msgspec.json.encode(self.action.before, order="sorted")
        digest = hashlib.blake2s(told, digest_size=_DIGEST).hexdigest() if told else ""
        return f"{self.rule}/{self.subject.key}/{digest}"


# ---------------------------------------------------------------- the plan


class Entry(msgspec.Struct, frozen=True):
    """An object in a plan: its leading finding, and the other rules that found it too.

    ``skip`` is why it is skipped, None for an action and for what is only reported;
    ``detail`` reports the rest of it: for how long yet, by which limit. ``owner`` is the UID of its
    controller, "" if it has none.
    """

    finding: Finding
    also: tuple[Rule, ...] = ()
    owner: str = ""
    skip: SkipReason | None = None
    detail: str = ""


class Breaker(msgspec.Struct, frozen=True):
    """The circuit breaker: ``wanted`` actions of at most ``allowed``, with ``pods`` GPU pods.

    ``pods`` are those that live, and ask for a share of a GPU or hold a claim to one. Of tidying
    and repairs, what one rule wants in one namespace, or of a node's folders, is ``wanted`` once.
    """

    wanted: int
    allowed: int
    pods: int

    @property
    def tripped(self) -> bool:
        """Whether nothing may be done."""
        return self.wanted > self.allowed


class Plan(msgspec.Struct, frozen=True):
    """What is to be done, in this order, and every object that is skipped with its reason.

    Attributes:
        id: the same for the same actions.
        made_at: unix seconds.
        scope: from where it was seen.
        actions: to be applied.
        skipped: what a rule would act on, were it not for ``skip``.
        findings: what can only be reported.
        breaker: how near it is to tripping.
        subjects: how many of each kind were looked at.
        notes: what a reader must know, in words.
    """

    id: str
    made_at: float
    scope: Scope
    actions: tuple[Entry, ...]
    skipped: tuple[Entry, ...]
    findings: tuple[Entry, ...]
    breaker: Breaker
    subjects: Mapping[str, int] = {}
    notes: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All of them."""
        return (*self.actions, *self.skipped, *self.findings)


class ActionResult(msgspec.Struct, frozen=True):
    """What became of one action; ``detail`` in the words of the API server or file system."""

    entry: Entry
    outcome: ActionOutcome
    detail: str = ""
    at: float = 0.0
