"""Whose pods may be evicted: the kinds of owners, and what each does if a pod is deleted. Pure.

Some owners create another pod, or do nothing; some restart everything that they own. The table has
a row for each kind: what happens when a Failed pod of one is deleted, and the source of that. Where
an owner's own settings decide, ``judge`` reads them from its object, and its pods are tidied only
if it changes nothing else. Kinds that the configuration names are always allowed. The table is a
page of the documentation, too.
"""

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec

from reconciler.owners import policies
from reconciler.owners.policies import Judge, Reaction, unread
from reconciler.reasons import SkipReason
from vgpu.kube.errors import ClusterError
from vgpu.kube.kept_keys import GROUP_INDEX, GROUP_NAME, JOB_SET_NAME, STEP
from vgpu.model.go_json import decode_go
from vgpu.model.objects import Pod

TASK: Final = "volcano.sh/task-spec"
"""Volcano's annotation of the task that a pod is of."""


# ---------------------------------------------------------------- the table


class OwnerKind(msgspec.Struct, frozen=True):
    """One kind of owner.

    Attributes:
        kind, group: of the owner; the group is "" for Kubernetes' core.
        consequence: what happens when a Failed pod of the owner is deleted.
        source: the code or the test that shows it.
        remakes: whether the owner then creates another pod; ``judge`` overrides it.
        plural, judge: the owner's resource, and the function that reads its settings; "" and None
            where its settings make no difference.
        part: which part of its owner a pod is.
        listed: whether only the configuration's ``owners`` allow it, as for its living pods.
    """

    kind: str
    group: str
    consequence: str
    source: str
    remakes: bool = False
    plural: str = ""
    judge: Judge | None = None
    part: Callable[[Pod], str] = lambda _: ""
    listed: bool = False


_K8S: Final = "k8s.io/kubernetes v1.34.4 pkg/controller"
_TRAINING: Final = "kubeflow/training-operator v1.8.1 pkg/controller.v1/common"
_KRUISE: Final = "openkruise/kruise v1.8.0 pkg/controller"
_TRAINS: Final = (
    "Nothing, once the job has Succeeded or Failed. Before, it creates the missing replica again,"
    " whatever its restartPolicy, and the failure is not counted."
)


def _training(kind: str, plural: str) -> OwnerKind:
    source = f"{_TRAINING}/pod.go, job.go"
    judge = policies.training_job
    return OwnerKind(kind, "kubeflow.org", _TRAINS, source, plural=plural, judge=judge)


ROWS: Final = (
    OwnerKind(
        "ReplicaSet",
        "apps",
        "Nothing: a Failed pod is none of its replicas, its replacement is there.",
        f"{_K8S}/replicaset/replica_set.go (FilterActivePods)",
        listed=True,
    ),
    OwnerKind(
        "ReplicationController",
        "",
        "As a ReplicaSet, by the same code.",
        f"{_K8S}/replicaset/replica_set.go",
        listed=True,
    ),
    OwnerKind(
        "StatefulSet",
        "apps",
        "It creates that pod again, and no other. It deletes Failed pods itself.",
        f"{_K8S}/statefulset/stateful_set_control.go (processReplica)",
        remakes=True,
        listed=True,
    ),
    OwnerKind(
        "LeaderWorkerSet",
        "leaderworkerset.x-k8s.io",
        "With restartPolicy RecreateGroupOnPodRestart, the default, the whole group is deleted and"
        " recreated. With None only that pod is recreated; but with the leader's pod its workers"
        " are deleted. Its pods are known by a label: their owner is a StatefulSet.",
        "sigs.k8s.io/lws v0.6.0, v0.7.0, v0.8.0 pkg/controllers/pod_controller.go"
        " (handleRestartPolicy)",
        plural="leaderworkersets",
        judge=policies.leader_worker_set,
        part=lambda pod: pod.labels.get(GROUP_INDEX, ""),
    ),
    OwnerKind(
        "DaemonSet",
        "apps",
        "It creates that pod again. It deletes Failed pods itself, so the reconciler never does.",
        f"{_K8S}/daemon/daemon_controller.go",
        remakes=True,
    ),
    OwnerKind(
        "Job",
        "batch",
        "Nothing, once its tracking finalizer is gone: it is counted, and status.failed,"
        " failedIndexes and the back-off stay. Before that it is skipped.",
        "real runs on 1.34.4 with backoffLimit, podFailurePolicy, Indexed and backoffLimitPerIndex;"
        f" {_K8S}/job/job_controller.go (trackJobStatusAndRemoveFinalizers)",
    ),
    OwnerKind(
        "JobSet",
        "jobset.x-k8s.io",
        "Nothing, once its Job has counted it: the failurePolicy reacts to Jobs that have failed,"
        " not to pods. Its pods are known by a label: their owner is a Job. A TrainJob of Kubeflow"
        " owns a JobSet.",
        "sigs.k8s.io/jobset v0.7.0, v0.8.0, v0.10.1 pkg/controllers/failure_policy.go,"
        " pod_controller.go",
    ),
    OwnerKind(
        "Job",
        "batch.volcano.sh",
        "An event PodEvicted. The first policy of its task, then of the job, for it or for `*`"
        " decides: RestartJob and others stop all healthy pods. Without one, that pod is"
        " recreated; once the job has ended, no pod is.",
        "volcano.sh/volcano v1.10.0 pkg/controllers/job/job_controller_handler.go (deletePod),"
        " job_controller_util.go (applyPolicies), state/",
        plural="jobs",
        judge=policies.volcano_job,
        part=lambda pod: pod.annotations.get(TASK, ""),
    ),
    _training("PyTorchJob", "pytorchjobs"),
    _training("TFJob", "tfjobs"),
    _training("XGBoostJob", "xgboostjobs"),
    _training("PaddleJob", "paddlejobs"),
    _training("JAXJob", "jaxjobs"),
    OwnerKind(
        "MPIJob",
        "kubeflow.org",
        "Nothing, once the job has Succeeded or Failed. Before, it makes the missing worker again."
        " In v2beta1 the launcher's pod is a Job's.",
        "kubeflow/mpi-operator v0.6.0 pkg/controller/mpi_job_controller.go (getOrCreateWorker);"
        " kubeflow/training-operator v1.8.1",
        plural="mpijobs",
        judge=policies.training_job,
    ),
    OwnerKind(
        "RayCluster",
        "ray.io",
        "It makes that pod again. It deletes Failed pods itself, each alone; newer versions, with"
        " numOfHosts above 1, all pods of a replica. RayJob and RayService own RayClusters.",
        "ray-project/kuberay/ray-operator v1.3.0, v1.4.2 controllers/ray/raycluster_controller.go"
        " (reconcilePods, shouldDeletePod)",
        plural="rayclusters",
        judge=policies.ray_cluster,
    ),
    OwnerKind(
        "Workflow",
        "argoproj.io",
        "Nothing, once the workflow or this step of it has ended. Before, the step is marked as an"
        " error (pod deleted), and its retryStrategy begins.",
        "argoproj/argo-workflows v3.6.5 workflow/controller/operator.go (podReconciliation)",
        plural="workflows",
        judge=policies.workflow,
        part=lambda pod: pod.annotations.get(STEP, ""),
    ),
    OwnerKind(
        "SparkApplication",
        "sparkoperator.k8s.io",
        "Nothing, once its state is COMPLETED or FAILED. Before, a driver that is gone fails the"
        " run, and its restartPolicy may begin another. Executors are owned by their driver's pod:"
        " never touched.",
        "kubeflow/spark-operator v2.3.0 internal/controller/sparkapplication/controller.go"
        " (updateDriverState, reconcileTerminatedSparkApplication)",
        plural="sparkapplications",
        judge=policies.spark_application,
    ),
    OwnerKind(
        "CloneSet",
        "apps.kruise.io",
        "Nothing: a Failed pod is none of its replicas. But with volumeClaimTemplates the volume"
        " claims of that pod are deleted with it.",
        f"{_KRUISE}/cloneset/cloneset_controller.go (cleanupPVCs), utils/cloneset_utils.go",
        plural="clonesets",
        judge=policies.clone_set,
    ),
    OwnerKind(
        "StatefulSet",
        "apps.kruise.io",
        "It creates that pod again, and no other. It deletes Failed pods itself.",
        f"{_KRUISE}/statefulset/stateful_set_control.go (processReplica)",
        remakes=True,
    ),
    OwnerKind(
        "BroadcastJob",
        "apps.kruise.io",
        "Nothing, once it is Complete or Failed. Before, its node gets another pod, and the failure"
        " is not counted.",
        f"{_KRUISE}/broadcastjob/broadcastjob_controller.go, broadcastjob_utils.go",
        plural="broadcastjobs",
        judge=policies.broadcast_job,
    ),
)
"""Pods of other kinds of owners are report only."""


FAILED: Final = "Failed"


# ---------------------------------------------------------------- owners of pods


class OwnerId(msgspec.Struct, frozen=True, order=True):
    """An owner's object at the API server; ``uid`` is "" where the pod does not name it."""

    group: str
    version: str
    plural: str
    namespace: str
    name: str
    uid: str = ""


class OwnerSeen(msgspec.Struct, frozen=True):
    """An owner's object as JSON, or why it could not be read."""

    text: bytes = b""
    unread: str = ""


_BY_KIND: Final = {(row.group, row.kind): row for row in ROWS}
_OF_LABEL: Final = {
    ("apps", "StatefulSet"): (GROUP_NAME, _BY_KIND["leaderworkerset.x-k8s.io", "LeaderWorkerSet"]),
    ("batch", "Job"): (JOB_SET_NAME, _BY_KIND["jobset.x-k8s.io", "JobSet"]),
}
"""The owner of an owner, by the label that it puts on its pods."""

_JOBS: Final = frozenset({("batch", "Job"), ("jobset.x-k8s.io", "JobSet")})
_BUILT_IN: Final = {row.kind: row.group for row in ROWS if row.group in ("", "apps", "batch")}
"""Kinds that without a group are Kubernetes' own, even if others have kinds of the same name."""

_VERSION: Final = re.compile(r"v[0-9]{1,3}((alpha|beta)[0-9]{1,3})?", re.ASCII)
_GROUP_VERSION: Final = "v1"
"""The version of LeaderWorkerSet, which no pod names as its owner."""


def row_of(pod: Pod) -> OwnerKind | None:
    """The kind of the pod's owner; None if it has no owner, or one of an unknown kind."""
    if pod.owner is None:
        return None
    named = _BY_KIND.get((_group(pod), pod.owner.kind))
    label, behind = _OF_LABEL.get((_group(pod), pod.owner.kind), ("", None))
    return behind if behind is not None and label in pod.labels else named


def owner_id(pod: Pod) -> OwnerId | None:
    """The object that decides about this Failed pod's siblings; None if none does.

    An owner whose API version has no valid form is asked for as v1.
    """
    row = row_of(pod)
    if row is None or row.judge is None or pod.owner is None or pod.phase != FAILED:
        return None
    if behind := pod.labels.get(GROUP_NAME, "") if row.kind == "LeaderWorkerSet" else "":
        return OwnerId(row.group, _GROUP_VERSION, row.plural, pod.ref.namespace, behind)
    version = pod.owner.api_version.rpartition("/")[2]
    known = version if _VERSION.fullmatch(version) else _GROUP_VERSION
    owner = pod.owner
    return OwnerId(row.group, known, row.plural, pod.ref.namespace, owner.name, owner.uid)


class _Meta(msgspec.Struct, frozen=True):
    uid: str = ""


class _Any(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


_ANY: Final = msgspec.json.Decoder(_Any)


def reaction(pod: Pod, seen: OwnerSeen | None) -> Reaction:
    """The reaction to this Failed pod's deletion; ``seen`` is the object of :func:`owner_id`."""
    row, asked = row_of(pod), owner_id(pod)
    if row is None:
        return Reaction("its kind is not known", remakes=True)
    if row.judge is None or asked is None:
        return Reaction(remakes=row.remakes)
    if seen is None or seen.unread:
        return unread(seen.unread if seen else "not in this scope")
    if asked.uid and asked.uid != _uid(seen.text):
        return unread("another of its name is in its place")
    return row.judge(seen.text, row.part(pod))


def _uid(text: bytes) -> str:
    try:
        return decode_go(text, _ANY).metadata.uid
    except (msgspec.DecodeError, RecursionError, ValueError):
        return ""


def is_allowed(pod: Pod, allowed: tuple[str, ...]) -> bool:
    """Whether the configuration's ``owners`` name the pod's owner, or its owner's owner."""
    if pod.owner is None:
        return False
    row = row_of(pod)
    kind, group = (row.kind, row.group) if row else (pod.owner.kind, _group(pod))
    return any(_names(entry, kind, group) for entry in allowed)


def _names(entry: str, kind: str, group: str) -> bool:
    name, dot, of = entry.partition(".")
    return name == kind and (of == group if dot else _BUILT_IN.get(kind, group) == group)


def skip_reason(
    pod: Pod, allowed: tuple[str, ...], react: Callable[[Pod], Reaction]
) -> tuple[SkipReason, str] | None:
    """Why a pod with an owner is not evicted, with a detail in words; None if it may be."""
    if pod.owner is None:
        return None
    if pod.owner.kind == "DaemonSet":
        return SkipReason.DAEMON_SET_POD, ""
    if is_allowed(pod, allowed):
        return None
    row = row_of(pod)
    if row is None or row.listed:
        return SkipReason.OWNER_KIND, _spelled(pod)
    return _of_kind(row, pod, react)


def _of_kind(
    row: OwnerKind, pod: Pod, react: Callable[[Pod], Reaction]
) -> tuple[SkipReason, str] | None:
    """The same by the table, which allows evictions of Failed pods only."""
    failed = pod.phase == FAILED
    if (row.group, row.kind) in _JOBS:
        return None if failed and not pod.tracked else (SkipReason.JOB_POD, "")
    if not failed:
        return SkipReason.OWNER_KIND, f"{row.kind}.{row.group}: only its Failed pods are tidied"
    owner_reaction = react(pod)
    skip = SkipReason.OWNER_UNREAD if owner_reaction.unread else SkipReason.OWNER_POLICY
    return (skip, owner_reaction.touches) if owner_reaction.touches else None


def _spelled(pod: Pod) -> str:
    """The name of the owner's kind in the configuration."""
    group = _group(pod)
    kind = pod.owner.kind if pod.owner else ""
    return f"{kind}.{group}" if group and _BUILT_IN.get(kind) != group else kind


def _group(pod: Pod) -> str:
    return pod.owner.api_version.rpartition("/")[0] if pod.owner else ""


Read = Callable[[str, str, str, str, str], bytes]
"""Group, version, plural, namespace, name -> the object; raises ClusterError, SourceError."""

_ANSWERS: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN})


# ---------------------------------------------------------------- reading


def read_owner(read: Read, asked: OwnerId) -> OwnerSeen:
    """The owner as it is now. Raises ClusterError, SourceError if it cannot be read.

    An owner that does not exist, or that we may not read, is an answer: its pods are skipped.
    """
    try:
        parts = (asked.group, asked.version, asked.plural, asked.namespace, asked.name)
        return OwnerSeen(read(*parts))
    except ClusterError as error:
        if error.status not in _ANSWERS:
            raise
        gone = error.status == HTTPStatus.NOT_FOUND
        return OwnerSeen(unread="it is not there" if gone else error.message)
