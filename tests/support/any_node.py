"""Whole nodes at random: what each source may bring of a few pods on a few devices.

The samples fit together about as often as not: regions name devices that were never allocated,
pids are another pod's by now, pods have ended, files name pods that are no more, and any source
may be missing.
"""

from functools import cache
from random import Random

from hypothesis import strategies as st

from vgpu.ledger import Statement
from vgpu.model.allocation import Share
from vgpu.model.facts import (
    ContainerName,
    Gpu,
    GpuProcess,
    GpuSample,
    Grant,
    HeldDevices,
    KubeletSample,
    LimitFile,
    LimitSample,
    PodPids,
    ProcessOwner,
    ProcessSample,
    Region,
    RegionDevice,
    RegionFile,
    RegionProcess,
    RegionUse,
    ShimSample,
)
from vgpu.model.names import ContainerKind, PodRef, Scheme, Source
from vgpu.model.objects import Container, ContainerState, Pod, Status
from vgpu.model.units import GIB, MIB
from vgpu.sources.observation import Observation, with_names
from vgpu.sources.own_checkpoint import OwnSample
from vgpu.sources.pods import pod_sample

NODE = "node-1"
NOW = 1_790_000_000.0
A, B, GONE = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "abc")
INSTANCE = "MIG-dddddddd-0000-0000-0000-000000000000"
PODS = tuple(PodRef(f"{n}" * 8 + "-1111-1111-1111-111111111111", "ml", f"pod-{n}") for n in "123")
CONTAINERS = ("main", "main", "side")
NAMED = (A, A, A, B, B, INSTANCE, GONE)
"""Devices as sources name them; the node has no GPU ``GONE``, unless it is lost."""

SIZES = (GIB, 2 * GIB, 4 * GIB)


def any_node(random: Random) -> Observation:
    """One observation."""
    pids = {pid: any_owner(random, pid) for pid in range(100, 108) if random.random() < 0.8}
    pods = any_pods(random)
    return Observation(
        gpu=maybe(random, any_driver),
        shim=maybe(random, any_regions),
        kubelet=with_names(maybe(random, any_kubelet), pods),
        limits=maybe(random, any_limits),
        own=maybe(random, any_own),
        process=maybe(random, lambda chance: any_kernel(chance, pids)),
        pods=pods,
        at=NOW,
    )


def maybe(random, make):
    """What is made, most of the time."""
    return make(random) if random.random() < 0.85 else None


def any_pod(random):
    return random.choice(PODS)


def any_owner(random, pid):
    """Of a process: a container of a pod, one that has no name, one outside Kubernetes, or none."""
    kind = random.random()
    if kind < 0.1:
        return None
    if kind < 0.2:
        return ProcessOwner(f"{pid}" * 20, "", "docker")
    place = any_pod(random), random.choice([*CONTAINERS, "unnamed"])
    return ProcessOwner(container_id(*place), place[0].uid, "containerd")


def container_id(pod, container):
    return f"{pod.name}-{container}"


# ---------------------------------------------------------------- driver and kernel


def any_driver(random):
    total = {("memory_total_bytes",): 24.0 * GIB}
    used = {("memory_used_bytes",): 16.0 * GIB}
    gpus = [
        Gpu(uuid, index, {"pci_bus_id": f"00000000:0{index + 1}:00.0"}, total | used)
        for index, uuid in enumerate((A, B))
    ]
    if random.random() < 0.3:
        gpus.append(Gpu(INSTANCE, 0, {}, total | used, parent=B))
    uuids = [gpu.uuid for gpu in gpus]
    known = frozenset(uuid for uuid in uuids if random.random() < 0.9)
    processes = tuple(
        GpuProcess(pid, uuid, random.choice([*SIZES, *SIZES, None]))
        for pid in range(100, 108)
        for uuid in random.sample(uuids, random.choice([0, 1, 1, 2]))
        if uuid in known
    )
    return GpuSample(
        tuple(gpus),
        lost=(GONE,) if random.random() < 0.1 else (),
        processes=processes,
        processes_known=known,
        utilization={(one.pid, one.device): 0.25 for one in processes if random.random() < 0.8},
        utilization_known=frozenset(uuid for uuid in uuids if random.random() < 0.8),
        unplaced=(GpuProcess(random.choice(range(100, 108)), B, MIB),)
        if INSTANCE in uuids and random.random() < 0.5
        else (),
        complete=random.random() < 0.9,
    )


def any_kernel(random, owners):
    live = frozenset(pod.uid for pod in PODS if random.random() < 0.75)
    bare = tuple(
        (owner, f"/proc/{pid}/root/tmp/cudevshr.cache", any_region(random))
        for pid, owner in owners.items()
        if owner and random.random() < 0.1
    )
    return ProcessSample(
        owners,
        sees_host=random.random() < 0.9,
        live_pods=live if random.random() < 0.85 else None,
        bare=bare,
        ended=frozenset({107} - owners.keys() if random.random() < 0.5 else ()),
        pod_pids={pod.uid: any_pids(random, pod) for pod in PODS if random.random() < 0.5},
    )


def any_pids(random, pod):
    inside = {1: random.choice(range(100, 108))} if random.random() < 0.5 else {}
    return PodPids({container_id(pod, random.choice(CONTAINERS)): inside}, random.random() < 0.8)


# ---------------------------------------------------------------- files


def any_region(random):
    names = dict.fromkeys(random.choice(NAMED) for _ in range(random.choice([1, 1, 1, 2])))
    devices = tuple(
        RegionDevice(name, random.choice([0, *SIZES, 2**50, None]), random.choice([0, 30, 100]))
        for name in names
    )
    slots = tuple(any_slot(random, len(devices)) for _ in range(random.choice([0, 1, 2])))
    return Region(
        layout=random.choice(["v1.2", "v1.2", "p0"]),
        devices=devices,
        processes=slots,
        proc_num=len(slots),
        utilization_switch=1,
        recent_kernel=random.choice([2, -1]),
        priority=random.choice([0, 1, -1]),
        last_kernel_time=random.choice([None, 1000, 2**40]),
        major_version=1,
        minor_version=2,
    )


def any_slot(random, devices):
    def use():
        total = random.choice([0, *SIZES, 2**50, None])
        return RegionUse(0, 0, total, 0, total, random.choice([None, 40]))

    pid = random.choice([0, *range(100, 108), 999])
    used = tuple(use() for _ in range(devices))
    return RegionProcess(1, pid, random.choice([0, 1, 1, 2]), used)


def any_regions(random):
    files = []
    for number in range(random.randint(0, 4)):
        pod, container = any_pod(random), random.choice(CONTAINERS)
        path = f"/regions/{number}/{pod.uid}_{container}/x.cache"
        files.append(RegionFile(path, pod.uid, container, any_region(random)))
    return ShimSample(tuple(files))


def any_limits(random):
    return LimitSample(
        tuple(any_limit(random, number) for number in range(random.choice([0, 0, 1, 2])))
    )


def any_limit(random, number):
    pod = any_pod(random)
    device = random.choice([{"device": random.choice(NAMED)}, {"pci_bus_id": "0000:02:00.0"}])
    amounts = {
        "memory_bytes": random.choice([None, *SIZES, 2**50]),
        "cores_percent": random.choice([None, 60]),
        "cores_request_percent": random.choice([None, 50]),
    }
    path = f"/limits/{number}"
    if random.random() < 0.5:
        name = random.choice([*CONTAINERS, "", "forged"])
        return LimitFile(Scheme.GAIA, path, pod_uid=pod.uid, container=name, **device, **amounts)
    return LimitFile(
        Scheme.KUBESHARE, path, namespace=pod.namespace, pod=pod.name, **device, **amounts
    )


# ---------------------------------------------------------------- the kubelet and our own plugin


def any_kubelet(random):
    pods = {pod.uid: pod for pod in PODS if random.random() < 0.9}
    if random.random() < 0.1 and PODS[0].uid in pods:  # it was deleted and recreated
        pods["f" * 36] = PodRef("f" * 36, "ml", PODS[0].name)
    containers = {
        container_id(pod, name): ContainerName("ml", pod.name, name, pod.uid)
        for pod in pods.values()
        for name in dict.fromkeys(CONTAINERS)
        if random.random() < 0.8
    }
    places = {(any_pod(random), random.choice(CONTAINERS)): n for n in range(random.randint(0, 4))}
    grants = [
        grant for place, number in places.items() for grant in any_grants(random, *place, number)
    ]
    held = {
        HeldDevices("ml", pod.name, "main", "volcano.sh/vgpu-number"): frozenset({f"id-{number}"})
        for number, pod in enumerate(PODS)
        if random.random() < 0.3
    }
    return KubeletSample(
        pods,
        containers,
        tuple(grants) if random.random() < 0.85 else None,
        held=held if random.random() < 0.3 else None,
        named=random.random() < 0.9,
    )


ENVIRONMENTS = {
    "volcano.sh/vgpu-number": {"CUDA_DEVICE_MEMORY_LIMIT_0": "2048m"},
    "nvidia.com/gpu": {},
    "nvidia.com/gpumem": {"CUDA_DEVICE_MEMORY_LIMIT_0": "2048m"},
    "aliyun.com/gpu-mem": {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "2",
        "ALIYUN_COM_GPU_MEM_DEV": "24",
        "ALIYUN_COM_GPU_MEM_POD": "2",
    },
    "tencent.com/vcuda-core": {},
}
"""The resource by which a container gets a device -> what its plugin answers beside."""


def any_grants(random, pod, name, number):
    """The grants of one container: of gpu-manager's two resources, of others one."""
    device, resource = random.choice(NAMED), random.choice([*ENVIRONMENTS])
    visible = random.choice([device, device, "void", f"{A},{B}"])
    if resource == "aliyun.com/gpu-mem":
        visible = random.choice(["0", A])
    env = {"NVIDIA_VISIBLE_DEVICES": visible} | ENVIRONMENTS[resource]
    ids = (f"id-{number}", f"other-{number}")
    if resource == "nvidia.com/gpu":
        ids, env = (device,), {"NVIDIA_VISIBLE_DEVICES": device}
    if resource == "nvidia.com/gpumem":  # HAMi's own is called as NVIDIA's
        resource = "nvidia.com/gpu"
    yield Grant(pod.uid, name, resource, ids, env)
    if resource == "tencent.com/vcuda-core":
        yield Grant(pod.uid, name, "tencent.com/vcuda-memory", ids, {})


def any_own(random):
    statements = {}
    for _ in range(random.choice([0, 0, 1, 2])):
        pod, name = any_pod(random), random.choice(CONTAINERS)
        statements[pod.uid, name] = Statement(
            Source.OWN_CHECKPOINT,
            pod,
            name,
            (Share(random.choice(NAMED), random.choice(SIZES), 300),),
            random.choice([Scheme.VOLCANO, Scheme.GPUSHARE]),
            where="/state/x",
        )
    return OwnSample(tuple(statements.values()))


# ---------------------------------------------------------------- the API server


def any_pods(random):
    if random.random() < 0.35:
        return None
    pods = tuple(any_api_pod(random, pod) for pod in PODS if random.random() < 0.9)
    return pod_sample(pods, complete=random.random() < 0.7)


def any_api_pod(random, ref):
    phase = random.choice(["Pending", "Running", "Running", "Running", "Failed", "Succeeded"])
    state = ContainerState.RUNNING if phase == "Running" else ContainerState.WAITING
    init = ContainerKind.INIT if random.random() < 0.4 else ContainerKind.APP
    done = random.random() < 0.5 and init is ContainerKind.INIT
    ended = ContainerState.TERMINATED if done else state
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 2048}
    served = random.random() < 0.7
    entry = f"{random.choice([A, B])},NVIDIA,2048,30:"
    claim = {
        "volcano.sh/vgpu-node": NODE,
        "volcano.sh/vgpu-ids-new": f"{entry};{entry}" if init is ContainerKind.INIT else entry,
        "volcano.sh/bind-phase": "success" if served else "allocating",
        "volcano.sh/devices-to-allocate": "" if served else entry,
    }
    return Pod(
        ref,
        node=NODE,
        annotations=random.choice([claim, claim, {}]),
        containers=(Container("main", limits), Container("side", limits, init)),
        phase=phase,
        statuses=(
            Status("main", state, id=container_id(ref, "main")),
            Status("side", ended, kind=init, reason="Completed" if done else ""),
        ),
    )


NUMBER_OF_NODES = 1000


@cache
def nodes() -> tuple[Observation, ...]:
    """Made once, and together, so that a thousand examples are cheap to draw."""
    random = Random(16)
    return tuple(any_node(random) for _ in range(NUMBER_OF_NODES))


numbers = st.sampled_from(range(NUMBER_OF_NODES))
"""Of :func:`nodes`; a number is shorter to print than all that is read of a node."""
