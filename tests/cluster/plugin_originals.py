"""The original plugins, as far as a node's change between them and ours shows: how they choose.

    with original_of(kind, plugin) as original:     # ``plugin`` is ours, and does not run
        ...
        original.served                             # UIDs of the pods that it has answered for

Each answers for the waiting pod that was promised first of those that ask for as many devices, by
the pods' annotations, and writes into them that it is served. gpu-manager trusts its own
checkpoint more than any other source. Pods have one container here, and a GPU.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

from tests.cluster.plugin_kinds import BLOCKS_IN_GIB, GPU_GIB, UNIT_MIB, Kind
from tests.cluster.plugin_node import PluginNode
from tests.support.bed.client import Object
from tests.support.bed.deviceplugin import DevicePlugin, pb
from vgpu.schemes.volcano.key_set import HAMI, VOLCANO, KeySet

ENDED: Final = "18446744073709551615"

GPU_MANAGERS: Final = "/etc/gpu-manager/checkpoint/gpumanager_internal_checkpoint"
"""gpu-manager's checkpoint."""

CORE, BLOCK = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"


def nothing(_: Sequence[str]) -> Any:
    """The answer for a resource that only counts."""
    return pb.ContainerAllocateResponse()


class Original:
    """What all have in common; serves the node while the block lasts."""

    asks_before_start = False

    def __init__(self, kind: Kind, plugin: PluginNode) -> None:
        self.kind, self.plugin, self.node, self.client = kind, plugin, plugin.node, plugin.client
        self.served: list[str] = []
        self.given: list[tuple[str, ...]] = []
        """The device IDs of each, of the binding resource."""
        self._serving: list[DevicePlugin] = []

    def __enter__(self) -> Self:
        self.plugin.make_device_nodes()
        for resource in self.kind.offered:
            ids = list(self.ids(resource))
            binding = resource == self.kind.resource
            answer = self.allocate if binding else nothing
            started = self.may_start if binding and self.asks_before_start else None
            self._serving.append(DevicePlugin(self.node, resource, ids, answer, started))
        for each, per_gpu in zip(self._serving, self.kind.offered.values(), strict=True):
            each.wait_counted(per_gpu * len(self.plugin.uuids))
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._serving:
            each.stop()

    def allocate(self, ids: Sequence[str]) -> Any:
        query = {"fieldSelector": f"spec.nodeName={self.node.name}"}
        found = self.client.list("/api/v1/pods", **query)
        waiting = [pod for pod in found if self.waits(pod, len(ids))]
        if not waiting:
            raise LookupError(f"candidate pod not found for request of {len(ids)}")
        pod = min(waiting, key=self.promised_at)
        answer = self.answer(pod)
        self.served.append(pod["metadata"]["uid"])
        self.given.append(tuple(ids))
        return answer

    def annotate(self, pod: Object, annotations: Mapping[str, str]) -> None:
        """Write these annotations to the pod."""
        self.client.patch(pod, {"metadata": {"annotations": dict(annotations)}})

    # ------------------------------------------------------------ what differs

    def may_start(self, ids: Sequence[str]) -> None:
        """Raises LookupError if the container with these IDs may not start."""

    def ids(self, resource: str) -> Iterable[str]:
        """Its device IDs."""
        raise NotImplementedError

    def waits(self, pod: Object, count: int) -> bool:
        """Whether it is a candidate."""
        raise NotImplementedError

    def promised_at(self, pod: Object) -> int:
        """The smallest is the first."""
        raise NotImplementedError

    def answer(self, pod: Object) -> Any:
        """A ContainerAllocateResponse. The pod is annotated as served."""
        raise NotImplementedError


class Volcanos(Original):
    """Volcano's, and HAMi's, which looks at the pods that are being bound."""

    def __init__(self, kind: Kind, plugin: PluginNode, key_set: KeySet) -> None:
        super().__init__(kind, plugin)
        self.key_set = key_set

    def ids(self, resource: str) -> Iterable[str]:
        infix = dict(self.key_set.advertised)[resource]
        numbers = range(self.kind.offered[resource])
        return [f"{uuid}{infix}-{n}" for uuid in self.plugin.uuids for n in numbers]

    def waits(self, pod: Object, count: int) -> bool:
        annotations = _annotations(pod)
        binds = self.key_set is VOLCANO or annotations.get(self.key_set.bind_phase) == "allocating"
        here = annotations.get(self.key_set.node) == self.node.name
        return (
            here
            and binds
            and annotations.get(self.key_set.to_allocate, "").count("NVIDIA") == count
        )

    def promised_at(self, pod: Object) -> int:
        return int(_annotations(pod)[self.key_set.time])

    def answer(self, pod: Object) -> Any:
        promise = _annotations(pod)[self.key_set.to_allocate].strip(":;")
        uuid, _, memory, cores = promise.split(",")
        self.annotate(pod, served(self.kind.name))
        factor = UNIT_MIB if self.key_set.counts_units else 1
        env = {
            "NVIDIA_VISIBLE_DEVICES": uuid,
            "CUDA_DEVICE_MEMORY_LIMIT_0": f"{int(memory) * factor}m",
            "CUDA_DEVICE_SM_LIMIT": cores,
        }
        return pb.ContainerAllocateResponse(envs=env)


class Gpushares(Original):
    """gpushare's, which names GPUs by their number."""

    def ids(self, resource: str) -> Iterable[str]:
        numbers = range(self.kind.offered[resource])
        return [f"{uuid}-_-{n}" for uuid in self.plugin.uuids for n in numbers]

    def waits(self, pod: Object, count: int) -> bool:
        annotations = _annotations(pod)
        waiting = _is_pending(pod) and annotations.get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "false"
        return waiting and _limit(pod, self.kind.resource) == count

    def promised_at(self, pod: Object) -> int:
        return int(_annotations(pod)["ALIYUN_COM_GPU_MEM_ASSUME_TIME"])

    def answer(self, pod: Object) -> Any:
        annotations, amount = _annotations(pod), str(_limit(pod, self.kind.resource))
        now = {"ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(time.time_ns())}
        self.annotate(pod, served(self.kind.name) | now)
        env = {
            "NVIDIA_VISIBLE_DEVICES": annotations["ALIYUN_COM_GPU_MEM_IDX"],
            "ALIYUN_COM_GPU_MEM_IDX": annotations["ALIYUN_COM_GPU_MEM_IDX"],
            "ALIYUN_COM_GPU_MEM_POD": annotations["ALIYUN_COM_GPU_MEM_POD"],
            "ALIYUN_COM_GPU_MEM_CONTAINER": amount,
            "ALIYUN_COM_GPU_MEM_DEV": annotations["ALIYUN_COM_GPU_MEM_DEV"],
        }
        return pb.ContainerAllocateResponse(envs=env)


class GpuManager(Original):
    """gpu-manager's, for parts of GPUs: the fullest GPU that has room, by its own checkpoint."""

    asks_before_start = True

    def ids(self, resource: str) -> Iterable[str]:
        infix = "-268435456" if resource == BLOCK else ""
        count = self.kind.offered[resource] * len(self.plugin.uuids)
        return [f"{resource}{infix}-{n}" for n in range(count)]

    def waits(self, pod: Object, count: int) -> bool:
        annotations = _annotations(pod)
        waiting = _is_pending(pod) and annotations.get("tencent.com/gpu-assigned") != "true"
        return waiting and _limit(pod, CORE) == count

    def promised_at(self, pod: Object) -> int:
        return int(_annotations(pod)["tencent.com/predicate-time"])

    def answer(self, pod: Object) -> Any:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        cores, blocks = _limit(pod, CORE), _limit(pod, BLOCK)
        capacity = self._capacity()
        gpu = self._gpu(capacity, cores, blocks)
        predicate = _annotations(pod)["tencent.com/predicate-gpu-idx-0"]
        if predicate != str(gpu):
            detail = f"pick up:/dev/nvidia{gpu}  predicate: /dev/nvidia{predicate}"
            raise LookupError(f"Nvidia node mismatch for pod {name}(main), {detail}")
        entry = {"Devices": [f"/dev/nvidia{gpu}"], "Cores": cores, "Memory": blocks << 28}
        self._write({**capacity, uid: {"main": entry}})
        self.annotate(pod, served(self.kind.name))
        nodes = (f"/dev/nvidia{gpu}", "/dev/nvidiactl", "/dev/nvidia-uvm")
        return pb.ContainerAllocateResponse(
            envs={
                "NVIDIA_VISIBLE_DEVICES": self.plugin.uuids[gpu],
                "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
            },
            devices=[
                pb.DeviceSpec(container_path=node, host_path=node, permissions="rwm")
                for node in nodes
            ],
            annotations={
                CORE: str(cores),
                BLOCK: str(blocks << 28),
                "tencent.com/vcuda-device": f"/dev/nvidia{gpu}",
            },
        )

    def may_start(self, ids: Sequence[str]) -> None:
        """Only a container in its checkpoint may start."""
        for entry in self.plugin.checkpoint()["Data"]["PodDeviceEntries"]:
            lists = entry["DeviceIDs"].values()
            if entry["ResourceName"] == CORE and {one for ids in lists for one in ids} == set(ids):
                if entry["PodUID"] in self._capacity():
                    return
                break
        raise LookupError(
            "PreStartContainer check failed, failed to get pod from allocatedPod cache"
        )

    def _gpu(self, capacity: Mapping[str, Any], cores: int, blocks: int) -> int:
        free = {gpu: [100, GPU_GIB * BLOCKS_IN_GIB] for gpu in range(len(self.plugin.uuids))}
        for pod in capacity.values():
            for entry in pod.values():
                held = free[int(entry["Devices"][0].removeprefix("/dev/nvidia"))]
                held[0] -= entry["Cores"]
                held[1] -= entry["Memory"] >> 28
        return min(
            (*room, gpu) for gpu, room in free.items() if room[0] >= cores and room[1] >= blocks
        )[-1]

    def _capacity(self) -> dict[str, Any]:
        """Of the pods that are active to gpu-manager's watchdog."""
        file = self.node.path(GPU_MANAGERS)
        found = self.client.list("/api/v1/pods")
        pods = {pod["metadata"]["uid"] for pod in found if _is_active(pod)}
        kept = json.loads(file.read_bytes())["PodGPUMapping"] if file.exists() else {}
        return {uid: entry for uid, entry in kept.items() if uid in pods}

    def _write(self, capacity: Mapping[str, Any]) -> None:
        file = self.node.path(GPU_MANAGERS)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"PodGPUMapping": capacity}))


def original_of(kind: Kind, plugin: PluginNode) -> Original:
    """The one that serves these pods."""
    match kind.name:
        case "volcano":
            return Volcanos(kind, plugin, VOLCANO)
        case "hami":
            return Volcanos(kind, plugin, HAMI)
        case "gpushare":
            return Gpushares(kind, plugin)
        case _:
            return GpuManager(kind, plugin)


def served(kind: str) -> dict[str, str]:
    """What is written into the annotations of a pod when it is served, but for times."""
    return {
        "volcano": {
            "volcano.sh/devices-to-allocate": "",
            "volcano.sh/bind-phase": "success",
            "volcano.sh/vgpu-time": ENDED,
        },
        "hami": {"hami.io/vgpu-devices-to-allocate": "", "hami.io/bind-phase": "success"},
        "gpushare": {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"},
        "gaia": {"tencent.com/gpu-assigned": "true"},
    }[kind]


def _annotations(pod: Object) -> Mapping[str, str]:
    return pod["metadata"].get("annotations", {})


def _limit(pod: Object, resource: str) -> int:
    (container,) = pod["spec"]["containers"]
    return int(container["resources"].get("limits", {}).get(resource, 0))


def _is_pending(pod: Object) -> bool:
    return pod["status"].get("phase") == "Pending"


def _is_active(pod: Object) -> bool:
    """Neither ended, nor deleted with no container left that runs."""
    status = pod["status"]
    runs = [one for one in status.get("containerStatuses", ()) if "running" in one["state"]]
    is_deleted = "deletionTimestamp" in pod["metadata"]
    return status.get("phase") not in ("Failed", "Succeeded") and not (is_deleted and not runs)
