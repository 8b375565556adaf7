"""The reaction of an owner when a Failed pod of it is deleted, by the owner's own object. Pure.

Each function reads one kind's object as the API server has it. Fields follow the operators' own
Go types; the table in :mod:`reconciler.owners.eviction` has the sources. An unreadable object, or
one with an unknown setting, has a reaction that may change more than the one pod.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Final, TypeVar

import msgspec

from vgpu.model.go_json import decode_go


class Reaction(msgspec.Struct, frozen=True):
    """What the owner does.

    Attributes:
        touches: the other effects, in words; "" if the owner changes only the pod itself.
        remakes: whether the owner creates another pod in its place.
        unread: whether the reaction is unknown, since the owner could not be read.
    """

    touches: str = ""
    remakes: bool = False
    unread: bool = False


def unread(why: str) -> Reaction:
    """The reaction of an owner that could not be read: it may do anything."""
    return Reaction(why, remakes=True, unread=True)


Judge = Callable[[bytes, str], Reaction]
"""The owner's object as JSON, and the pod's part of it (``OwnerKind.part``). Never raises."""

_Fields = TypeVar("_Fields", bound=msgspec.Struct)

_UNREADABLE: Final = unread("its object is malformed")
_REMADE: Final = Reaction(remakes=True)
_ENDED: Final = Reaction()


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    """The base of all objects: absent fields have Go's zero values."""


def _reads(fields: type[_Fields]) -> Callable[[Callable[[_Fields, str], Reaction]], Judge]:
    """Make a judge of a function of these fields of the owner's object."""
    decoder = msgspec.json.Decoder(fields)

    def of(judge: Callable[[_Fields, str], Reaction]) -> Judge:
        @wraps(judge)
        def read(text: bytes, part: str) -> Reaction:
            try:
                owner = decode_go(text, decoder)
            except (msgspec.DecodeError, RecursionError, ValueError):
                return _UNREADABLE
            return judge(owner, part)

        return read

    return of


# ---------------------------------------------------------------- Volcano's Job


class _VolcanoPolicy(_Object, frozen=True):
    action: str = ""
    event: str = ""
    events: tuple[str, ...] | None = None


class _VolcanoTask(_Object, frozen=True):
    name: str = ""
    policies: tuple[_VolcanoPolicy, ...] | None = None


class _VolcanoSpec(_Object, frozen=True):
    policies: tuple[_VolcanoPolicy, ...] | None = None
    tasks: tuple[_VolcanoTask, ...] | None = None


class _VolcanoState(_Object, frozen=True):
    phase: str = ""


class _VolcanoStatus(_Object, frozen=True):
    state: _VolcanoState = _VolcanoState()


class _VolcanoJob(_Object, frozen=True):
    spec: _VolcanoSpec = _VolcanoSpec()
    status: _VolcanoStatus = _VolcanoStatus()


_VOLCANO_ENDED: Final = frozenset({"Completed", "Failed", "Terminated"})
_VOLCANO_DELETED: Final = frozenset({"PodEvicted", "*"})
_VOLCANO_HARMLESS: Final = "SyncJob"


@_reads(_VolcanoJob)
def volcano_job(job: _VolcanoJob, task: str) -> Reaction:
    """Every deleted pod is a PodEvicted event; the task's policies come before the job's."""
    if job.status.state.phase in _VOLCANO_ENDED:
        return _ENDED
    of_task = [
        volcano_task.policies or ()
        for volcano_task in job.spec.tasks or ()
        if volcano_task.name == task
    ]
    for policies in (*of_task, job.spec.policies or ()):
        for policy in policies:
            events = {policy.event, *(policy.events or ())} & _VOLCANO_DELETED
            if events:
                touches = f"its policy for {min(events)} is {policy.action or 'not set'}"
                return _REMADE if policy.action == _VOLCANO_HARMLESS else Reaction(touches, True)
    return _REMADE


# ---------------------------------------------------------------- LeaderWorkerSet


class _GroupTemplate(_Object, frozen=True):
    restart_policy: str = ""
    size: int | None = None


class _GroupSpec(_Object, frozen=True):
    leader_worker_template: _GroupTemplate = _GroupTemplate()


class _LeaderWorkerSet(_Object, frozen=True):
    spec: _GroupSpec = _GroupSpec()


_ALONE: Final = frozenset({"None", "Default"})
_LEADER: Final = "0"


@_reads(_LeaderWorkerSet)
def leader_worker_set(owner: _LeaderWorkerSet, index: str) -> Reaction:
    """The workers' StatefulSet belongs to the leader's pod, and is deleted with it."""
    template = owner.spec.leader_worker_template
    if template.restart_policy not in _ALONE:
        policy = template.restart_policy or "RecreateGroupOnPodRestart"
        return Reaction(f"its restartPolicy is {policy}: the whole group is deleted", True)
    if not index or (index == _LEADER and template.size != 1):
        return Reaction("it leads its group: the workers are deleted with it", True)
    return _REMADE


# ---------------------------------------------------------------- Ray


class _RayGroup(_Object, frozen=True):
    num_of_hosts: int | None = None


class _RaySpec(_Object, frozen=True):
    worker_group_specs: tuple[_RayGroup, ...] | None = None


class _RayCluster(_Object, frozen=True):
    spec: _RaySpec = _RaySpec()


@_reads(_RayCluster)
def ray_cluster(cluster: _RayCluster, _: str) -> Reaction:
    """Ray deletes Failed pods itself, one by one, unless several hosts are one replica."""
    if any((group.num_of_hosts or 0) > 1 for group in cluster.spec.worker_group_specs or ()):
        return Reaction("it has a worker group whose replicas are of several pods each", True)
    return _REMADE


# ---------------------------------------------------------------- Argo


class _ArgoNode(_Object, frozen=True):
    phase: str = ""


class _ArgoStatus(_Object, frozen=True):
    phase: str = ""
    nodes: dict[str, _ArgoNode] | None = None


class _Workflow(_Object, frozen=True):
    status: _ArgoStatus = _ArgoStatus()


_ARGO_ENDED: Final = frozenset({"Succeeded", "Failed", "Error"})


@_reads(_Workflow)
def workflow(owner: _Workflow, node: str) -> Reaction:
    """Argo ignores the pod of a step that has ended; a running step without its pod is an error."""
    step = (owner.status.nodes or {}).get(node, _ArgoNode())
    if owner.status.phase in _ARGO_ENDED or step.phase in _ARGO_ENDED:
        return _ENDED
    return Reaction("it has not noted the end of this step", True)


# ---------------------------------------------------------------- what has conditions


class _Condition(_Object, frozen=True):
    type: str = ""
    status: str = ""


class _ConditionsStatus(_Object, frozen=True):
    conditions: tuple[_Condition, ...] | None = None


class _WithConditions(_Object, frozen=True):
    status: _ConditionsStatus = _ConditionsStatus()


def _has_ended(owner: _WithConditions, ends: Iterable[str]) -> Reaction:
    true = {
        condition.type for condition in owner.status.conditions or () if condition.status == "True"
    }
    if true.intersection(ends):
        return _ENDED
    return Reaction("it has not ended: it counts its pods, and makes what is missing", True)


@_reads(_WithConditions)
def training_job(owner: _WithConditions, _: str) -> Reaction:
    """Kubeflow's jobs: a job that has ended creates and counts no pods any more."""
    return _has_ended(owner, ("Succeeded", "Failed"))


@_reads(_WithConditions)
def broadcast_job(owner: _WithConditions, _: str) -> Reaction:
    """Kruise's BroadcastJob: the same."""
    return _has_ended(owner, ("Complete", "Failed"))


# ---------------------------------------------------------------- Spark, CloneSet


class _SparkState(_Object, frozen=True):
    state: str = ""


class _SparkStatus(_Object, frozen=True):
    application_state: _SparkState = _SparkState()


class _SparkApplication(_Object, frozen=True):
    status: _SparkStatus = _SparkStatus()


@_reads(_SparkApplication)
def spark_application(application: _SparkApplication, _: str) -> Reaction:
    """A run without its driver fails, and may be started again, unless it has ended."""
    state = application.status.application_state.state
    if state in ("COMPLETED", "FAILED"):
        return _ENDED
    return Reaction(f"its state is {state or 'not set'}: a missing driver fails it", True)


class _CloneSetSpec(_Object, frozen=True):
    volume_claim_templates: tuple[msgspec.Raw, ...] | None = None


class _CloneSet(_Object, frozen=True):
    spec: _CloneSetSpec = _CloneSetSpec()


@_reads(_CloneSet)
def clone_set(owner: _CloneSet, _: str) -> Reaction:
    """Failed pods are no replicas; but a pod's volume claims are deleted with it."""
    if owner.spec.volume_claim_templates:
        return Reaction("it has volumeClaimTemplates: the pod's volume claims go with it")
    return _ENDED
