"""One cluster of each sharing system whose operator has renamed all resources, as dumps have it.

Each cluster has one node ``gpu-1`` with one GPU of 16 GiB, a pod ``idle`` that holds a quarter of
it and uses nothing, a pod ``waits`` that requests another quarter and is not bound, and a
ResourceQuota of its namespace. The texts are those of :mod:`tests.support.sample_cluster`, whose
writers follow the originals; HAMi's ConfigMap is what its chart renders.
"""

import json
from pathlib import Path

from tests.support import sample_cluster as sample
from vgpu.schemes.resource_names import ORIGINAL_NAMES, typed_role

SYSTEMS = ("hami", "volcano", "gpushare", "gaia")
GPU = sample.uuid(1)
NODE = "gpu-1"
CHART = Path(__file__).parent.parent / "golden" / "hami-renamed"
"""What HAMi's chart renders with other names, see the README there."""

NAMES = {
    "hami": {
        "count": "nvidia.com/vgpu",
        "memory": "nvidia.com/vgpumem",
        "percentage": "nvidia.com/vgpumem-percentage",
        "cores": "nvidia.com/vgpucores",
        "priority": "nvidia.com/vgpupriority",
    },
    "volcano": {
        "count": "example.com/vgpu",
        "memory": "example.com/vgpu-memory",
        "percentage": "example.com/vgpu-percentage",
        "cores": "example.com/vgpu-cores",
    },
    "gpushare": {"count": "example.com/gpus", "memory": "example.com/gpu-memory"},
    "gaia": {"memory": "example.com/blocks", "cores": "example.com/cores"},
}
"""Other names for all roles."""

_CLAIM = f"{GPU},NVIDIA,4096,25:"

_REGISTERED = {
    "hami": {
        "hami.io/node-nvidia-register": json.dumps(
            [
                {
                    "id": GPU,
                    "count": 10,
                    "devmem": 16384,
                    "devcore": 100,
                    "type": "NVIDIA-Tesla T4",
                    "mode": "hami-core",
                    "health": True,
                }
            ]
        )
    },
    "volcano": {"volcano.sh/node-vgpu-register": f"{GPU},10,16384,NVIDIA-Tesla T4,true,hami-core:"},
    "gpushare": {},
    "gaia": {},
}
_ADVERTISED = {
    "hami": {"count": 10},
    "volcano": {"count": 10, "memory": 16384, "cores": 100},
    "gpushare": {"count": 1, "memory": 16},
    "gaia": {"cores": 100, "memory": 64},
}
_ASKED = {
    "hami": {"count": 1, "memory": 4096, "cores": 25},
    "volcano": {"count": 1, "memory": 4096, "cores": 25},
    "gpushare": {"memory": 4},
    "gaia": {"cores": 25, "memory": 16},
}
_TIME = sample.NOW - sample.HOUR
_HELD = {
    "hami": {
        "hami.io/vgpu-node": NODE,
        "hami.io/vgpu-time": str(_TIME),
        "hami.io/vgpu-devices-allocated": f"{_CLAIM};",
        "hami.io/vgpu-devices-to-allocate": ";",
        "hami.io/bind-time": str(_TIME),
        "hami.io/bind-phase": "success",
    },
    "volcano": {
        "volcano.sh/vgpu-node": NODE,
        "volcano.sh/vgpu-time": "18446744073709551615",
        "volcano.sh/vgpu-ids-new": _CLAIM,
        "volcano.sh/devices-to-allocate": "",
        "volcano.sh/bind-time": str(_TIME),
        "volcano.sh/bind-phase": "success",
    },
    "gpushare": {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(_TIME * 10**9),
    },
    "gaia": {
        "tencent.com/predicate-node": NODE,
        "tencent.com/predicate-time": str(_TIME * 10**9),
        "tencent.com/predicate-gpu-idx-0": "0",
        "tencent.com/gpu-assigned": "true",
    },
}


def requested(system):
    """What each pod requests, by the other names."""
    return {NAMES[system][role]: units for role, units in _ASKED[system].items()}


def held(system):
    """The annotations of the pod that holds a quarter of the GPU."""
    return _HELD[system]


def flags(system, names=None):
    """The flags that name all resources."""
    return [
        f"--{system}.resource={typed_role(role)}={name}"
        for role, name in (NAMES[system] if names is None else names).items()
    ]


def config_map(system):
    """The scheduler's ConfigMap; None of a system whose scheduler has none."""
    if system == "hami":
        return json.loads((CHART / "device-config.json").read_text())
    if system != "volcano":
        return None
    fields = {
        "resourceCountName": "count",
        "resourceMemoryName": "memory",
        "resourceMemoryPercentageName": "percentage",
        "resourceCoreName": "cores",
    }
    text = "".join(f"  {field}: {NAMES[system][role]}\n" for field, role in fields.items())
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "volcano-vgpu-device-config", "namespace": "kube-system"},
        "data": {"device-config.yaml": f"nvidia:\n{text}"},
    }


def node(system, names=None):
    """The node, which also has a GPU of NVIDIA's own plugin if the system is HAMi."""
    named = NAMES[system] if names is None else names
    units = {named[role]: number for role, number in _ADVERTISED[system].items()}
    beside = {"nvidia.com/gpu": 1} if system == "hami" else {}
    return sample.node(NODE, {**units, **beside}, _REGISTERED[system])


def objects(system):
    """The objects of the cluster, without a ConfigMap."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "u"}
    return [
        node(system),
        sample.pod(
            "idle", NODE, requested(system), _HELD[system], owner=owner | {"controller": True}
        ),
        sample.pod("waits", "", requested(system)),
    ]


def original(system, role):
    """The original's name."""
    return getattr(ORIGINAL_NAMES[system], role)


def advertised_roles(system):
    """The roles of which a node advertises units."""
    return tuple(_ADVERTISED[system])
