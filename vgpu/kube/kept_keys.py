"""The annotations, labels, resources and variables that are kept of an object; pure.

The rest of an object is dropped. The sharing systems' rows have the prefixes of their keys
(:mod:`vgpu.schemes.registry`); this module has those that belong to no system.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from vgpu.model.objects import BOUND_DEVICE, BOUND_REASON, MANAGER_PORT, SHARE_POD, Pod
from vgpu.schemes.nvidia.gke import LABELS as GKE_LABELS
from vgpu.schemes.nvidia.resources import INSTANCES
from vgpu.schemes.nvidia.resources import others as other_names
from vgpu.schemes.other_schedulers import is_foreign_resource
from vgpu.schemes.other_schedulers import is_mark as is_mark_of_others
from vgpu.schemes.registry import SchemeRegistry, registry

OWN_RESOURCES: Final = (INSTANCES, "vgpu.dev/")
"""Prefixes of extended resources that are kept beside those of the systems' rows."""

GROUP_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
"""A label: the LeaderWorkerSet of a pod, whose owner is a StatefulSet."""

GROUP_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
"""A label: "0" is the leader of its group."""

JOB_SET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
"""A label: the JobSet of a pod, whose owner is a Job."""

STEP: Final = "workflows.argoproj.io/node-id"
"""An annotation: the step of the Argo Workflow that a pod runs."""

TRACKED: Final = "batch.kubernetes.io/job-tracking"
"""A finalizer: a Job has not counted the pod yet."""

QUEUES: Final = (
    "kueue.x-k8s.io/queue-name",
    "kueue.x-k8s.io/cluster-queue-name",
    "kueue.x-k8s.io/local-queue-name",
    "kueue.x-k8s.io/managed",
    "scheduling.volcano.sh/queue-name",
    "kai.scheduler/queue",
    "runai/queue",
    "pod-group-name",
)
"""Labels, and of Volcano an annotation: the queues of a pod, by its user and by Kueue. Of KAI
Scheduler also the annotation with its PodGroup, which names a queue."""

WORKLOAD: Final = "kueue.x-k8s.io/workload"
"""An annotation: the Workload of a pod, whatever owns the pod, since Kueue 0.14."""

ALSO_KEPT: Final = (
    *QUEUES,
    WORKLOAD,
    GROUP_NAME,
    GROUP_INDEX,
    JOB_SET_NAME,
    STEP,
    "vgpu.dev/",
    "kubernetes.io/config.mirror",
    "nvidia.com/gpu.product",
    *GKE_LABELS,
    "tkestack.io/gpu-",
)
"""Prefixes of annotations and labels that are kept beside those of the systems' rows."""

KEPT_ENV: Final = "CUDA_DISABLE_CONTROL"
"""The only environment variable of containers that is kept: HAMi-core's."""

_DERIVED: Final = frozenset({SHARE_POD, BOUND_DEVICE, MANAGER_PORT, BOUND_REASON})
"""Annotations that repeat a SharePod's status; they are dropped if a user writes them."""

_REMEMBERED: Final = 4096
"""Number of distinct keys that are cached; a cluster has a few hundred."""


class KeptKeys:
    """The keys that the rows of one registry keep. Keys repeat, so results are cached.

    Attributes:
        resources: prefixes of the extended resources that are kept; a pod that requests one shares
            GPUs.
        is_resource: whether an extended resource of this name is a shared GPU's.
        is_mark: whether a pod with an annotation or label of this key shares GPUs; so do pods of
            other GPU schedulers, which are only recognised.
        is_kept: whether an annotation or label of this key is kept.
    """

    def __init__(
        self,
        schemes: SchemeRegistry,
        also: frozenset[str] = frozenset(),
        others: frozenset[str] = frozenset(),
    ) -> None:
        """``also`` are more keys of annotations and labels that are kept.

        ``others`` are the other names of NVIDIA's resources.
        """
        resources = (*schemes.resource_prefixes, *OWN_RESOURCES)
        marks = schemes.mark_prefixes
        kept = (*schemes.kept_prefixes, *ALSO_KEPT)
        self.resources = resources
        named = schemes.resource_names

        @lru_cache(_REMEMBERED)
        def is_resource(name: str) -> bool:
            return name.startswith(resources) or name in others or name in named

        @lru_cache(_REMEMBERED)
        def is_mark(key: str) -> bool:
            return key.startswith(marks) or is_mark_of_others(key)

        @lru_cache(_REMEMBERED)
        def is_kept(key: str) -> bool:
            is_wanted = key.startswith(kept) or key in also or is_mark_of_others(key)
            return is_wanted and key not in _DERIVED

        self.is_resource: Callable[[str], bool] = is_resource
        self.is_mark: Callable[[str], bool] = is_mark
        self.is_kept: Callable[[str], bool] = is_kept


_of_registry = lru_cache(1)(KeptKeys)
_also: frozenset[str] = frozenset()


def keep_also(keys: Iterable[str]) -> None:
    """Keep annotations and labels of these keys, too: before the first object is read."""
    global _also  # noqa: PLW0603  # of the process, as the registry is
    _also = frozenset(keys)


def kept_keys() -> KeptKeys:
    """The kept keys of the current registry, and those of :func:`keep_also`."""
    return _of_registry(registry(), _also, other_names())


def is_gpu_resource(name: str) -> bool:
    """Whether an extended resource is a shared GPU's: a pod that requests it shares GPUs."""
    return kept_keys().is_resource(name)


def is_kept(key: str) -> bool:
    """Whether an annotation or label of this key is kept of an object: the others are dropped."""
    return kept_keys().is_kept(key)


def asks_for_gpus(pod: Pod) -> bool:
    """Whether a container of the pod requests a shared GPU's resources."""
    for container in pod.containers:  # called for every pod of a cluster
        if container.broken or (container.limits and any(container.limits.values())):
            return True
    return False


def asks_for_others(pod: Pod) -> bool:
    """Whether a container of the pod requests devices of a system that is recognised only."""
    return any(
        amount and is_foreign_resource(name)
        for container in pod.containers
        for name, amount in container.others.items()
    )


def shares_gpus(pod: Pod) -> bool:
    """Whether a pod requests shared GPUs, or has a sharing system's annotations or labels."""
    is_a_mark = kept_keys().is_mark
    has_mark = any(map(is_a_mark, (*pod.annotations, *pod.labels)))
    return has_mark or asks_for_gpus(pod) or asks_for_others(pod)
