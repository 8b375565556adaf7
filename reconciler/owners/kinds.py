"""The table of the kinds of owners: what happens when a Failed pod of one is deleted, and the
source of that.

Where an owner's own settings decide, ``judge`` reads them from its object. The table is a page of
the documentation, too. Pure.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from reconciler.owners import policies
from reconciler.owners.policies import Judge
from vgpu.kube.kept_keys import GROUP_INDEX, STEP
from vgpu.model.objects import Pod

TASK: Final = "volcano.sh/task-spec"
"""Volcano's annotation of the task that a pod is of."""


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
