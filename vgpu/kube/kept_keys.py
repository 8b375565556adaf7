"""Which annotations, labels, resources and variables are kept of an object; pure.

The rest of an object is dropped. A pod shares GPUs if it has a key of :data:`MARKS` or asks for a
resource of :data:`RESOURCES`.
"""

from functools import lru_cache
from typing import Final

from vgpu.kube.objects import BOUND_DEVICE, MANAGER_PORT, SHARE_POD, Pod

RESOURCES: Final = (
    "volcano.sh/",
    "nvidia.com/gpu",  # HAMi's gpumem, gpucores and gpumem-percentage too
    "nvidia.com/mig-",
    "nvidia.com/priority",  # HAMi
    "aliyun.com/gpu",
    "tencent.com/vcuda-",
    "vgpu.dev/",
)
"""Extended resources with these prefixes are kept; a pod that asks for one shares GPUs."""

MARKS: Final = (
    "volcano.sh/vgpu-",
    "volcano.sh/devices-to-allocate",
    "volcano.sh/gpu-",  # the older volcano-sh/devices
    "hami.io/vgpu-",
    "ALIYUN_COM_GPU_MEM_",
    "scheduler.framework.gpushare.",
    "tencent.com/",
    "kubeshare/",
    "sharedgpu/",
)
"""Annotations and labels with these prefixes are kept; a pod that has one shares GPUs."""

GROUP_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
"""A label: the LeaderWorkerSet of a pod, whose owner is a StatefulSet."""

GROUP_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
"""A label: "0" is the leader of its group."""

JOB_SET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
"""A label: the JobSet of a pod, whose owner is a Job."""

STEP: Final = "workflows.argoproj.io/node-id"
"""An annotation: which step of its Argo Workflow a pod is."""

TRACKED: Final = "batch.kubernetes.io/job-tracking"
"""A finalizer: a Job has not counted the pod yet."""

ALSO_KEPT: Final = (
    GROUP_NAME,
    GROUP_INDEX,
    JOB_SET_NAME,
    STEP,
    "volcano.sh/",  # bind-phase, bind-time, predicate-time; a node's register and handshake
    "hami.io/",
    "nvidia.com/",  # use-gputype of pods, gpu.product of nodes
    "gaia.tencent.com/",
    "vgpu.dev/",
    "scheduling.k8s.io/group-name",  # Volcano's pod group
    "scheduling.volcano.sh/group-name",  # its newer key
    "kubernetes.io/config.mirror",
    "hamivgpu",  # Volcano's node locks have no domain
    "vgpu4pd",
    "gpushare",
    "cgpu.disable.isolation",
    "nvidia-device-enable",
    "SharedGPU",
    "component",
    "aliyun.com/gpu-count",
    "clusterName",
)
"""Annotations and labels with these prefixes are kept of objects that are kept anyway."""

KEPT_ENV: Final = "CUDA_DISABLE_CONTROL"
"""The one environment variable of containers that is kept: HAMi-core's."""

_DERIVED: Final = frozenset({SHARE_POD, BOUND_DEVICE, MANAGER_PORT})
"""These annotations repeat a SharePod's status: nobody may write them by hand."""

_REMEMBERED: Final = 4096
"""Distinct keys; a cluster has a few hundred."""


def asks_for_gpus(pod: Pod) -> bool:
    """Whether a container of the pod asks for a shared GPU's resources."""
    for container in pod.containers:  # asked of every pod of a cluster
        if container.broken or (container.limits and any(container.limits.values())):
            return True
    return False


def shares_gpus(pod: Pod) -> bool:
    """Whether a pod asks for shared GPUs, or carries a sharing system's marks."""
    return any(map(is_mark, (*pod.annotations, *pod.labels))) or asks_for_gpus(pod)


@lru_cache(_REMEMBERED)
def is_resource(name: str) -> bool:
    """Whether an extended resource of this name is a shared GPU's."""
    return name.startswith(RESOURCES)


@lru_cache(_REMEMBERED)
def is_mark(key: str) -> bool:
    """Whether a pod with an annotation or label of this key shares GPUs."""
    return key.startswith(MARKS)


@lru_cache(_REMEMBERED)
def is_kept(key: str) -> bool:
    """Whether an annotation or label of this key is kept of an object: the others are dropped."""
    return key.startswith((*MARKS, *ALSO_KEPT)) and key not in _DERIVED
