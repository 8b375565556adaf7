"""A small model of a node and what happens to it, and what each source would say of it.

Every part keeps or loses just what the real one does. The scheduler writes annotations, which
survive everything. The kubelet frees devices lazily, its checkpoint keeps the dead until it is
written again, and after a restart it reports nothing through pod-resources until it has synced. Its
device IDs are not those of the GPU. Our own checkpoint is of one boot. Regions stay on disk.
"""

from dataclasses import dataclass, field

from tests.ledger.ledger_values import NODE, A, B, statement_of
from vgpu.ledger import Evidence, Wanted
from vgpu.model.allocation import Device, Request
from vgpu.model.names import Phase, PodRef, Scheme, Source
from vgpu.model.objects import Container, ContainerState, Pod, Status, holds_devices
from vgpu.model.units import GIB

GPUS = (
    Device(uuid=A, index=0, memory_bytes=10 * GIB),
    Device(uuid=B, index=1, memory_bytes=10 * GIB),
)
CAPACITY = {A: 10, B: 10}
RESOURCE = "nvidia.com/gpu"
IDS = tuple(f"id-{number}" for number in range(5))


@dataclass
class ApiPod:
    """What the API server has of a pod; ``gpu`` and ``gib`` are in its annotations."""

    uid: str
    gpu: str
    gib: int
    assigned: bool = False
    phase: str = "Pending"
    state: ContainerState | None = None
    deleted: bool = False

    def pod(self):
        return Pod(
            ref=PodRef(self.uid, "team", f"pod-{self.uid}"),
            node=NODE,
            containers=(Container("main", {RESOURCE: 1}),),
            phase=self.phase,
            statuses=(Status("main", self.state),) if self.state else (),
            deleted_at=1.0 if self.deleted else None,
        )


@dataclass(frozen=True)
class Allocated:
    """What Allocate gave: the kubelet's ID, and the GPU that the plugin answered with."""

    device_id: str
    gpu: str
    gib: int


@dataclass
class World:
    """The node. ``allocated`` is the truth about every pod that was ever admitted."""

    api: dict = field(default_factory=dict)
    allocated: dict = field(default_factory=dict)
    live: set = field(default_factory=set)
    cgroups: set = field(default_factory=set)
    admitted: dict = field(default_factory=dict)  # in the kubelet's memory
    checkpoint: dict = field(default_factory=dict)  # its file
    own: dict = field(default_factory=dict)
    own_boot: int = 0
    boot: int = 0
    regions: set = field(default_factory=set)
    synced: bool = True
    plugin_up: bool = True
    made: int = 0

    # ------------------------------------------------------------ who is what

    def holds(self, uid):
        """According to the API server."""
        return uid in self.api and holds_devices(self.api[uid].pod())

    def active(self, uid):
        """Whether the kubelet counts the pod: one that was deleted, until its cgroup is gone."""
        return self.holds(uid) if uid in self.api else uid in self.cgroups

    def holders(self):
        """Who holds something, and where: by what was allocated, else by what was reserved."""
        uids = {uid for uid in self.api if self.holds(uid)} | self.live
        uids |= {uid for uid in self.cgroups if uid not in self.api and uid in self.allocated}
        return {
            uid: self.allocated[uid].gpu if uid in self.allocated else self.api[uid].gpu
            for uid in uids
        }

    # ------------------------------------------------------------ the cluster

    def bind(self, gpu, gib):
        """The scheduler counts what the annotations of pods say that are not over.

        Gives the new pod's UID, None if it does not fit.
        """
        booked = sum(pod.gib for pod in self.api.values() if pod.gpu == gpu and self.holds(pod.uid))
        if booked + gib > CAPACITY[gpu]:
            return None
        self.made += 1
        uid = f"u{self.made}"
        self.api[uid] = ApiPod(uid, gpu, gib)
        return uid

    def delete(self, uid):
        self.api[uid].deleted = True

    def finalize(self, uid, *, force=False):
        """The object goes when the kubelet has reported the end; by force at once."""
        if force or uid not in self.live | self.cgroups:
            del self.api[uid]

    # ------------------------------------------------------------ the kubelet and the plugin

    def admit(self, uid, *, crossed):
        """Allocate; ``crossed`` is a plugin that mistakes the pod for another one."""
        pod = self.api[uid]
        if not (self.synced and self.plugin_up and self.holds(uid)) or uid in self.allocated:
            return
        self.admitted = {other: g for other, g in self.admitted.items() if self.active(other)}
        free = [one for one in IDS if one not in {g.device_id for g in self.admitted.values()}]
        if not free:
            pod.phase = "Failed"
            return
        gpu = {A: B, B: A}[pod.gpu] if crossed else pod.gpu
        self.allocated[uid] = self.admitted[uid] = Allocated(free[0], gpu, pod.gib)
        self.checkpoint = dict(self.admitted)
        self.own = {other: g for other, g in self.own.items() if self.own_boot == self.boot}
        self.own[uid], self.own_boot = self.allocated[uid], self.boot
        pod.assigned = True
        self.cgroups.add(uid)

    def start(self, uid):
        if uid in self.allocated and self.holds(uid) and not self.api[uid].deleted:
            self.api[uid].phase, self.api[uid].state = "Running", ContainerState.RUNNING
            self.cgroups.add(uid)
            self.live.add(uid)
            self.regions.add(uid)

    def stop(self, uid):
        """The container's processes end; the kubelet reports it."""
        self.live.discard(uid)
        if uid in self.api and self.api[uid].state:
            self.api[uid].state = ContainerState.TERMINATED

    def finish(self, uid, phase):
        self.stop(uid)
        self.api[uid].phase = phase

    def remove_cgroup(self, uid):
        if uid not in self.live and not (self.holds(uid) and uid in self.allocated):
            self.cgroups.discard(uid)

    def collect_regions(self):
        self.regions = {uid for uid in self.regions if uid in self.api or uid in self.live}

    # ------------------------------------------------------------ restarts

    def restart_kubelet(self, *, lose_checkpoint=False):
        if lose_checkpoint:
            self.checkpoint = {}
        self.admitted, self.synced = dict(self.checkpoint), False

    def up(self):
        """Kubelet and plugin are ready."""
        self.synced = self.plugin_up = True

    def reboot(self):
        """Nothing runs; the API server does not know it yet; disks keep what they have."""
        self.live, self.cgroups = set(), set()
        self.boot += 1
        self.plugin_up = False
        self.restart_kubelet()

    # ------------------------------------------------------------ what the sources say

    def evidence(self):
        """Everything that can be read at this moment."""
        words = {
            Source.PROCESS: [
                statement_of(Source.PROCESS, self.allocated[u].gpu, uid=u) for u in self.live
            ],
            Source.CHECKPOINT: [
                self._word(Source.CHECKPOINT, uid, allocated.gpu)
                for uid, allocated in self.checkpoint.items()
            ],
            Source.SHIM: [
                statement_of(Source.SHIM, g.gpu, g.gib, uid=u, alive=u in self.live)
                for u in self.regions
                if (g := self.allocated[u])
            ],
            Source.ANNOTATIONS: [
                statement_of(
                    Source.ANNOTATIONS,
                    pod.gpu,
                    pod.gib,
                    uid=uid,
                    phase=Phase.ASSIGNED if pod.assigned else Phase.ASSUMED,
                )
                for uid, pod in self.api.items()
            ],
        }
        if self.synced:
            words[Source.POD_RESOURCES] = [
                self._word(Source.POD_RESOURCES, uid, "")
                for uid in self.admitted
                if self.active(uid)
            ]
        if self.own_boot == self.boot:
            words[Source.OWN_CHECKPOINT] = [
                self._word(Source.OWN_CHECKPOINT, uid, allocated.gpu)
                for uid, allocated in self.own.items()
            ]
        pods = [pod.pod() for pod in self.api.values()]
        return Evidence(
            node=NODE,
            devices=GPUS,
            statements=tuple(one for those in words.values() for one in those),
            pods=tuple(pods),
            pods_complete=True,
            live_pods=frozenset(self.cgroups),
            wanted=tuple(
                Wanted(
                    pod.ref,
                    Request("main", 1),
                    Scheme.VOLCANO,
                    RESOURCE,
                    self.api[pod.ref.uid].state is ContainerState.RUNNING,
                )
                for pod in pods
                if holds_devices(pod)
            ),
            read=frozenset(words),
        )

    def _word(self, source, uid, gpu):
        """The kubelet's statement, or one that repeats it; a GPU only where the answer is known."""
        allocated = self.allocated[uid]
        slices = ((RESOURCE, (allocated.device_id,)),)
        return statement_of(source, gpu, allocated.gib, uid=uid, slices=slices)
