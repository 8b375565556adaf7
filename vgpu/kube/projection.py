"""What is kept of a pod or node: the few things of :mod:`vgpu.kube.objects`, the rest is dropped.

A pod that has nothing to do with sharing GPUs is told before anything is made of it. A SharePod of
KubeShare comes in the shape of a pod, with what only it knows in the annotations ``SHARE_POD``,
``BOUND_DEVICE`` and ``MANAGER_PORT``. Strings that repeat from pod to pod are kept once.
"""

import re
import sys
from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import msgspec

from vgpu.kube import wire
from vgpu.kube.objects import (
    BOUND_DEVICE,
    MANAGER_PORT,
    SHARE_POD,
    Container,
    ContainerState,
    Lease,
    Node,
    OwnerReference,
    Pod,
    Status,
)
from vgpu.model import ContainerKind, PodRef
from vgpu.reasons import Reason, SourceError

# ---------------------------------------------------------------- what is kept

RESOURCES: Final = (
    "volcano.sh/",
    "nvidia.com/gpu",  # HAMi's gpumem, gpucores and gpumem-percentage too
    "nvidia.com/mig-",
    "nvidia.com/priority",  # HAMi
    "aliyun.com/gpu",
    "tencent.com/vcuda-",
    "vgpu.dev/",
)
"""Extended resources that begin so are kept, and asking for one is sharing GPUs."""

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
"""Annotations and labels that begin so are kept, and a pod that has one shares GPUs."""

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
"""Annotations and labels that begin so are kept of objects that are kept anyway."""

KEPT_ENV: Final = "CUDA_DISABLE_CONTROL"
"""The one environment variable of containers that is kept: HAMi-core's."""

_NATIVE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
"""All that most containers ask for."""

_DERIVED: Final = frozenset({SHARE_POD, BOUND_DEVICE, MANAGER_PORT})
"""These say what a SharePod's status says: nobody may write them by hand."""

_KUBELET: Final = "kubelet"
"""The name that it writes under."""

_DATED: Final = frozenset({"Pending", "Failed"})
"""Phases of pods whose last status has a time: these may have to be told from a dead kubelet's."""

NEVER_STARTED: Final = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of an end that the runtime (containerd, Docker) tells. A message with another reason is
the container's own, who may write there what it likes, and as much."""

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
    return any(map(_is_mark, (*pod.annotations, *pod.labels))) or asks_for_gpus(pod)


def _asks(limits: Mapping[str, int], broken: Mapping[str, str]) -> bool:
    return bool(broken) or any(limits.values())


# ---------------------------------------------------------------- projection

_NOTHING: Final[Mapping[str, Any]] = {}
"""One empty mapping for all the pods and containers that have none of a thing."""


@lru_cache(_REMEMBERED)
def _is_resource(name: str) -> bool:
    return name.startswith(RESOURCES)


@lru_cache(_REMEMBERED)
def _is_mark(key: str) -> bool:
    return key.startswith(MARKS)


@lru_cache(_REMEMBERED)
def is_kept(key: str) -> bool:
    """Whether an annotation or label of this key is kept of an object: the others are not seen."""
    return key.startswith((*MARKS, *ALSO_KEPT)) and key not in _DERIVED


def wire_shares_gpus(pod: wire.PodFields) -> bool:
    """:func:`shares_gpus` of a pod that has not been projected yet."""
    meta, spec = pod.metadata, pod.spec
    if any(map(_is_mark, meta.annotations or ())) or any(map(_is_mark, meta.labels or ())):
        return True
    return any(
        _asks(*_limits(container.resources))
        for container in (*(spec.containers or ()), *(spec.init_containers or ()))
    )


def project_pod(pod: wire.PodFields, status: wire.PodStatusFields) -> Pod:
    """A pod, with when its status was written, where that is of interest."""
    dated = status.phase in _DATED
    status_at = _status_at(pod.metadata.managed_fields) if dated else None
    return _project(pod.metadata, pod.spec, status, _NOTHING, status_at)


def project_share_pod(pod: wire.SharePodFields) -> Pod:
    """A SharePod in the shape of a pod, whose status is that of the pod that was made for it."""
    status = pod.status
    real = status.pod_object_meta
    derived = {SHARE_POD: real.uid if real else ""}
    if status.bound_device_id:
        derived[BOUND_DEVICE] = status.bound_device_id
    if status.pod_manager_port:
        derived[MANAGER_PORT] = str(status.pod_manager_port)
    return _project(pod.metadata, pod.spec, status.pod_status or wire.PodStatusFields(), derived)


def _project(
    meta: wire.PodMeta,
    spec: wire.PodSpec,
    status: wire.PodStatusFields,
    derived: Mapping[str, str],
    status_at: float | None = None,
) -> Pod:
    containers = _containers(spec)
    scheduled = next((c for c in status.conditions or () if c.type == "PodScheduled"), None)
    annotations = _kept(meta.annotations)
    return Pod(
        ref=PodRef(meta.uid, sys.intern(meta.namespace), meta.name),
        resource_version=meta.resource_version,
        node=sys.intern(spec.node_name),
        annotations={**annotations, **derived} if derived else annotations,
        labels=_kept(meta.labels),
        containers=containers,
        phase=sys.intern(status.phase),
        reason=sys.intern(status.reason),
        message=status.message,
        statuses=_statuses(status, containers),
        created_at=_seconds(meta.creation_timestamp),
        deleted_at=_seconds(meta.deletion_timestamp),
        scheduled_at=_seconds(scheduled.last_transition_time) if scheduled else None,
        unschedulable=scheduled.message or scheduled.reason
        if scheduled and scheduled.status == "False"
        else "",
        owner=_owner(meta.owner_references),
        priority=spec.priority or 0,
        started_at=_seconds(status.start_time),
        status_at=status_at,
        gated=bool(spec.scheduling_gates),
        restart_policy=sys.intern(spec.restart_policy or "Always"),
        tracked=TRACKED in (meta.finalizers or ()),
    )


_MANAGED: Final = msgspec.json.Decoder(list[wire.ManagedFields] | None)


def _status_at(fields: msgspec.Raw) -> float | None:
    """When the kubelet last wrote the status; if it never did, when anybody did.

    Whoever makes a pod may send entries of their own: what cannot be read of them tells nothing.
    """
    try:
        written = _MANAGED.decode(fields) or ()
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    times = [
        (each.manager == _KUBELET, at)
        for each in written
        if each.subresource == "status" and (at := _moment(each.time)) is not None
    ]
    return max(times)[1] if times else None


def _moment(text: str | None) -> float | None:
    """A time of RFC 3339 in unix seconds; None for what is none, such as Go's year 0."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.timestamp()


def _owner(references: list[wire.OwnerFields] | None) -> OwnerReference | None:
    for reference in references or ():
        if reference.controller:
            return OwnerReference(
                sys.intern(reference.kind),
                reference.name,
                reference.uid,
                sys.intern(reference.api_version),
            )
    return None


def _containers(spec: wire.PodSpec) -> tuple[Container, ...]:
    kinds = [ContainerKind.APP] * len(spec.containers or ())
    for container in spec.init_containers or ():
        always = container.restart_policy == "Always"
        kinds.append(ContainerKind.SIDECAR if always else ContainerKind.INIT)
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    return tuple(map(_container, containers, kinds))


def _container(container: wire.ContainerFields, kind: ContainerKind) -> Container:
    limits, broken = _limits(container.resources)
    return Container(sys.intern(container.name), limits, kind, broken, _env(container.env))


_ENV: Final = msgspec.json.Decoder(list[wire.EnvFields] | None)
_KEPT_ENV: Final = KEPT_ENV.encode()


def _env(fields: msgspec.Raw) -> Mapping[str, str]:
    """Of variables of the same name the last counts, as it does in the container."""
    text = bytes(fields)
    if _KEPT_ENV not in text:
        return _NOTHING
    try:
        told = _ENV.decode(text) or ()
    except (msgspec.DecodeError, ValueError, RecursionError):  # it is as if there were none
        return _NOTHING
    values = [each.value for each in told if each.name == KEPT_ENV]
    return {KEPT_ENV: values[-1]} if values else _NOTHING


def _statuses(
    status: wire.PodStatusFields, containers: tuple[Container, ...]
) -> tuple[Status, ...]:
    kinds = {container.name: container.kind for container in containers}
    told = (
        (status.container_statuses, ContainerKind.APP),
        (status.init_container_statuses, ContainerKind.INIT),
        (status.ephemeral_container_statuses, ContainerKind.EPHEMERAL),
    )
    return tuple(
        _status(one, kinds.get(one.name, kind)) for list_, kind in told for one in list_ or ()
    )


def _status(status: wire.StatusFields, kind: ContainerKind) -> Status:
    state, detail = ContainerState.WAITING, status.state.waiting
    if status.state.terminated is not None:
        state, detail = ContainerState.TERMINATED, status.state.terminated
    elif status.state.running is not None:
        state, detail = ContainerState.RUNNING, status.state.running
    detail = detail or wire.StateDetail()
    last = status.last_state.terminated or wire.StateDetail()
    return Status(
        name=sys.intern(status.name),
        state=state,
        id=status.container_id.partition("://")[2],
        kind=kind,
        reason=sys.intern(detail.reason),
        message=detail.message,
        finished_at=_seconds(detail.finished_at),
        restarts=status.restart_count,
        last_reason=sys.intern(last.reason),
        last_message=last.message if last.reason in NEVER_STARTED else "",
    )


def project_node(node: wire.NodeFields, subject: str) -> Node:
    """A node. Raises SourceError MALFORMED for an extended resource that is no whole number."""
    meta, status = node.metadata, node.status
    capacity, broken = _units(status.capacity or _NOTHING)
    allocatable, also_broken = _units(status.allocatable or _NOTHING)
    for name, text in (*broken.items(), *also_broken.items()):
        detail = f"{name[:_QUOTED]}: not a whole number: {text!r}"
        raise SourceError(Reason.MALFORMED, subject, detail)
    internal = (a.address for a in status.addresses or () if a.type == "InternalIP")
    return Node(
        name=sys.intern(meta.name),
        resource_version=meta.resource_version,
        annotations=_kept(meta.annotations),
        labels=_kept(meta.labels),
        capacity=capacity,
        allocatable=allocatable,
        address=next(internal, ""),
        ready=any(c.type == "Ready" and c.status == "True" for c in status.conditions or ()),
        unschedulable=bool(node.spec.unschedulable),
        uid=meta.uid,
    )


def project_lease(lease: wire.LeaseFields) -> Lease:
    """A Lease."""
    meta, spec = lease.metadata, lease.spec
    return Lease(
        namespace=meta.namespace,
        name=meta.name,
        resource_version=meta.resource_version,
        holder=spec.holder_identity or "",
        duration_seconds=spec.lease_duration_seconds or 0,
        acquired_at=_seconds(spec.acquire_time),
        renewed_at=_seconds(spec.renew_time),
        transitions=spec.lease_transitions or 0,
    )


def _kept(texts: dict[str, str] | None) -> Mapping[str, str]:
    kept = {sys.intern(key): text for key, text in (texts or _NOTHING).items() if is_kept(key)}
    return kept or _NOTHING


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()


# ---------------------------------------------------------------- quantities

_QUANTITY = re.compile(
    r"\+?(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,2})|([a-zA-Z]{0,2}))"
)
_SUFFIXES: Final = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}
_LARGEST: Final = 2**63 - 1
_LONGEST: Final = 19
"""Characters of the largest number."""
_Extended = tuple[Mapping[str, int], Mapping[str, str]]
_QUOTED: Final = 64
"""Characters of a broken quantity that are kept, and of a name that an error repeats."""


def _limits(resources: wire.Resources) -> _Extended:
    limits, requests = resources.limits or _NOTHING, resources.requests or _NOTHING
    if _NATIVE.issuperset(limits) and _NATIVE.issuperset(requests):  # nearly all
        return _NOTHING, _NOTHING
    return _units({**requests, **limits})


def _units(quantities: Mapping[str, wire.Quantity]) -> _Extended:
    """The extended resources among them in units, and the texts of those that are no number."""
    found: dict[str, int] = {}
    broken: dict[str, str] = {}
    for name, quantity in quantities.items():
        if _is_resource(name):
            units = whole(str(quantity))
            if units is None:
                broken[sys.intern(name)] = str(quantity)[:_QUOTED]
            else:
                found[sys.intern(name)] = units
    return found or _NOTHING, broken or _NOTHING


def whole(quantity: str) -> int | None:
    """A Kubernetes quantity (``8``, ``8k``, ``1Ki``, ``2e3``) as a whole number of units.

    None if it is not one, is negative, or is beyond 64 bits. The grammar is apimachinery's
    ``resource.Quantity``.
    """
    return _whole(quantity) if len(quantity) <= _LONGEST else None


@lru_cache(_REMEMBERED)
def _whole(quantity: str) -> int | None:
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        return None
    digits, fraction, exponent, suffix = match.groups()
    scale = Fraction(10) ** int(exponent) if exponent else _SUFFIXES.get(suffix)
    if scale is None:
        return None
    units = Fraction(f"{digits or 0}.{fraction or 0}") * scale
    return int(units) if units.denominator == 1 and units <= _LARGEST else None
