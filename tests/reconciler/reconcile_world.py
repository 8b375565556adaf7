"""A small model of a cluster that shares GPUs: what goes wrong in it, and what is really so.

Every part does what the real one does, as far as the reconciler can see it. Controllers recreate
pods. A scheduler promises a GPU and locks the node, and may die between any two of its writes.
The kubelet calls Allocate once; the plugin does not learn for which pod, and takes the lock's owner
or else the first pod that waits. What was really allocated to whom is in ``given``: only the tests
look there. The world has the same hands as the API server, with its preconditions.
"""

from dataclasses import dataclass, field

from tests.reconciler.samples import (
    GPU,
    GPUS,
    NOW,
    SHARE,
    claimed,
    lock,
    no_gpu_matched,
    node,
    owner,
    pod,
    replace,
    snapshot,
    waiting,
)
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.documents import ObjectPage
from vgpu.model.names import Phase, PodRef
from vgpu.model.objects import ContainerState, Status, holds_devices

STYLES = {"hami-1": "hami", "volcano-1": "volcano", "share-1": "gpushare"}
"""The nodes, and in which style they share."""

ROOM = GPUS * GPU // SHARE
"""Pods that a node has room for."""

LOCKED = ("hami", "volcano")
"""Styles whose schedulers lock the node."""


@dataclass(frozen=True)
class Controller:
    """Somebody who wants so many pods of a style."""

    kind: str
    name: str
    style: str
    replicas: int
    namespace: str = "ml"

    @property
    def owner(self):
        return owner(self.kind, self.name) if self.kind else None


@dataclass
class World:
    """The cluster. ``admitted`` and ``given`` are the truth that no annotation has."""

    now: float = NOW
    made: int = 0
    version: int = 0
    nodes: dict = field(default_factory=dict)
    pods: dict = field(default_factory=dict)  # by UID
    controllers: dict = field(default_factory=dict)  # by UID
    admitted: set = field(default_factory=set)
    given: dict = field(default_factory=dict)  # UID -> the UID whose claim it was allocated
    styles: dict = field(default_factory=dict)  # UID -> style
    gpus: dict = field(default_factory=dict)  # UID -> the GPU that it was promised
    locked_by: dict = field(default_factory=dict)  # node -> the UID that the lock serves
    stubborn: set = field(default_factory=set)  # UIDs that some webhook never lets go

    def __post_init__(self):
        self.nodes = {
            name: node(name, style, uid=f"uid-of-{name}") for name, style in STYLES.items()
        }

    # ------------------------------------------------------------ the API server

    def write(self, changed):
        self.version += 1
        changed = replace(changed, resource_version=str(self.version))
        if isinstance(getattr(changed, "ref", None), PodRef):
            self.pods[changed.ref.uid] = changed
        else:
            self.nodes[changed.name] = changed

    def annotate(self, thing, annotations):
        kept = {**thing.annotations, **annotations}
        kept = {key: text for key, text in kept.items() if text is not None}
        self.write(replace(thing, annotations=kept))

    def remove(self, uid):
        self.pods.pop(uid, None)

    def view(self, **fields):
        """What the reconciler sees."""
        nodes, pods = self.nodes.values(), self.pods.values()
        return snapshot(*nodes, *pods, now=self.now, **fields)

    # ------------------------------------------------------------ what is really so

    def may_be_served(self, uid):
        """Whether the kubelet may yet call Allocate for it, and find its claim."""
        one = self.pods.get(uid)
        waits = one is not None and one.phase == "Pending" and one.deleted_at is None
        return waits and uid not in self.admitted and self.home(one) != ""

    def home(self, one):
        """Where it is bound, or promised to."""
        promised = next(
            (text for key, text in one.annotations.items() if key.endswith("-node")), ""
        )
        return one.node or promised

    def crossed(self):
        """Pods that were allocated another one's devices."""
        return {uid for uid, other in self.given.items() if uid != other and uid in self.pods}

    def booked(self):
        """Pods that hold a share, by node: as each scheduler counts them."""
        return {
            name: sum(
                1
                for one in self.pods.values()
                if self.home(one) == name and holds_devices(one) and self.has_claim(one)
            )
            for name in self.nodes
        }

    def has_claim(self, one):
        return any(key.startswith(_CLAIMS) for key in one.annotations)

    # ------------------------------------------------------------ the others' doings

    def control(self):
        """Controllers remove what they remove themselves, and make what is missing."""
        for uid, wanted in self.controllers.items():
            mine = [each for each in self.pods.values() if each.owner and each.owner.uid == uid]
            if wanted.kind == "StatefulSet":
                for one in mine:
                    if one.phase == "Failed":
                        self.remove(one.ref.uid)
                mine = [one for one in mine if one.phase != "Failed"]
            alive = [one for one in mine if not one.terminal and one.deleted_at is None]
            for _ in range(wanted.replicas - len(alive)):
                self.make(wanted)

    def make(self, wanted):
        """Somebody creates a pod; of a StatefulSet always under the same names."""
        self.made += 1
        uid, name = f"uid-{self.made}", f"{wanted.name}-{self.made}"
        self.styles[uid] = wanted.style
        if wanted.kind == "StatefulSet":
            taken = {each.ref.name for each in self.pods.values()}
            names = (f"{wanted.name}-{number}" for number in range(wanted.replicas + 9))
            name = next(each for each in names if each not in taken)
        self.write(
            pod(
                name,
                wanted.style,
                node="",
                claim=None,
                uid=uid,
                namespace=wanted.namespace,
                age=NOW - self.now,
                kind=wanted.kind,
                owner=wanted.owner,
                statuses=(),
            )
        )

    def schedule(self, uid, writes=3):
        """The scheduler's writes for one pod, of which it makes so many before it dies."""
        steps = {
            "hami": (self.promise, self.take_lock, self.bind),
            "volcano": (self.take_lock, self.promise, self.bind),
            "gpushare": (self.promise, self.bind),
        }
        if self.pods[uid].phase == "Pending" and not self.pods[uid].node:
            for step in steps[self.styles[uid]][:writes]:
                step(uid)

    def node_for(self, uid):
        return next(name for name, style in STYLES.items() if style == self.styles[uid])

    def has_lock(self, uid):
        where = self.node_for(uid)
        return self.locked_by.get(where) == uid and where in self.locked()

    def promise(self, uid):
        """It chooses a GPU, if its cache has room; each time again until the pod is bound."""
        where = self.node_for(uid)
        others = self.booked()[where] - (self.home(self.pods[uid]) == where)
        if others < ROOM and (self.styles[uid] != "volcano" or self.has_lock(uid)):
            self.gpus[uid] = others % GPUS
            self.claim(uid, where, Phase.ASSUMED)

    def claim(self, uid, where, phase):
        """Writes the promise, or that it was kept, on the pod."""
        one, age = self.pods[uid], NOW - self.now
        annotations = claimed(
            self.styles[uid], one.ref, where, gpu=self.gpus[uid], phase=phase, age=age
        )
        self.annotate(one, annotations)

    def take_lock(self, uid):
        """It locks the node, unless that is locked; HAMi's for a pod that has its promise.

        HAMi's takes a lock that names this pod for its own, after a while: it knows no UIDs.
        """
        one, where, style = self.pods[uid], self.node_for(uid), self.styles[uid]
        mine = lock(one, NOW - self.now, style)
        ((key, text),) = mine.items()
        held = self.nodes[where].annotations.get(key)
        named = held is not None and "," in held and held.split(",")[1:] == text.split(",")[1:]
        if (held is None or named) and (style == "volcano" or self.has_claim(one)):
            self.annotate(self.nodes[where], mine)
            self.locked_by[where] = uid

    def locked(self):
        """Nodes that have a lock."""
        return {
            name
            for name, each in self.nodes.items()
            if any(key in each.annotations for key in ("hami.io/mutex.lock", "hamivgpu"))
        }

    def bind(self, uid):
        """It binds the pod: under its lock, where it locks."""
        one = self.pods[uid]
        if self.has_claim(one) and (self.styles[uid] not in LOCKED or self.has_lock(uid)):
            self.write(replace(one, node=self.node_for(uid), scheduled_at=self.now))

    def admit(self, uid):
        """The kubelet takes the pod in: it calls Allocate, once and for all."""
        one = self.pods[uid]
        here = self.nodes[one.node] if one.node else None
        if not self.may_be_served(uid) or here is None:
            return
        self.admitted.add(uid)
        if not all(here.allocatable.values()):
            self.refuse(uid)
            return
        found = self.candidate(one.node)
        if found is None:
            self.refuse(uid)
            return
        self.given[uid] = found
        self.grant(found)
        started = self.pods[uid]
        self.write(
            replace(
                started,
                started_at=self.now,
                status_at=self.now,
                statuses=(Status("main", ContainerState.WAITING, reason="ContainerCreating"),),
            )
        )

    def candidate(self, where):
        """For whom the plugin takes the kubelet's call to be; HAMi's trusts its lock first."""
        waits = [
            uid
            for uid, one in self.pods.items()
            if one.node == where and one.phase == "Pending" and uid not in self.given.values()
        ]
        holder = self.locked_by.get(where) if STYLES[where] == "hami" else None
        return holder if holder in waits else next(iter(waits), None)

    def grant(self, uid):
        """The plugin allocates the claim: marks it, and releases whatever lock there is."""
        where = self.pods[uid].node
        self.claim(uid, where, Phase.ASSIGNED)
        self.annotate(self.nodes[where], {"hami.io/mutex.lock": None, "hamivgpu": None})
        self.locked_by.pop(where, None)

    def refuse(self, uid):
        """The kubelet does not take it in; the lock stays."""
        failed = replace(
            self.pods[uid],
            phase="Failed",
            reason="UnexpectedAdmissionError",
            message="Pod was rejected: Allocate failed due to no device, which is unexpected",
            status_at=self.now,
            started_at=self.now,
            statuses=(),
        )
        self.write(failed)

    def pass_over(self, uid):
        """The kubelet takes it in, but its plugin serves nobody for it: it waits for ever."""
        one = self.pods[uid]
        if self.may_be_served(uid) and one.node:
            self.admitted.add(uid)
            stuck = waiting(one, "ContainerCreating")
            if self.styles[uid] == "gpushare":
                stuck = no_gpu_matched(one)
            self.write(replace(stuck, started_at=self.now, status_at=self.now))

    def wedge(self, uid):
        """The plugin gave it devices, but does not let it start."""
        if uid in self.given and self.pods[uid].phase == "Pending":
            stuck = waiting(
                self.pods[uid], "CreateContainerConfigError", "PreStartContainer check failed"
            )
            self.write(replace(stuck, status_at=self.now))

    def start(self, uid):
        one = self.pods[uid]
        stuck = any("PreStart" in each.message for each in one.statuses)
        if uid in self.given and one.phase == "Pending" and not stuck:
            runs = (Status("main", ContainerState.RUNNING),)
            self.write(replace(one, phase="Running", statuses=runs, status_at=None))

    def finish(self, uid, phase):
        one = self.pods[uid]
        if one.phase == "Running":
            done = Status("main", ContainerState.TERMINATED, finished_at=self.now)
            self.write(replace(one, phase=phase, statuses=(done,), status_at=self.now))

    def heal(self):
        """Nodes and plugins are well again."""
        for name, style in STYLES.items():
            offered = node(name, style).allocatable
            self.write(replace(self.nodes[name], ready=True, allocatable=offered))

    def quiet(self):
        """One round of controllers, schedulers and kubelets, without a fault."""
        self.control()
        for uid in list(self.pods):
            if self.pods[uid].deleted_at is not None:
                self.remove(uid)
        for uid in list(self.pods):
            if self.pods[uid].phase != "Pending" or uid in self.admitted:
                continue
            self.schedule(uid)
            self.admit(uid)
        for uid in list(self.pods):
            self.start(uid)


_CLAIMS = ("hami.io/vgpu-devices", "volcano.sh/vgpu-ids-new", "ALIYUN_COM_GPU_MEM_IDX")


@dataclass(frozen=True)
class Hands:
    """What the reconciler can do to the world: through the API server, with its preconditions."""

    world: World

    def pod(self, namespace, name):
        for one in self.world.pods.values():
            if (one.ref.namespace, one.ref.name) == (namespace, name):
                return one
        raise ClusterError(404, "NotFound", f'pods "{name}" not found')

    def node(self, name):
        return self.world.nodes[name]

    def pods(self, *, keep=None, field_selector=""):
        where = dict(part.split("=") for part in field_selector.split(","))
        yield ObjectPage(
            tuple(
                one
                for one in self.world.pods.values()
                if (one.node, one.phase) == (where["spec.nodeName"], where["status.phase"])
            )
        )

    def evict(self, pod, resource_version, *, dry_run=False):
        found = self._checked(pod, resource_version)
        if pod.uid in self.world.stubborn:
            raise ClusterError(403, "Forbidden", "an admission webhook denied the request")
        if found.phase == "Running":
            self.world.write(replace(found, deleted_at=self.world.now + 30))
        else:
            self.world.remove(pod.uid)

    def patch_pod(self, pod, resource_version, annotations, *, dry_run=False):
        self.world.annotate(self._checked(pod, resource_version), annotations)
        return self.world.pods[pod.uid]

    def patch_node(self, name, resource_version, annotations, *, dry_run=False):
        found = self.world.nodes[name]
        if found.resource_version != resource_version:
            raise ClusterError(409, "Conflict", "the object has been modified")
        self.world.annotate(found, annotations)
        return self.world.nodes[name]

    def write_event(self, note):
        """Nobody reads them here."""

    def _checked(self, ref, resource_version):
        found = self.pod(ref.namespace, ref.name)
        if (found.ref.uid, found.resource_version) != (ref.uid, resource_version):
            raise ClusterError(409, "Conflict", "the object has been modified")
        return found
