"""What each sharing system writes about a container: its requests, annotations and grants.

Spellings are those of the originals: HAMi v2.10, volcano-vgpu-device-plugin v1.12,
gpushare-device-plugin, gpu-manager, KubeShare v1, and k8s-device-plugin 0.18 with time-slicing and
with MPS, whose resource is renamed.
Amounts follow the first share.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from hashlib import sha256
from itertools import count

import msgspec

from simulator.scenario import (
    HAMI_ROOT,
    Scenario,
    SimulatedContainer,
    SimulatedGpu,
    SimulatedPod,
)
from vgpu.model.facts import Grant
from vgpu.model.names import Scheme
from vgpu.model.units import GAIA_MEMORY_BLOCK, GIB, MIB, MILLI_PER_PERCENT, WHOLE_DEVICE_PERCENT

SPLIT = 40
"""vGPUs of one GPU."""

REPLICAS = 10
"""Replicas of one GPU of NVIDIA's own plugin."""

MPS_RESOURCE = "nvidia.com/gpu.shared"
"""The resource of replicas through MPS."""

_NEVER = str(2**64 - 1)  # volcano.sh/vgpu-time once Allocate has answered


class SimulatedClaim(msgspec.Struct, frozen=True):
    """One container that has a share, with everything that the systems write about it.

    ``gpus`` are the GPUs of its shares, in their order; ``start`` is when it was scheduled, in
    unix seconds.
    """

    node: str
    pod: SimulatedPod
    container: SimulatedContainer
    gpus: tuple[SimulatedGpu, ...]
    start: int

    @property
    def memory(self) -> int:
        """Bytes of one share."""
        return self.container.shares[0].memory_bytes or 0

    @property
    def cores(self) -> int:
        """Percent of one share."""
        return (self.container.shares[0].cores_milli or 0) // MILLI_PER_PERCENT

    @property
    def system(self) -> "System":
        """Its system; the path of the region distinguishes HAMi's from Volcano's."""
        shim = self.container.shim
        if self.container.scheme is Scheme.VOLCANO and shim and shim.root == HAMI_ROOT:
            return System.HAMI
        return System.MPS if self.container.mps else System(self.container.scheme.value)

    def devices(self, unit: int) -> str:
        """The shares as HAMi and Volcano encode them, memory in units of ``unit`` bytes."""
        return "".join(
            f"{gpu.uuid},NVIDIA,{(share.memory_bytes or 0) // unit},"
            f"{(share.cores_milli or 0) // MILLI_PER_PERCENT}:"
            for gpu, share in zip(self.gpus, self.container.shares, strict=True)
        )


class System(StrEnum):
    """The systems; HAMi and Volcano are two spellings of one scheme, and MPS is NVIDIA's plugin.

    HAMi and NVIDIA's own plugin have one resource, so a node has one of them at most.
    """

    HAMI = "hami"
    VOLCANO = "volcano"
    GPUSHARE = "gpushare"
    GAIA = "gaia"
    KUBESHARE = "kubeshare"
    NVIDIA = "nvidia"
    MPS = "mps"


def _replicas(name: str) -> "Resource":
    return Resource(
        name,
        lambda claim: len(claim.gpus),
        lambda _: REPLICAS,
        lambda gpu, j: f"{gpu.uuid}::{j}",
    )


def claims(scenario: Scenario, start: float) -> tuple[SimulatedClaim, ...]:
    """Every container that has a share and whose pod still exists."""
    gpus = {gpu.uuid: gpu for gpu in scenario.gpus}
    return tuple(
        SimulatedClaim(
            node=scenario.node,
            pod=pod,
            container=container,
            gpus=tuple(gpus[share.device] for share in container.shares),
            start=int(start + pod.created),
        )
        for pod, container in scenario.containers()
        if container.shares and not pod.deleted
    )


# ---------------------------------------------------------------- resources


class Resource(msgspec.Struct, frozen=True):
    """An extended resource: what a claim asks for of it, and the IDs of a GPU's units."""

    name: str
    quantity: Callable[[SimulatedClaim], int]
    units: Callable[[SimulatedGpu], int]
    device_id: Callable[[SimulatedGpu, int], str]


def _vgpus(name: str) -> Resource:
    return Resource(
        name,
        lambda claim: len(claim.gpus),
        lambda _: SPLIT,
        lambda gpu, j: f"{gpu.uuid}-{j}",
    )


# The first resource of a system is the one whose grant carries the environment.
_RESOURCES: Mapping[System, tuple[Resource, ...]] = {
    System.HAMI: (_vgpus("nvidia.com/gpu"),),
    System.VOLCANO: (
        _vgpus("volcano.sh/vgpu-number"),
        Resource(  # as with --gpu-memory-factor=1024
            "volcano.sh/vgpu-memory",
            lambda claim: claim.memory // GIB,
            lambda gpu: gpu.memory_bytes // GIB,
            lambda gpu, j: f"{gpu.uuid}-memory-{j}",
        ),
        Resource(
            "volcano.sh/vgpu-cores",
            lambda claim: claim.cores,
            lambda _: WHOLE_DEVICE_PERCENT,
            lambda gpu, j: f"{gpu.uuid}-core-{j}",
        ),
    ),
    System.GPUSHARE: (
        Resource(
            "aliyun.com/gpu-mem",
            lambda claim: claim.memory // GIB,
            lambda gpu: gpu.memory_bytes // GIB,
            lambda gpu, j: f"{gpu.uuid}-_-{j}",
        ),
    ),
    System.GAIA: (
        Resource(
            "tencent.com/vcuda-core",
            lambda claim: claim.cores,
            lambda _: WHOLE_DEVICE_PERCENT,
            lambda gpu, j: f"tencent.com/vcuda-core-{WHOLE_DEVICE_PERCENT * gpu.index + j}",
        ),
        Resource(
            "tencent.com/vcuda-memory",
            lambda claim: claim.memory // GAIA_MEMORY_BLOCK,
            lambda gpu: gpu.memory_bytes // GAIA_MEMORY_BLOCK,
            lambda gpu, j: (
                f"tencent.com/vcuda-memory-{GAIA_MEMORY_BLOCK}"
                f"-{gpu.index * (gpu.memory_bytes // GAIA_MEMORY_BLOCK) + j}"
            ),
        ),
    ),
    System.KUBESHARE: (),
    System.NVIDIA: (_replicas("nvidia.com/gpu"),),
    System.MPS: (_replicas(MPS_RESOURCE),),
}

# Asked for like a resource, but served by a scheduler alone.
_SCHEDULER_ONLY: Mapping[System, Callable[[SimulatedClaim], dict[str, str]]] = {
    System.HAMI: lambda claim: {
        "nvidia.com/gpumem": str(claim.memory // MIB),
        "nvidia.com/gpucores": str(claim.cores),
    },
}


def requests(claim: SimulatedClaim) -> dict[str, str]:
    """The container's ``resources.limits`` in the pod."""
    served = {r.name: str(r.quantity(claim)) for r in _RESOURCES[claim.system]}
    more = _SCHEDULER_ONLY.get(claim.system)
    return served | more(claim) if more else served


# ---------------------------------------------------------------- annotations


_BIND_PHASES: Mapping[str, str] = {"Failed": "failed", "Pending": "allocating"}
"""Bind phase by the pod's phase; other pods were served. ``to_allocate`` is still there."""


def _bind_phase(claim: SimulatedClaim) -> str:
    return _BIND_PHASES.get(claim.pod.phase, "success")


def _gpuid(gpu: SimulatedGpu) -> str:
    """Five letters, as KubeShare-Sched makes them up, one text for each GPU."""
    return "".join(chr(ord("a") + byte % 26) for byte in sha256(gpu.uuid.encode()).digest()[:5])


_ANNOTATIONS: Mapping[System, Callable[[SimulatedClaim], dict[str, str]]] = {
    System.HAMI: lambda claim: {
        "hami.io/vgpu-node": claim.node,
        "hami.io/vgpu-devices-allocated": claim.devices(MIB) + ";",
        "hami.io/vgpu-devices-to-allocate": (
            ";" if claim.pod.admitted else claim.devices(MIB) + ";"
        ),
        "hami.io/vgpu-time": str(claim.start),
        "hami.io/bind-time": str(claim.start),
        "hami.io/bind-phase": _bind_phase(claim),
    },
    System.VOLCANO: lambda claim: {
        "volcano.sh/vgpu-node": claim.node,
        "volcano.sh/vgpu-ids-new": claim.devices(GIB),
        "volcano.sh/devices-to-allocate": "" if claim.pod.admitted else claim.devices(GIB),
        "volcano.sh/vgpu-time": str(claim.start) if claim.pod.phase == "Pending" else _NEVER,
        "volcano.sh/bind-time": str(claim.start),
        "volcano.sh/bind-phase": _bind_phase(claim),
    },
    System.GPUSHARE: lambda claim: {
        "ALIYUN_COM_GPU_MEM_IDX": str(claim.gpus[0].index),
        "ALIYUN_COM_GPU_MEM_POD": str(claim.memory // GIB),
        "ALIYUN_COM_GPU_MEM_DEV": str(claim.gpus[0].memory_bytes // GIB),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": str(claim.pod.admitted).lower(),
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(claim.start * 10**9),
    },
    System.GAIA: lambda claim: {
        "tencent.com/predicate-node": claim.node,
        "tencent.com/predicate-time": str(claim.start * 10**9),
        "tencent.com/predicate-gpu-idx-0": str(claim.gpus[0].index),
        "tencent.com/gpu-assigned": str(claim.pod.admitted).lower(),
    },
    System.KUBESHARE: lambda claim: {
        "kubeshare/gpu_request": f"{(claim.container.cores_request_percent or 0) / 100:g}",
        "kubeshare/gpu_limit": f"{claim.cores / 100:g}",
        "kubeshare/gpu_mem": str(claim.memory),
        "kubeshare/GPUID": _gpuid(claim.gpus[0]),
    },
    System.NVIDIA: lambda _: {},
    System.MPS: lambda _: {},
}


def annotations(claim: SimulatedClaim) -> dict[str, str]:
    """What schedulers and plugins have written on the pod for this container."""
    return _ANNOTATIONS[claim.system](claim)


# ---------------------------------------------------------------- grants


def _shim_environment(claim: SimulatedClaim) -> dict[str, str]:
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in claim.gpus)}
    for number, share in enumerate(claim.container.shares):
        env[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] = f"{(share.memory_bytes or 0) // MIB}m"
    env["CUDA_DEVICE_SM_LIMIT"] = str(claim.cores)
    shim = claim.container.shim
    if shim is not None:
        folder = "usr/local/vgpu" if claim.system is System.HAMI else "tmp/vgpu"
        env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"/{folder}/{shim.cache}.cache"
    return env


_ENVIRONMENT: Mapping[System, Callable[[SimulatedClaim], dict[str, str]]] = {
    System.HAMI: _shim_environment,
    System.VOLCANO: _shim_environment,
    System.GPUSHARE: lambda claim: {
        "NVIDIA_VISIBLE_DEVICES": str(claim.gpus[0].index),
        "ALIYUN_COM_GPU_MEM_IDX": str(claim.gpus[0].index),
        "ALIYUN_COM_GPU_MEM_POD": str(claim.memory // GIB),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(claim.memory // GIB),
        "ALIYUN_COM_GPU_MEM_DEV": str(claim.gpus[0].memory_bytes // GIB),
    },
    System.GAIA: lambda claim: {
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
        "NVIDIA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in claim.gpus),
    },
    System.NVIDIA: lambda claim: {
        "NVIDIA_VISIBLE_DEVICES": ",".join(dict.fromkeys(gpu.uuid for gpu in claim.gpus)),
    },
    System.MPS: lambda claim: {
        "NVIDIA_VISIBLE_DEVICES": ",".join(dict.fromkeys(gpu.uuid for gpu in claim.gpus)),
        "CUDA_MPS_PIPE_DIRECTORY": f"/mps/{MPS_RESOURCE}/pipe",
    },
}


def grants(scenario: Scenario) -> Iterator[Grant]:
    """The kubelet's checkpoint: the devices of every pod that it admitted, completed ones
    included.

    No two grants have a device ID in common.
    """
    free: dict[tuple[str, str], Iterator[int]] = {}
    for claim in claims(scenario, 0):
        if not claim.pod.admitted:
            continue
        for position, resource in enumerate(_RESOURCES[claim.system]):
            gpus = [claim.gpus[unit % len(claim.gpus)] for unit in range(resource.quantity(claim))]
            yield Grant(
                pod_uid=claim.pod.ref.uid,
                container=claim.container.name,
                resource=resource.name,
                device_ids=tuple(
                    resource.device_id(
                        gpu, next(free.setdefault((resource.name, gpu.uuid), count()))
                    )
                    for gpu in gpus
                ),
                env=_ENVIRONMENT[claim.system](claim) if position == 0 else {},
            )


def registered(scenario: Scenario) -> dict[str, list[str]]:
    """Resource name -> all device IDs that its plugin reports, for the systems in use."""
    used = {claim.system for claim in claims(scenario, 0)}
    return {
        resource.name: [
            resource.device_id(gpu, unit)
            for gpu in scenario.gpus
            for unit in range(resource.units(gpu))
        ]
        for system in System
        if system in used
        for resource in _RESOURCES[system]
    }
