"""A stand-in for NVIDIA's device plugin: its device IDs, and its answers to Allocate.

Each value on the wire stands beside its source: k8s-device-plugin 0.18.0, by paths in its
repository; what another release does differently is a case of its own. HAMi's are those of HAMi
2.6.1 (``pkg/device-plugin/nvidiadevice/nvinternal``).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vgpu.model.names import Scheme, Sharing
from vgpu.rpc import deviceplugin_pb2 as pb
from vgpu.schemes.nvidia.grant import NVIDIA

G0 = "GPU-11111111-2222-3333-4444-555555555555"
G1 = "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
M0 = "MIG-0a1b2c3d-1111-5222-8333-444455556666"
M1 = "MIG-0a1b2c3d-1111-5222-8333-444455557777"

GPU = "nvidia.com/gpu"  # api/config/v1/resources.go: a GPU, and MIG instances of "single"
SHARED = "nvidia.com/gpu.shared"  # api/config/v1/replicas.go: renameByDefault
MIG = "nvidia.com/mig-1g.10gb"  # internal/rm/device_map.go: "mixed", by profile

VISIBLE = "NVIDIA_VISIBLE_DEVICES"  # internal/plugin/server.go: deviceListEnvvar
MOUNTS = "/var/run/nvidia-container-devices"  # the same: the root of volume mounts
CDI_KIND = "k8s.device-plugin.nvidia.com/gpu"  # internal/cdi/cdi.go: vendor and class
CDI_KEY = "cdi.k8s.io/nvidia-device-plugin_0c9b9c5e-6f0a-4a27-8f60-6f3c2a0c7f11"
# internal/plugin/server.go: the prefix, "nvidia-device-plugin", a random UUID of each answer
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"  # internal/plugin/mps.go
MPS_ROOT = "/run/nvidia/mps"  # api/config/v1/flags.go: mpsRoot; in the container it is /mps

Answer = Callable[[Sequence[str]], Any]


def replicas(device: str, count: int) -> list[str]:
    """``<device>::<n>`` (internal/rm/devices.go, AnnotatedID)."""
    return [f"{device}::{number}" for number in range(count)]


def devices_of(ids: Sequence[str]) -> list[str]:
    """The devices of the IDs, each once since 0.18 (internal/rm/devices.go, GetIDs)."""
    return list(dict.fromkeys(device_id.partition("::")[0] for device_id in ids))


def envvar(ids: Sequence[str]) -> Any:
    """Strategy ``envvar``, the default."""
    return pb.ContainerAllocateResponse(envs={VISIBLE: ",".join(devices_of(ids))})


def envvar_of_0_17(ids: Sequence[str]) -> Any:
    """The same up to 0.17: a GPU of two replicas stands twice."""
    devices = [device_id.partition("::")[0] for device_id in ids]
    return pb.ContainerAllocateResponse(envs={VISIBLE: ",".join(devices)})


def by_index(ids: Sequence[str]) -> Any:
    """Strategy ``envvar`` with ``deviceIDStrategy: index``."""
    order = (G0, G1)
    indices = [str(order.index(device)) for device in devices_of(ids)]
    return pb.ContainerAllocateResponse(envs={VISIBLE: ",".join(indices)})


def volume_mounts(ids: Sequence[str]) -> Any:
    """Strategy ``volume-mounts``: /dev/null at a path for each device."""
    return pb.ContainerAllocateResponse(
        envs={VISIBLE: MOUNTS},
        mounts=[
            pb.Mount(container_path=f"{MOUNTS}/{device}", host_path="/dev/null")
            for device in devices_of(ids)
        ],
    )


def cdi_annotations(ids: Sequence[str]) -> Any:
    """Strategy ``cdi-annotations`` alone: no environment."""
    devices = ",".join(f"{CDI_KIND}={device}" for device in devices_of(ids))
    return pb.ContainerAllocateResponse(annotations={CDI_KEY: devices})


def cdi_cri(ids: Sequence[str]) -> Any:
    """Strategy ``cdi-cri`` alone (0.15): no environment."""
    return pb.ContainerAllocateResponse(
        cdi_devices=[pb.CDIDevice(name=f"{CDI_KIND}={device}") for device in devices_of(ids)]
    )


def mps(ids: Sequence[str]) -> Any:
    """MPS with ``envvar``: the pipe of the resource's daemon, and /dev/shm of all daemons."""
    answer = envvar(ids)
    answer.envs[MPS_PIPE] = f"/mps/{SHARED}/pipe"
    answer.mounts.add(container_path=f"/mps/{SHARED}/pipe", host_path=f"{MPS_ROOT}/{SHARED}/pipe")
    answer.mounts.add(container_path="/dev/shm", host_path=f"{MPS_ROOT}/shm")
    return answer


def hami(ids: Sequence[str]) -> Any:
    """HAMi's answer for a share of 4,000 MiB and 30 % of the cores of the first GPU."""
    return pb.ContainerAllocateResponse(
        envs={
            VISIBLE: G0,
            "CUDA_DEVICE_MEMORY_LIMIT_0": "4000m",
            "CUDA_DEVICE_SM_LIMIT": "30",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/8c8a1a4e.cache",
        }
    )


class Plugin(NamedTuple):
    """A plugin that registers, and the numbers of units that pods request of it."""

    ids: list[str]
    answer: Answer
    requests: tuple[int, ...] = (1, 2)


class Case(NamedTuple):
    """Plugins that register a resource one after the other; pods of the first keep running.

    ``scheme`` and ``sharing`` are those of the pods of the last one.
    """

    resource: str
    plugins: tuple[Plugin, ...]
    sharing: Sharing
    scheme: Scheme = NVIDIA


SLICED = [*replicas(G0, 4), *replicas(G1, 4)]
HAMIS = [f"{G0}-{number}" for number in range(10)]  # HAMi: <uuid>-<n>, n below deviceSplitCount

CASES = {
    "time-slicing-envvar": Case(GPU, (Plugin(SLICED, envvar),), Sharing.TIME_SLICING),
    "time-slicing-envvar-0.17": Case(
        GPU, (Plugin(replicas(G0, 4), envvar_of_0_17),), Sharing.TIME_SLICING
    ),
    "time-slicing-index": Case(GPU, (Plugin(SLICED, by_index),), Sharing.TIME_SLICING),
    "time-slicing-volume-mounts": Case(GPU, (Plugin(SLICED, volume_mounts),), Sharing.TIME_SLICING),
    "time-slicing-cdi-annotations": Case(
        GPU, (Plugin(SLICED, cdi_annotations),), Sharing.TIME_SLICING
    ),
    "time-slicing-cdi-cri": Case(GPU, (Plugin(SLICED, cdi_cri),), Sharing.TIME_SLICING),
    "mps-renamed": Case(SHARED, (Plugin(SLICED, mps),), Sharing.MPS),
    "whole": Case(GPU, (Plugin([G0, G1], envvar, (1,)),), Sharing.EXCLUSIVE),
    "mig-mixed": Case(MIG, (Plugin([M0, M1], cdi_cri, (1,)),), Sharing.MIG),
    "mig-before-r470": Case(
        MIG, (Plugin([f"MIG-{G0}/7/0", f"MIG-{G0}/8/0"], envvar, (1,)),), Sharing.MIG
    ),
    "mig-time-slicing": Case(
        f"{MIG}.shared", (Plugin(replicas(M0, 2), envvar, (1,)),), Sharing.MIG_TIME_SLICING
    ),
    "time-slicing-after-hami": Case(
        GPU, (Plugin(HAMIS, hami, (1,)), Plugin(SLICED, envvar, (1,))), Sharing.TIME_SLICING
    ),
}
"""By the name of the golden file in ``tests/golden/nvidia-plugin``."""
