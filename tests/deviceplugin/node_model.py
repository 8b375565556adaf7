"""A whole node in memory: the API server's pods, the kubelet's table, containers that really run.

The plugin's part is the real code over it: candidates, binding, gate, allocation state, recovery,
leaving. The model knows what no part of the plugin can: with which shares each container was really
created.
"""

import msgspec

from deviceplugin.allocate.binder_state import BinderState, by_ids, prestart_check
from deviceplugin.allocate.binding import bind_all
from deviceplugin.allocate.candidates import Claims, candidates, in_order_of_asking
from deviceplugin.allocate.ended_pods import collectable
from deviceplugin.recovery.node_probe import ledger_of
from deviceplugin.recovery.recovered_state import RecoverySources, recover
from tests.deviceplugin.allocation_values import NODE, NUMBER, ROLE, assignment, made, replace
from vgpu.model.allocation import Share
from vgpu.model.facts import (
    ContainerName,
    Gpu,
    GpuProcess,
    GpuSample,
    Grant,
    KubeletSample,
    ProcessOwner,
    ProcessSample,
    Region,
    RegionDevice,
    RegionFile,
    RegionProcess,
    ShimSample,
)
from vgpu.model.names import ContainerKind, Phase, PodRef
from vgpu.model.objects import ContainerState, Pod, Status, holds_devices
from vgpu.schemes.codec import VISIBLE_DEVICES
from vgpu.sources.observation import Observation

INIT = ContainerKind.INIT
CLAIMS = Claims(ROLE.codec)


class Running(msgspec.Struct):
    """A container that was created with these shares, under this name; its first process."""

    name: str
    shares: tuple
    pid: int


class NodeModel:
    """See the module; every method is something that may happen at any time."""

    def __init__(self, gpus, *, cgroups=True, processes=True):
        self.gpus = gpus  # as they were when all was well
        self.devices = gpus
        self.cgroups, self.processes = cgroups, processes
        self.now = 1000.0
        self.pods: dict[str, Pod] = {}
        self.api = True
        self.table = {}  # (UID, container) -> assignment
        self.running: dict[tuple[str, str], Running] = {}
        self.ended = set()  # (UID, container) of init containers
        self.promised = {}  # UID -> container -> shares that may be created for it
        self.specs = {}  # name -> shares, as written first
        self.saved = []  # our checkpoint, the newest last
        self.state: BinderState | None = None  # of the plugin; None: it does not run
        self.expected = set()
        self.gated = True  # whether the kubelet calls PreStartContainer
        self._count = 0

    # ------------------------------------------------------------ the API server's side

    def create(self, uid, containers, name):
        self.pods[uid] = made(uid, containers, name=name, created_at=self.now)
        self._promise(uid, containers)

    def delete(self, uid):
        self.pods[uid] = replace(self.pods[uid], deleted_at=self.now)

    def remove(self, uid):
        """The object is gone, whatever runs: by force, or after everything has ended."""
        del self.pods[uid]

    def end(self, uid, phase):
        """The kubelet reports it, or, while something runs, the node was deregistered."""
        self.pods[uid] = replace(self.pods[uid], phase=phase)

    def _promise(self, uid, containers):
        """What each container may be created with: its claim's, or what it inherits."""
        own = {name: shares for name, kind, shares in containers if kind is not INIT}
        self.promised[uid] = {name: [shares] for name, shares in own.items()}
        for name, kind, asked in containers:
            if kind is INIT:
                fitting = [
                    tuple(map(_part, shares, asked))
                    for shares in own.values()
                    if len(shares) == len(asked) and all(map(_covers, shares, asked))
                ]
                self.promised[uid][name] = fitting[:1]

    # ------------------------------------------------------------ the kubelet's side

    def original(self, uid, containers, name, given):
        """A pod that the original plugin has served, in its way: perhaps with others' GPUs."""
        pod = made(uid, containers, name=name, phase=Phase.ASSIGNED, created_at=self.now)
        self.pods[uid] = pod
        self._promise(uid, containers)
        for container, kind, promised in containers:
            if kind is not INIT:
                shares = given or promised
                self.promised[uid][container].append(shares)
                self.table[uid, container] = self._assigned(pod, container, "", _env(shares))
                self._run(uid, container, "", shares)

    def admit(self, uid, container, *, heard):
        """Allocate for one container; ``heard`` is whether the kubelet lives to write it down."""
        self.forget_the_dead()
        pod = self.pods[uid]
        spec = next(one for one in pod.containers if one.name == container)
        if self.api:
            pods, answered = self.pods.values(), self.table.keys()
            asked = spec.limits[NUMBER]
            found = candidates(
                CLAIMS, pods, self.state.allocation_state, NUMBER, asked, answered=answered
            )
            assert (uid, container) in [(one.pod.ref.uid, one.container) for one in found]
        self._count += 1
        name = f"{self._count:024x}"
        self.expected.add(name)
        if heard:
            self.table[uid, container] = self._assigned(pod, container, name, None)

    def start(self, uid, container):
        """Whether the container is created, which is up to PreStartContainer and to its spec."""
        given = self.table[uid, container]
        if self.gated and (self.state is None or prestart_check(self.state, given.ids)):
            return False
        if given.name and given.name not in self.specs:
            return False  # unresolvable CDI devices
        shares = self.specs[given.name] if given.name else _shares(given.answer.env)
        assert shares in self.promised[uid][container]
        self._run(uid, container, given.name, shares)
        return True

    def stop(self, uid, container):
        """It ends; an init container has then done its work."""
        del self.running[uid, container]
        kinds = (
            {one.name: one.kind for one in self.pods[uid].containers} if uid in self.pods else {}
        )
        if kinds.get(container) is INIT:
            self.ended.add((uid, container))
        self._set_status(uid, container, ContainerState.TERMINATED)

    def startable(self):
        """(UID, container) that the kubelet may try to start."""
        return [
            (uid, container)
            for uid, container in self.table
            if (uid, container) not in self.running
            and (uid, container) not in self.ended
            and uid in self.pods
            and not self.pods[uid].terminal
            and self.pods[uid].deleted_at is None
            and self._is_turn(uid, container)
        ]

    def admittable(self):
        """(UID, container) that the kubelet may call Allocate for."""
        return [
            (uid, one.name)
            for uid, pod in self.pods.items()
            if not pod.terminal and pod.deleted_at is None
            for one in in_order_of_asking(pod)
            if one.limits
            and (uid, one.name) not in self.table
            and (uid, one.name) not in self.running
            and (uid, one.name) not in self.ended
        ]

    def forget(self):
        """The kubelet starts without its checkpoint."""
        self.table = {}

    def _is_turn(self, uid, container):
        inits = [one.name for one in self.pods[uid].containers if one.kind is INIT]
        if container in inits:
            return not any(of == uid for of, _ in self.running)
        return all((uid, name) in self.ended for name in inits)

    def forget_the_dead(self):
        """What the kubelet does before it allocates IDs.

        One that has lost sight of a pod may do so while its containers still run.
        """
        for uid, container in [*self.table]:
            pod = self.pods.get(uid)
            kept = pod is not None and not pod.terminal
            if not kept and (self.cgroups or not any(of == uid for of, _ in self.running)):
                del self.table[uid, container]

    def _assigned(self, pod, container, name, env):
        """With the first IDs that are free: they are used again as soon as can be."""
        count = next(one.limits[NUMBER] for one in pod.containers if one.name == container)
        taken = {each for one in self.table.values() for each in one.ids}
        ids = [each for each in (f"id-{n}" for n in range(99)) if each not in taken][:count]
        return assignment(pod, container, name, ids, env)

    def _run(self, uid, container, name, shares):
        self._count += 1
        self.running[uid, container] = Running(name, shares, self._count)
        self._set_status(uid, container, ContainerState.RUNNING)

    def _set_status(self, uid, container, state):
        """The kubelet's status of the pod."""
        pod = self.pods.get(uid)
        if pod is not None and not pod.terminal:
            others = tuple(one for one in pod.statuses if one.name != container)
            status = Status(container, state, id=f"id-{container}")
            self.pods[uid] = replace(pod, phase="Running", statuses=(*others, status))

    # ------------------------------------------------------------ the plugin's side

    def bind(self, until):
        """One look of the binder, which dies after so many of its steps."""
        state = replace(self.state, assignments=by_ids(self.table.values()))
        known = self.pods if self.api else {}
        found = bind_all(
            ROLE,
            NODE,
            state,
            lambda one: known.get(one.pod_uid),
            recent=self.expected,
            now=self.now,
        )
        if until == 0:
            return self.kill()
        if found.allocation_state is not state.allocation_state:
            self.saved.append(tuple(found.allocation_state.admitted_pods.values()))
        ready = set(state.ready)
        for step, (one, _) in enumerate(found.bound, 1):
            if until == step:
                return self.kill()
            self.specs.setdefault(one.name, found.allocation_state.binding_of(one).shares)
            ready.add(one.name)
        self.expected -= {one.name for one in self.table.values()}
        self.state = BinderState(
            found.allocation_state, state.assignments, found.refusals, frozenset(ready)
        )
        return None

    def sweep(self):
        """A pod that has left is forgotten, and files that no container uses are removed."""
        allocation_state = self.state.allocation_state
        pods = self.pods.values() if self.api else None
        for uid in collectable(
            allocation_state, pods, self.live_pods(), {uid for uid, _ in self.table}, self.now
        ):
            allocation_state = allocation_state.without(uid)
        self.saved.append(tuple(allocation_state.admitted_pods.values()))
        kept = {
            one.name
            for admitted_pod in allocation_state.admitted_pods.values()
            for one in admitted_pod.bindings
        }
        kept |= self.expected | {one.name for one in self.table.values()}
        self.specs = {name: shares for name, shares in self.specs.items() if name in kept}
        self.state = replace(
            self.state, allocation_state=allocation_state, ready=self.state.ready & kept
        )

    def change(self, devices):
        self.devices = devices
        if self.state is not None:
            self.state = replace(
                self.state, allocation_state=self.state.allocation_state.with_devices(devices)[0]
            )

    def kill(self):
        self.state = None
        self.expected = set()

    def boot(self, own, *, table=True):
        """The plugin starts; ``table`` is whether the kubelet's checkpoint can be read."""
        pods = tuple(self.pods.values()) if self.api else None
        sources = RecoverySources(
            self.ledger(own, table=table),
            tuple(self.table.values()) if table else None,
            pods,
            self.live_pods(),
            frozenset(self.specs),
        )
        recovery = recover(ROLE.codec, self.devices, own, sources, self.now)
        if recovery.unsettled and pods is None:
            return False  # it waits for the API server
        self.state = BinderState(recovery.allocation_state, ready=frozenset(self.specs))
        return True

    # ------------------------------------------------------------ what can be seen

    def live_pods(self):
        """A pod has its cgroup from its first start on, and until its last container has ended."""
        begun = {u for u, pod in self.pods.items() if pod.statuses and holds_devices(pod)}
        return frozenset(begun | {u for u, _ in self.running}) if self.cgroups else None

    def ledger(self, own, *, table=True):
        """Of what the real sources would bring."""
        uuids = {gpu.uuid for gpu in self.devices}
        owners = {
            one.pid: ProcessOwner(f"{one.pid:064x}", uid, "containerd")
            for (uid, _), one in self.running.items()
        }
        names = {
            owner.container_id: ContainerName("team", uid, container, uid)
            for ((uid, container), one) in self.running.items()
            for owner in (owners[one.pid],)
        }
        seen = Observation(
            gpu=GpuSample(
                tuple(_gpu(gpu) for gpu in self.devices),
                lost=tuple(gpu.uuid for gpu in self.gpus if gpu.uuid not in uuids),
                processes=tuple(
                    GpuProcess(one.pid, share.device, None)
                    for one in self.running.values()
                    for share in one.shares
                    if self.processes and share.device in uuids
                ),
                processes_known=frozenset(uuids),
            ),
            shim=ShimSample(
                tuple(region_report(*place, one) for place, one in self.running.items())
            ),
            kubelet=KubeletSample(
                {uid: PodRef(uid, "team", uid) for uid, _ in self.running},
                names,
                tuple(map(_grant, self.table.values())) if table else None,
            ),
            process=ProcessSample(owners, sees_host=True, live_pods=self.live_pods()),
        )
        pods = tuple(self.pods.values()) if self.api else None
        return ledger_of(ROLE.codec, NODE, seen, self.devices, own=own, pods=pods)

    def is_live(self, uid):
        """Whether the pod may have devices, as the model knows."""
        running = any(of == uid for of, _ in self.running)
        return running or (uid in self.pods and holds_devices(self.pods[uid]))


def _covers(share, asked):
    return share.memory_bytes >= asked.memory_bytes and share.cores_milli >= asked.cores_milli


def _part(share, asked):
    """Of the device, as much as is asked for; cores that are not requested are not counted."""
    return Share(share.device, asked.memory_bytes, asked.cores_milli or share.cores_milli)


def _env(shares):
    """The original plugin's answer."""
    env = {VISIBLE_DEVICES: ",".join(one.device for one in shares)}
    env["CUDA_DEVICE_SM_LIMIT"] = str(shares[0].cores_milli // 10)
    for at, one in enumerate(shares):
        env[f"CUDA_DEVICE_MEMORY_LIMIT_{at}"] = f"{one.memory_bytes >> 20}m"
    return env


def _shares(env):
    """What such an answer gives."""
    return tuple(
        Share(
            device,
            int(env[f"CUDA_DEVICE_MEMORY_LIMIT_{at}"][:-1]) << 20,
            int(env["CUDA_DEVICE_SM_LIMIT"]) * 10,
        )
        for at, device in enumerate(env[VISIBLE_DEVICES].split(","))
    )


def _gpu(gpu):
    readings = {("memory_total_bytes",): float(gpu.memory_bytes)}
    return Gpu(gpu.uuid, gpu.index, {"name": gpu.model}, readings)


def region_report(uid, container, one):
    devices = tuple(
        RegionDevice(share.device, share.memory_bytes, share.cores_milli // 10)
        for share in one.shares
    )
    slot = RegionProcess(1, one.pid, 1, ())
    region = Region("v1.2", devices, (slot,), 1, 1, 2, 0, None, 1, 2)
    return RegionFile(f"/regions/{uid}_{container}", uid, container, region)


def _grant(one):
    return Grant(one.pod_uid, one.container, NUMBER, tuple(sorted(one.ids)), one.answer.env)
