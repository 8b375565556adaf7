"""The cluster of ``make demo``: the demo's node, three more nodes, and typical leftovers.

The demo's node is mixed: pods of all systems. Each other node has one system: gpu-node-2 HAMi,
gpu-node-3 and gpu-node-4, which joins later, gpushare, gpu-node-5 gpu-manager.

On the demo's node ``ranker`` was refused and is long replaced; ``tts`` was reserved a GPU that it
was never allocated; a completed run's refused pod is still there; a lock's owner is gone. On
gpu-node-2 a binding failed and left its claim, and the scheduler has abandoned the node although
its plugin lives. On gpu-node-5 the plugin refuses to start ``retrieval``. The reconciler skips a
pod without a controller, one whose owner asked for it, and one on a node that is not ready.

Components of the systems are installed with mistakes: HAMi's scheduler was upgraded and its device
plugin was not; kube-scheduler's configuration ignores an extender that is away; gpu-admission is
missing; the node that is not ready has no plugin.
"""

from typing import Any, Final

from msgspec import structs

from simulator.cluster import Story
from simulator.demo import L40S, demo, make_pod, make_share, make_shim
from simulator.objects import stamp
from simulator.scenario import (
    HAMI_ROOT,
    Process,
    Scenario,
    Shape,
    SimulatedGpu,
    SimulatedPod,
    Waveform,
    identity,
)
from simulator.store import Json
from vgpu.model.names import PodRef, Scheme
from vgpu.model.units import GIB, MIB
from vgpu.schemes.codec import HandshakeState
from vgpu.schemes.volcano.codec import HAMI
from vgpu.schemes.volcano.node import handshake_text, lock_text

_OLD = -900.0
"""Start of all problems, in seconds: longer ago than the reconciler waits for any of them."""

_DAY = -86400.0


def _gpu(node: str, index: int) -> SimulatedGpu:
    return SimulatedGpu(
        uuid=f"GPU-{identity(f'{node}/gpu/{index}')}",
        index=index,
        name="NVIDIA A100-SXM4-80GB",
        pci_bus_id=f"00000000:{0x07 + 0x40 * index:02X}:00.0",
        memory_bytes=81920 * MIB,
        reserved_bytes=600 * MIB,
        baseline_bytes=16 * MIB,
        idle_watts=60.0,
        limit_watts=400.0,
        sm_hertz=1.41e9,
        memory_hertz=1.593e9,
    )


_OF_HAMI = tuple(_gpu("gpu-node-2", index) for index in range(2))
_OF_GPUSHARE = tuple(_gpu("gpu-node-3", index) for index in range(2))
_OF_GAIA = tuple(_gpu("gpu-node-5", index) for index in range(2))

JOINING: Final = Scenario(
    node="gpu-node-4", gpus=tuple(_gpu("gpu-node-4", index) for index in range(2)), pods=()
)
"""A node that joins later, on which the scheduler places pods of gpushare."""


def _refused(path: str, gpu: SimulatedGpu, owner: str = "") -> SimulatedPod:
    """A pod of gpu-manager's that the kubelet did not admit."""
    return make_pod(
        path,
        Scheme.GAIA,
        (make_share(gpu, 4, 20),),
        phase="Failed",
        reason="UnexpectedAdmissionError",
        message=(
            "Pod was rejected: Allocate failed due to rpc error: code = Unknown"
            " desc = candidate pod not found for request, which is unexpected"
        ),
        owner=owner,
        created=_OLD,
    )


# ---------------------------------------------------------------- the demo's node

_RANKER = _refused("recsys/ranker-84b5c6d7f-9tq4m/ranker", L40S, "ReplicaSet/ranker-84b5c6d7f")
_TTS = make_pod(
    "speech/tts-5c6d7f8b9-k8x2v/tts",
    Scheme.GPUSHARE,
    (make_share(L40S, 2),),
    phase="Pending",
    owner="ReplicaSet/tts-5c6d7f8b9",
    created=_OLD,
)
_TTS_HEIR = make_pod(
    "speech/tts-5c6d7f8b9-7wzrn/tts",
    Scheme.GPUSHARE,
    (make_share(L40S, 2),),
    (
        Process(
            pid=1201338,
            gpu=L40S.index,
            data=Waveform(low=0.8 * GIB, high=1.2 * GIB, period=40),
            sm=Waveform(low=0, high=0.1, period=30, shape=Shape.SAW),
        ),
    ),
    owner="ReplicaSet/tts-5c6d7f8b9",
)

# ---------------------------------------------------------------- its neighbours


def _retrieval(name: str, **of_pod: Any) -> SimulatedPod:
    return make_pod(
        f"recsys/retrieval-7b9c5d6f48-{name}/retrieval",
        Scheme.GAIA,
        (make_share(_OF_GAIA[0], 16, 20),),
        owner="ReplicaSet/retrieval-7b9c5d6f48",
        **of_pod,
    )


_RETRIEVAL = _retrieval("ghj2s", phase="Pending", created=_OLD)
_RERANK = make_pod(
    "serving/rerank-6b8d9f7c54-pq2lw/rerank",
    Scheme.VOLCANO,
    (make_share(_OF_HAMI[1], 24, 40),),
    shim=make_shim("v1.2", HAMI_ROOT),
    owner="ReplicaSet/rerank-6b8d9f7c54",
    created=_DAY,
)
_SWEEP = make_pod(
    "research/sweep-3/trial",
    Scheme.VOLCANO,
    (make_share(_OF_HAMI[1], 24, 40),),
    shim=make_shim("v1.2", HAMI_ROOT),
    phase="Pending",
    owner="StatefulSet/sweep",
    created=_OLD,
)
_SHELL = _refused("research/debug-shell/shell", _OF_GAIA[1])
_KEPT = _refused(
    "vision/calibration-7f9d8c6b5d-vv2kx/calibrate",
    _OF_GAIA[1],
    "ReplicaSet/calibration-7f9d8c6b5d",
)
_FAR_AWAY = make_pod(
    "speech/captions-59c7d6f8b4-lm5qt/asr",
    Scheme.GPUSHARE,
    (make_share(_OF_GPUSHARE[0], 8),),
    phase="Pending",
    owner="ReplicaSet/captions-59c7d6f8b4",
    created=_OLD,
)


_TEAMS: Final = (
    ("serving", "inference", "96Gi", "8"),
    ("recsys", "inference", "64Gi"),
    ("research", "research", "96Gi"),
    ("teaching", "research"),
    ("speech", "media"),
    ("vision", "media"),
)
"""Namespaces with their team, and their quotas of memory and GPUs; none of them exceeds one."""


def demo_cluster(start: float) -> Story:
    """The cluster; ``start`` is the unix time of second 0."""
    node = demo()
    gone = PodRef(uid="", namespace="serving", name="chat-7c9d8b6f5d-r8m6d")
    return Story(
        nodes=(
            structs.replace(node, pods=(*node.pods, _RANKER, _TTS)),
            Scenario(node="gpu-node-2", gpus=_OF_HAMI, pods=(_RERANK, _SWEEP)),
            Scenario(node="gpu-node-3", gpus=_OF_GPUSHARE, pods=(_FAR_AWAY,)),
            Scenario(
                node="gpu-node-5",
                gpus=_OF_GAIA,
                pods=(_retrieval("t6r8d", created=_DAY), _RETRIEVAL, _SHELL, _KEPT),
            ),
        ),
        deviations={
            "gpu-node-1": _marks({HAMI.locks[0]: lock_text(start + _OLD, gone)}),
            "gpu-node-2": _marks(
                {HAMI.handshake[0]: handshake_text(HandshakeState.DELETED, start + _OLD, HAMI)}
            ),
            "gpu-node-3": {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
            "recsys/retrieval-7b9c5d6f48-ghj2s": {
                "metadata": {"managedFields": [_written_by_the_kubelet(start + _OLD)]},
                "status": {
                    "containerStatuses": [
                        {
                            "name": "retrieval",
                            "state": {
                                "waiting": {
                                    "reason": "CreateContainerConfigError",
                                    "message": "PreStartContainer check failed, device not found",
                                }
                            },
                        }
                    ]
                },
            },
            "research/sweep-3": {
                "spec": {"nodeName": None},
                "status": {"startTime": None},
            },
            "vision/calibration-7f9d8c6b5d-vv2kx": _marks({"vgpu.dev/reconcile": "false"}),
        },
        heirs={
            "speech/tts-5c6d7f8b9-k8x2v": _TTS_HEIR,
            "recsys/retrieval-7b9c5d6f48-ghj2s": _retrieval("m5c8t"),
        },
        installed=(*demo_installation(), *(_namespace(name, *of) for name, *of in _TEAMS)),
    )


def _namespace(name: str, team: str, *quotas: str) -> dict[str, Any]:
    annotations = dict(zip(("vgpu.dev/quota-memory", "vgpu.dev/quota-gpus"), quotas, strict=False))
    metadata = {"name": name, "labels": {"team": team}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _written_by_the_kubelet(seconds: float) -> dict[str, Any]:
    """When the pod's status was written: only this shows since when a container waits."""
    return {
        "manager": "kubelet",
        "operation": "Update",
        "apiVersion": "v1",
        "time": stamp(seconds),
        "fieldsType": "FieldsV1",
        "fieldsV1": {},
        "subresource": "status",
    }


def _marks(annotations: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}}


_SYSTEM: Final = "kube-system"

_CONFIG: Final = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 100
extenders:
  - urlPrefix: http://127.0.0.1:32766/gpushare-scheduler
    filterVerb: filter
    bindVerb: bind
    nodeCacheCapable: true
    ignorable: true
    managedResources:
      - name: aliyun.com/gpu-mem
"""


def _workload(
    kind: str, name: str, *containers: tuple[str, str, list[str]], desired: int = 1, ready: int = 1
) -> Json:
    """A workload; a container is its name, image and command line."""
    spec: Json = {
        "containers": [
            {"name": container, "image": image, "command": words}
            for container, image, words in containers
        ]
    }
    is_daemon = kind == "DaemonSet"
    counts: dict[str, Any] = {"desiredNumberScheduled": desired, "numberReady": ready}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": _SYSTEM},
        "spec": {**({} if is_daemon else {"replicas": desired}), "template": {"spec": spec}},
        "status": counts if is_daemon else {"readyReplicas": ready},
    }


def _with_config(workload: Json, name: str) -> Json:
    workload["spec"]["template"]["spec"]["volumes"] = [
        {"name": "config", "configMap": {"name": name}}
    ]
    return workload


def demo_installation() -> tuple[Json, ...]:
    """The objects."""
    hami = "docker.io/projecthami/hami"
    acs = "registry.cn-hangzhou.aliyuncs.com/acs"
    volcano = "docker.io/volcanosh/vc-scheduler:v1.14.1"
    vgpu_plugin = "docker.io/projecthami/volcano-vgpu-device-plugin:v1.12.0"
    kube_scheduler = (
        "kube-scheduler",
        "registry.k8s.io/kube-scheduler:v1.34.4",
        ["kube-scheduler"],
    )
    return (
        _workload(
            "DaemonSet",
            "hami-device-plugin",
            ("device-plugin", f"{hami}:v2.6.1", ["nvidia-device-plugin"]),
            ("vgpu-monitor", f"{hami}:v2.6.1", ["vGPUmonitor"]),
            desired=2,
            ready=2,
        ),
        _workload(
            "Deployment",
            "hami-scheduler",
            kube_scheduler,
            ("vgpu-scheduler-extender", f"{hami}:v2.8.0", ["scheduler"]),
        ),
        _workload(
            "DaemonSet",
            "gpushare-device-plugin-ds",
            (
                "gpushare",
                f"{acs}/k8s-gpushare-plugin:v2-1.11-aff8a23",
                ["gpushare-device-plugin-v2", "-logtostderr", "--memory-unit=GiB"],
            ),
            desired=2,
        ),
        _with_config(
            _workload(
                "Deployment",
                "gpushare-schd-extender",
                kube_scheduler,
                ("extender", f"{acs}/k8s-gpushare-schd-extender:1.11-d170d8a", []),
            ),
            "gpushare-scheduler-config",
        ),
        _workload(
            "DaemonSet",
            "gpu-manager-daemonset",
            ("gpu-manager", "docker.io/tkestack/gpu-manager:v1.1.5", []),
            desired=2,
            ready=2,
        ),
        _workload(
            "DaemonSet",
            "volcano-device-plugin",
            ("volcano-device-plugin", vgpu_plugin, ["/plugin", "--gpu-memory-factor=1024"]),
            desired=2,
            ready=2,
        ),
        _workload("Deployment", "volcano-scheduler", ("scheduler", volcano, ["/vc-scheduler"])),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "gpushare-scheduler-config", "namespace": _SYSTEM},
            "data": {"kube-scheduler.yaml": _CONFIG},
        },
    )
