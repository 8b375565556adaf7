"""Pods as the API server tells them: a dump of ``kubectl get pods -A -o json``.

For nodes without access to the API server, and for tests. Only the fields named here are
decoded.
"""

import msgspec

from vgpu.facts import ContainerName, PodStatus
from vgpu.model import PodRef
from vgpu.reasons import Reason, SourceError

PODS_FILE_LIMIT = 64 * 1024 * 1024
"""Bytes; about 9,000 pods. For a larger cluster, dump one node's with a field selector."""

GPU_RESOURCES = frozenset(
    {
        "volcano.sh/vgpu-number",
        "volcano.sh/vgpu-memory",
        "volcano.sh/vgpu-cores",
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpucores",
        "aliyun.com/gpu-mem",
        "tencent.com/vcuda-core",
        "tencent.com/vcuda-memory",
    }
)
"""Asking for one of these is asking for a GPU."""

GPU_MARKS = ("kubeshare/gpu_", "sharedgpu/gpu_")
"""KubeShare asks by annotation (version 1) or label (version 2) instead."""

MIRROR = "kubernetes.io/config.mirror"
"""A static pod's mirror: the value is the UID that the kubelet itself uses for the pod."""


class PodList(msgspec.Struct, frozen=True):
    """What one dump says; the fields are those of :class:`~vgpu.facts.KubeletSample`."""

    pods: dict[str, PodRef]
    containers: dict[str, ContainerName]
    statuses: tuple[PodStatus, ...]


Quantity = str | int | float


class _Resources(msgspec.Struct, frozen=True, gc=False):
    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}


class _Container(msgspec.Struct, frozen=True, gc=False):
    resources: _Resources = _Resources()


class _Spec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    containers: list[_Container] = []
    init_containers: list[_Container] = []


class _ContainerStatus(msgspec.Struct, frozen=True, gc=False):
    name: str
    container_id: str = msgspec.field(name="containerID", default="")


class _Status(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    reason: str = ""
    container_statuses: list[_ContainerStatus] = []
    init_container_statuses: list[_ContainerStatus] = []
    ephemeral_container_statuses: list[_ContainerStatus] = []


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    name: str
    namespace: str
    uid: str
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


class _Pod(msgspec.Struct, frozen=True, gc=False):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Dump(msgspec.Struct):
    items: list[_Pod]


_DECODER = msgspec.json.Decoder(_Dump)


def parse_pods(content: bytes, subject: str = "pods", node: str = "") -> PodList:
    """The pods of a dump that are bound to ``node``, of any node if it is "".

    Mirror pods come under the UID that the kubelet knows. Nothing is kept of other nodes' pods,
    so that the cost does not grow with the cluster.

    Raises SourceError: MALFORMED; ABSENT if there are pods, but none is on ``node``.
    """
    try:
        dump = _DECODER.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, subject, str(error)) from error
    pods: dict[str, PodRef] = {}
    containers: dict[str, ContainerName] = {}
    statuses = []
    here = [pod for pod in dump.items if node in ("", pod.spec.node_name)]
    if dump.items and not here:
        detail = f"none of its {len(dump.items)} pods is on node {node!r} (--node-name)"
        raise SourceError(Reason.ABSENT, subject, detail)
    for pod in here:
        meta, status = pod.metadata, pod.status
        ref = PodRef(meta.annotations.get(MIRROR, meta.uid), meta.namespace, meta.name)
        pods[ref.uid] = ref
        statuses.append(PodStatus(ref, status.phase, status.reason, _wants_gpu(pod)))
        for container in (
            *status.container_statuses,
            *status.init_container_statuses,
            *status.ephemeral_container_statuses,
        ):
            # "<runtime>://<id>", or nothing before the first start
            if container_id := container.container_id.partition("://")[2]:
                containers[container_id] = ContainerName(
                    meta.namespace, meta.name, container.name, ref.uid
                )
    return PodList(pods, containers, tuple(statuses))


def _wants_gpu(pod: _Pod) -> bool:
    asked = (
        quantities
        for container in (*pod.spec.containers, *pod.spec.init_containers)
        for quantities in (container.resources.limits, container.resources.requests)
    )
    marks = (*pod.metadata.annotations, *pod.metadata.labels)
    return any(mark.startswith(GPU_MARKS) for mark in marks) or any(
        resource in GPU_RESOURCES and str(quantity) != "0"
        for quantities in asked
        for resource, quantity in quantities.items()
    )
