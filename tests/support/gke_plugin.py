"""What a kubelet had beside GKE's own device plugin, as ``tests/golden/gke-plugin`` keeps it.

The numbers of the driver's GPUs are not their indices: the first GPU is ``/dev/nvidia2`` or
``/dev/nvidia1``.
"""

import json
from functools import cache
from typing import Any, NamedTuple

from tests.support.environment import GOLDEN_FILES
from vgpu.model.facts import (
    ContainerName,
    Gpu,
    GpuProcess,
    GpuSample,
    HeldDevices,
    KubeletSample,
    ProcessOwner,
    ProcessSample,
)
from vgpu.model.names import PodRef
from vgpu.sources.kubelet_checkpoint import parse_checkpoint, registered_replicas
from vgpu.sources.samples import Observation

FOLDER = GOLDEN_FILES / "gke-plugin"
GPU = "nvidia.com/gpu"
TOTAL = ("memory_total_bytes",)
USED = ("memory_used_bytes",)


class Recorded(NamedTuple):
    """One case: the kubelet's checkpoint, and what else was seen at this moment."""

    checkpoint: bytes
    seen: Any

    @property
    def uids(self) -> dict[str, str]:
        """The UIDs of the pods that run, by name."""
        return {pod["name"]: pod["uid"] for pod in self.seen["pods"] if pod["phase"] == "Running"}

    def gpus(self) -> tuple[Gpu, ...]:
        """The driver's GPUs and MIG instances."""
        indices: dict[str, int] = {}
        gpus = []
        for one in self.seen["driver"]:
            parent = one.get("parent", "")
            index = indices[parent] = indices.get(parent, -1) + 1
            info = {"minor": str(one["minor"])} if "minor" in one else {}
            if parent:
                info = {"gpu_instance_id": str(one["gi"]), "compute_instance_id": str(one["ci"])}
            gpus.append(Gpu(one["uuid"], index, info, {TOTAL: one["total"], USED: 0}, parent))
        return tuple(gpus)

    def observation(
        self, *, driver: bool = True, checkpoint: bool = True, processes: Any = ()
    ) -> Observation:
        """What the exporter sees; ``processes`` are (pid, pod's name, device, bytes)."""
        pods = {
            one["uid"]: PodRef(one["uid"], one["namespace"], one["name"])
            for one in self.seen["pods"]
        }
        live = frozenset(self.uids.values())
        names = {
            f"c-{uid}": ContainerName(pods[uid].namespace, pods[uid].name, "main", uid)
            for uid in live
        }
        owners = {
            pid: ProcessOwner(f"c-{self.uids[pod]}", self.uids[pod], "containerd")
            for pid, pod, *_ in processes
        }
        held: dict[HeldDevices, frozenset[str]] = {}
        for pod in self.seen["List"]["pod_resources"]:
            for container in pod["containers"]:
                for device in container.get("devices", ()):
                    place = HeldDevices(
                        pod["namespace"], pod["name"], container["name"], device["resource_name"]
                    )
                    held[place] = held.get(place, frozenset()) | {*device["device_ids"]}
        gpus = self.gpus()
        uuids = frozenset(gpu.uuid for gpu in gpus)
        return Observation(
            gpu=GpuSample(
                gpus,
                processes=tuple(GpuProcess(pid, at, used) for pid, _, at, used in processes),
                processes_known=uuids,
            )
            if driver
            else None,
            process=ProcessSample(owners, True, live),
            kubelet=KubeletSample(
                pods,
                names,
                parse_checkpoint(self.checkpoint)[0] if checkpoint else None,
                held=held,
                replicas=registered_replicas(self.checkpoint) if checkpoint else {},
            ),
        )


@cache
def recorded(name: str) -> Recorded:
    """The case of this name."""
    return Recorded(
        (FOLDER / f"{name}.json").read_bytes(),
        json.loads((FOLDER / f"{name}.seen.json").read_text()),
    )


CASES = tuple(sorted(path.name.removesuffix(".seen.json") for path in FOLDER.glob("*.seen.json")))
