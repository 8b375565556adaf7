"""A small cluster with one of everything, as ``kubectl get … -o json`` prints it.

Run it to write the dump to standard output.
"""

import json
from datetime import UTC, datetime

NOW = 1_790_000_000
"""Unix seconds of the dump."""

GIB = 1024**3
MINUTE, HOUR, DAY = 60, 3600, 86400


def uuid(number):
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"


def stamp(seconds):
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---------------------------------------------------------------- objects


def node(name, capacity=None, annotations=None, *, ready=True, cordoned=False, allocatable=None):
    capacity = {key: str(value) for key, value in (capacity or {}).items()}
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "annotations": annotations or {}, "labels": {}},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "capacity": {"cpu": "64", **capacity},
            "allocatable": {"cpu": "64", **capacity, **(allocatable or {})},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
        },
    }


FINISHED = {"terminated": {"exitCode": 0}}
"""The state of the containers of a pod that has succeeded."""


def pod(
    name,
    on="",
    limits=None,
    annotations=None,
    *,
    namespace="ml",
    labels=None,
    phase=None,
    unschedulable="",
    age=HOUR,
    state=None,
    owner=None,
    containers=None,
):
    phase = phase or ("Succeeded" if state is FINISHED else "Running" if on else "Pending")
    containers = containers or [("main", limits or {})]
    state = state or ({"running": {}} if phase == "Running" else {"waiting": {}})
    conditions = []
    if unschedulable:
        conditions = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": unschedulable,
                "lastTransitionTime": stamp(NOW - age),
            }
        ]
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-of-{namespace}-{name}",
        "annotations": annotations or {},
        "labels": labels or {},
        "creationTimestamp": stamp(NOW - age),
    }
    if owner:
        metadata["ownerReferences"] = [owner]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": {
            **({"nodeName": on} if on else {}),
            "containers": [
                {
                    "name": container,
                    "resources": {"limits": {key: str(value) for key, value in asked.items()}},
                }
                for container, asked in containers
            ],
        },
        "status": {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": [
                {"name": container, "state": state} for container, _ in containers if on
            ],
        },
    }


# ---------------------------------------------------------------- Volcano

VOLCANO_MIB = 46068
MODEL = "NVIDIA L40S"


def volcano_node(name, first, healthy=(True, True), **options):
    register = "".join(
        f"{uuid(first + gpu)},10,{VOLCANO_MIB},NVIDIA-{MODEL},{str(ok).lower()},hami-core:"
        for gpu, ok in enumerate(healthy)
    )
    capacity = {"volcano.sh/vgpu-number": 10 * len(healthy)}
    return node(name, capacity, {"volcano.sh/node-vgpu-register": register}, **options)


def volcano_limits(memory, cores=0, number=1):
    asked = {"volcano.sh/vgpu-number": number, "volcano.sh/vgpu-memory": memory}
    return asked | ({"volcano.sh/vgpu-cores": cores} if cores else {})


def volcano_pod(name, on, gpu, memory, cores=0, *, bind="success", age=HOUR, **options):
    devices = f"{uuid(gpu)},NVIDIA,{memory},{cores}:"
    served = bind == "success"
    annotations = {
        "volcano.sh/bind-phase": bind,
        "volcano.sh/bind-time": str(NOW - age),
        "volcano.sh/devices-to-allocate": ";" if served else devices,
        "volcano.sh/vgpu-ids-new": devices,
        "volcano.sh/vgpu-node": on,
        "volcano.sh/vgpu-time": str(2**64 - 1) if served else str(NOW - age),
    }
    if not served:
        options.setdefault("phase", "Pending")
    limits = volcano_limits(memory, cores)
    return pod(name, on, limits, annotations, age=age, **options)


# ---------------------------------------------------------------- gpushare


def gpushare_node(name, gpus=4, units=22, **options):
    capacity = {"aliyun.com/gpu-mem": gpus * units, "aliyun.com/gpu-count": gpus}
    return node(name, capacity, **options)


def gpushare_pod(name, on, units, gpu=None, *, assigned=True, age=DAY, **options):
    annotations = {}
    if gpu is not None:
        annotations = {
            "ALIYUN_COM_GPU_MEM_IDX": str(gpu),
            "ALIYUN_COM_GPU_MEM_POD": str(units),
            "ALIYUN_COM_GPU_MEM_DEV": "22",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": str(assigned).lower(),
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str((NOW - age) * 10**9),
        }
    limits = {"aliyun.com/gpu-mem": units}
    return pod(name, on, limits, annotations, age=age, **options)


def nvidia_node(name, resource, number, **facts):
    """A node of NVIDIA's own device plugin, with the labels of GPU feature discovery."""
    made = node(name, {resource: number})
    what = resource.removesuffix(".shared")
    made["metadata"]["labels"] = {
        f"{what}.{fact.replace('_', '-')}": str(value) for fact, value in facts.items()
    }
    return made


def resource_quota(name, hard, used, *, namespace="ml"):
    """A ResourceQuota of requests, by resource."""

    def requests(amounts):
        return {f"requests.{resource}": str(amount) for resource, amount in amounts.items()}

    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-of-{name}"},
        "spec": {"hard": requests(hard)},
        "status": {"used": requests(used)},
    }


def unhealthy(on, gpus):
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": f"unhealthy-gpu-{on}", "namespace": "kube-system"},
        "data": {"gpus": gpus},
    }


# ---------------------------------------------------------------- gpu-manager and KubeShare


def gaia_node(name, gpus=2):
    capacity = {"tencent.com/vcuda-core": 100 * gpus, "tencent.com/vcuda-memory": 60 * gpus}
    return node(name, capacity)


def gaia_pod(name, on, cores, blocks, gpu, *, assigned=True, age=3 * DAY, **options):
    limits = {"tencent.com/vcuda-core": cores}
    if cores < 100:
        limits["tencent.com/vcuda-memory"] = blocks
    annotations = {
        "tencent.com/gpu-assigned": str(assigned).lower(),
        "tencent.com/predicate-gpu-idx-0": str(gpu),
        "tencent.com/predicate-node": on,
        "tencent.com/predicate-time": str((NOW - age) * 10**9),
    }
    return pod(name, on, limits, annotations, age=age, **options)


def kubeshare_node(name, first, gpus=1):
    info = "".join(f"{uuid(first + gpu)}:16160," for gpu in range(gpus))
    return node(name, {"nvidia.com/gpu": gpus}, {"kubeshare/gpu_info": info})


def share_pod(name, on, request, memory, *, gpuid="abcde", gpu=None):
    """A SharePod; with a GPU also served, by the pod that :func:`real_pod` makes."""
    document = pod(
        name,
        on,
        annotations={
            "kubeshare/gpu_request": request,
            "kubeshare/gpu_limit": "1.0",
            "kubeshare/gpu_mem": str(memory),
            "kubeshare/GPUID": gpuid,
        },
    )
    status = {}
    if gpu is not None:
        status = {
            "PodStatus": document["status"],
            "BoundDeviceID": uuid(gpu),
            "PodObjectMeta": {"uid": f"real-{name}"},
            "PodManagerPort": 50051,
        }
    return {**document, "kind": "SharePod", "apiVersion": "kubeshare.nthu/v1", "status": status}


def real_pod(of):
    meta = of["metadata"]
    owner = {"kind": "SharePod", "name": meta["name"], "uid": meta["uid"], "controller": True}
    made = pod(meta["name"], of["spec"]["nodeName"], annotations=meta["annotations"], owner=owner)
    made["metadata"]["uid"] = f"real-{meta['name']}"
    return made


# ---------------------------------------------------------------- the cluster


def items():
    """All objects."""
    shared = share_pod("jupyter-0", "kube-1", "0.4", 4 * GIB, gpu=31)
    return [
        volcano_node("a100-1", 1),
        volcano_node("a100-2", 5, healthy=(True, False)),
        volcano_node("a100-3", 9, ready=False, cordoned=True),
        gpushare_node("infer-1"),
        gaia_node("gaia-1"),
        kubeshare_node("kube-1", 31),
        node("no-gpu"),
        volcano_pod("train-resnet50-5d4f6c7b8-x2x9k", "a100-1", 1, 24000, 50),
        volcano_pod("train-bert-large-uncased-7c9d8f6b54-qq7lz", "a100-1", 1, 16000, 30),
        volcano_pod("infer-llama-0", "a100-1", 2, 30000, 60, age=9 * DAY),
        volcano_pod("infer-llama-1", "a100-1", 2, 8000, 20, bind="allocating", age=12 * MINUTE),
        volcano_pod("finished", "a100-1", 1, 40000, 100, state=FINISHED),
        volcano_pod("sweep-1", "a100-2", 5, 40000, 100),
        volcano_pod("on-a-sick-card", "a100-2", 6, 10000, 10, bind="allocating", age=5 * MINUTE),
        pod(
            "train-gpt-0",
            limits=volcano_limits(32000, 80),
            unschedulable="0/7 nodes are available: 3 Insufficient volcano.sh/vgpu-memory,"
            " 4 node(s) didn't match Pod's node affinity/selector.",
            age=40 * MINUTE,
        ),
        gpushare_pod("binpack-1", "infer-1", 11, 0),
        gpushare_pod("binpack-2", "infer-1", 11, 0),
        gpushare_pod("binpack-3", "infer-1", 20, 1),
        gpushare_pod("bad-index", "infer-1", 4, "one", phase="Pending", age=2 * HOUR),
        gpushare_pod("never-chosen", "infer-1", 4, phase="Pending", age=HOUR),
        gpushare_pod("forgotten", "infer-1", 8, 2, assigned=False, phase="Pending", age=2 * DAY),
        unhealthy("infer-1", "3"),
        gaia_pod("vcuda-50", "gaia-1", 50, 30, 0),
        gaia_pod("vcuda-whole", "gaia-1", 100, 0, 1),
        shared,
        real_pod(shared),
        pod("whole-card", "kube-1", {"nvidia.com/gpu": 1}),
    ]


def dump(objects=None):
    """Objects, all of them by default, as kubectl prints them."""
    return {"kind": "List", "apiVersion": "v1", "items": items() if objects is None else objects}


if __name__ == "__main__":
    print(json.dumps(dump()))
