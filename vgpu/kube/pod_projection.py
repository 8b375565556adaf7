"""A pod of the API server reduced to a :class:`~vgpu.model.objects.Pod`; pure.

Whether a pod shares GPUs is decided before it is reduced. A SharePod of KubeShare becomes a Pod,
with its own data in the annotations ``SHARE_POD``, ``BOUND_DEVICE``, ``MANAGER_PORT`` and
``BOUND_REASON``. Strings that repeat from pod to pod are kept once.
"""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from vgpu.kube import quantities, wire
from vgpu.kube.decode import decode_part
from vgpu.kube.kept_keys import KEPT_ENV, TRACKED, kept_keys
from vgpu.kube.projection import kept, seconds
from vgpu.model.go_json import decode_go
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import (
    BOUND_DEVICE,
    BOUND_REASON,
    MANAGER_PORT,
    SHARE_POD,
    Container,
    ContainerState,
    OwnerReference,
    Pod,
    Status,
    UsedClaim,
)
from vgpu.model.taints import parsed_tolerations

_KUBELET: Final = "kubelet"
"""The kubelet's name as the manager of fields."""

_DATED: Final = frozenset({"Pending", "Failed"})
"""Phases in which the status time is kept: a dead kubelet may have left a pod in them."""

NEVER_STARTED: Final = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of an end that the runtime (containerd, Docker) reports. With another reason the message
is the container's own: any text, of any length."""

_NOTHING: Final[Mapping[str, Any]] = {}
"""One empty mapping for all pods and containers without entries."""

_STATUS: Final = msgspec.json.Decoder(wire.PodStatusFields)
_MANAGED: Final = msgspec.json.Decoder(list[wire.ManagedFields] | None)
_ENV: Final = msgspec.json.Decoder(list[wire.EnvFields] | None)
_KEPT_ENV: Final = KEPT_ENV.encode()


def wire_shares_gpus(pod: wire.PodFields) -> bool:
    """:func:`shares_gpus` of a pod that has not been projected yet."""
    meta, spec = pod.metadata, pod.spec
    is_mark = kept_keys().is_mark
    if any(map(is_mark, meta.annotations or ())) or any(map(is_mark, meta.labels or ())):
        return True
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        units, broken = quantities.limits(container.resources)
        if broken or any(units.values()):
            return True
        if quantities.has_foreign(container.resources):
            return True
    return False


def project_pod(pod: wire.PodFields, object_name: str) -> Pod:
    """A pod, with the time of its status in the phases of ``_DATED``.

    Raises SourceError MALFORMED.
    """
    status = decode_part(pod.status, _STATUS, object_name, "status")
    dated = status.phase in _DATED
    status_at = _status_at(pod.metadata.managed_fields) if dated else None
    return _project(pod.metadata, pod.spec, status, _NOTHING, status_at)


def project_share_pod(pod: wire.SharePodFields, _: str) -> Pod:
    """A SharePod as a pod, with the status of the pod that KubeShare made for it."""
    status = pod.status
    real = status.pod_object_meta
    derived = {SHARE_POD: real.uid if real else ""}
    if status.bound_device_id:
        derived[BOUND_DEVICE] = status.bound_device_id
    if status.pod_manager_port:
        derived[MANAGER_PORT] = str(status.pod_manager_port)
    for condition in status.conditions or ():
        if condition.type == "Bound":
            derived[BOUND_REASON] = condition.reason
    return _project(pod.metadata, pod.spec, status.pod_status or wire.PodStatusFields(), derived)


def _project(
    meta: wire.PodMeta,
    spec: wire.PodSpec,
    status: wire.PodStatusFields,
    derived: Mapping[str, str],
    status_at: float | None = None,
) -> Pod:
    supplied = status.extended_resource_claim_status
    containers = _containers(spec, supplied)
    scheduled = next((c for c in status.conditions or () if c.type == "PodScheduled"), None)
    annotations = kept(meta.annotations)
    return Pod(
        ref=PodRef(meta.uid, sys.intern(meta.namespace), meta.name),
        resource_version=meta.resource_version,
        node=sys.intern(spec.node_name),
        annotations={**annotations, **derived} if derived else annotations,
        labels=kept(meta.labels),
        containers=containers,
        phase=sys.intern(status.phase),
        reason=sys.intern(status.reason),
        message=status.message,
        statuses=_statuses(status, containers),
        created_at=seconds(meta.creation_timestamp),
        deleted_at=seconds(meta.deletion_timestamp),
        scheduled_at=seconds(scheduled.last_transition_time) if scheduled else None,
        unschedulable=scheduled.message or scheduled.reason
        if scheduled and scheduled.status == "False"
        else "",
        owner=_owner(meta.owner_references),
        priority=spec.priority or 0,
        started_at=seconds(status.start_time),
        status_at=status_at,
        gated=bool(spec.scheduling_gates),
        unready_at=_unready_at(status.conditions or ()),
        grace_seconds=max(0, meta.deletion_grace_period_seconds or 0),
        restart_policy=sys.intern(spec.restart_policy or "Always"),
        tracked=TRACKED in (meta.finalizers or ()),
        nominated_node=sys.intern(status.nominated_node_name),
        preempts=spec.preemption_policy != "Never",
        uses_resource_claims=bool(spec.resource_claims) or supplied is not None,
        used_claims=tuple(_used_claims(spec, status)),
        tolerations=() if spec.node_name else parsed_tolerations(bytes(spec.tolerations)),
        scheduler=sys.intern(spec.scheduler_name),
        gates=tuple(gate.name for gate in spec.scheduling_gates or ()),
        finalizers=tuple(meta.finalizers or ()) if meta.deletion_timestamp else (),
    )


def _used_claims(spec: wire.PodSpec, status: wire.PodStatusFields) -> Iterator[UsedClaim]:
    """The ResourceClaims of the pod, by its spec and by what its status has made of templates."""
    made = {each.name: each.resource_claim_name for each in status.resource_claim_statuses or ()}
    for each in spec.resource_claims or ():
        name = each.resource_claim_name or made.get(each.name) or ""
        yield UsedClaim(each.name, name, each.resource_claim_template_name or "")
    supplied = status.extended_resource_claim_status
    if supplied is not None:
        yield UsedClaim("", supplied.resource_claim_name)


def _unready_at(conditions: Iterable[wire.Condition]) -> float | None:
    """Since when the pod's containers are not ready; None if they are, or if that is unknown."""
    by_type = {condition.type: condition for condition in conditions}
    condition = by_type.get("ContainersReady") or by_type.get("Ready")
    if condition is None or condition.status == "True":
        return None
    return seconds(condition.last_transition_time)


def _status_at(managed_fields: msgspec.Raw) -> float | None:
    """When the kubelet last wrote the status; if it never did, when any manager did.

    A pod's creator may send entries of their own, so unreadable entries are ignored.
    """
    try:
        written = decode_go(managed_fields, _MANAGED) or ()
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    times = [
        (fields.manager == _KUBELET, at)
        for fields in written
        if fields.subresource == "status" and (at := _moment(fields.time)) is not None
    ]
    return max(times)[1] if times else None


def _moment(text: str | None) -> float | None:
    """A time of RFC 3339 in unix seconds; None for an invalid one, such as Go's year 0."""
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


def _containers(
    spec: wire.PodSpec, supplied: wire.SuppliedResources | None
) -> tuple[Container, ...]:
    """The containers, without requests that a ResourceClaim supplies: no device plugin does."""
    kinds = [ContainerKind.APP] * len(spec.containers or ())
    for container in spec.init_containers or ():
        always = container.restart_policy == "Always"
        kinds.append(ContainerKind.SIDECAR if always else ContainerKind.INIT)
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    if supplied is None:
        return tuple(map(_container, containers, kinds))
    by_container: dict[str, set[str]] = {}
    for mapping in supplied.request_mappings or ():
        by_container.setdefault(mapping.container_name, set()).add(mapping.resource_name)
    return tuple(
        _container(container, kind, by_container.get(container.name, ()))
        for container, kind in zip(containers, kinds, strict=True)
    )


def _container(
    container: wire.ContainerFields, kind: ContainerKind, supplied: Collection[str] = ()
) -> Container:
    limits, broken = quantities.limits(container.resources)
    if supplied:
        limits = {name: amount for name, amount in limits.items() if name not in supplied}
    others = quantities.others(container.resources)
    if others and supplied:
        others = {name: amount for name, amount in others.items() if name not in supplied}
    return Container(sys.intern(container.name), limits, kind, broken, _env(container.env), others)


def _env(fields: msgspec.Raw) -> Mapping[str, str]:
    """The kept variables; of several with one name the last counts, as in the container."""
    text = bytes(fields)
    if _KEPT_ENV not in text:
        return _NOTHING
    try:
        variables = decode_go(text, _ENV) or ()
    except (msgspec.DecodeError, ValueError, RecursionError):  # treated as no variables
        return _NOTHING
    values = [variable.value for variable in variables if variable.name == KEPT_ENV]
    return {KEPT_ENV: values[-1]} if values else _NOTHING


def _statuses(
    status: wire.PodStatusFields, containers: tuple[Container, ...]
) -> tuple[Status, ...]:
    kinds = {container.name: container.kind for container in containers}
    lists = (
        (status.container_statuses, ContainerKind.APP),
        (status.init_container_statuses, ContainerKind.INIT),
        (status.ephemeral_container_statuses, ContainerKind.EPHEMERAL),
    )
    return tuple(
        _status(container, kinds.get(container.name, kind))
        for list_, kind in lists
        for container in list_ or ()
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
        finished_at=seconds(detail.finished_at),
        restarts=status.restart_count,
        last_reason=sys.intern(last.reason),
        last_message=last.message if last.reason in NEVER_STARTED else "",
        last_finished_at=seconds(last.finished_at),
        started_at=seconds(detail.started_at) if state is ContainerState.RUNNING else None,
    )
