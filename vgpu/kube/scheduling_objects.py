"""What kube-scheduler reads of pods and nodes beside their GPUs; pure.

A program that asks which nodes kube-scheduler offers reads pods and nodes by the kinds
:func:`scheduling_pods` and :data:`SCHEDULING_NODES`; the others keep nothing of it. Of a pod
without GPUs only its node and its requests are kept.

    requests(p) = the peak of the containers (:func:`vgpu.model.allocation.effective`), in place of
                  it those of the pod itself (cpu, memory, huge pages), and the overhead
    free(n)     = allocatable(n) - Σ requests, over pods on n that have not ended

Amounts are thousandths of a CPU, and whole units of all other resources, rounded up. Source:
Kubernetes' ``component-helpers/resource/helpers.go`` (``PodRequests``), ``pkg/apis/core/v1``
(defaults: a limit is also the request), and ``pkg/scheduler/framework/types.go``. A resize that the
kubelet has not done yet counts as done.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from vgpu.kube import wire
from vgpu.kube.api_kind import ApiKind, Decoders
from vgpu.kube.documents import Keep
from vgpu.kube.kinds import NODES, PODS
from vgpu.kube.quantities import is_extended, rounded_up
from vgpu.model.allocation import effective
from vgpu.model.go_json import decode_go
from vgpu.model.names import ContainerKind
from vgpu.model.objects import TERMINAL_PHASES, Node, Pod
from vgpu.model.reasons import Explained
from vgpu.model.taints import Toleration, parsed_tolerations

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS_RESOURCE: Final = "pods"
"""The resource of which every pod needs one."""

_MILLI: Final = 1000
_HUGE_PAGES: Final = "hugepages-"
_REMEMBERED: Final = 4096
_NOTHING: Final[Mapping[str, Any]] = {}

_MOST_BYTES: Final = 1 << 16
"""Maximum length of a part of a pod's spec that is read: whoever creates a pod writes it."""


class UncheckedPart(Explained):
    """A part of a pod by which kube-scheduler chooses nodes, and which vgpu does not judge."""

    POD_AFFINITY = "pod_affinity", "required affinity or anti-affinity to other pods"
    TOPOLOGY_SPREAD = "topology_spread", "topology spread constraints"
    VOLUMES = "volumes", "volumes that are bound to nodes or zones"
    HOST_PORTS = "host_ports", "ports of the node"
    RESOURCE_CLAIMS = "resource_claims", "ResourceClaims"
    SCHEDULING_GATES = "scheduling_gates", "scheduling gates"
    OTHER_EXTENDERS = "other_extenders", "resources that another scheduler extender may place"
    OTHER_SCHEDULER = "other_scheduler", "queues and pod groups of another scheduler"
    RUNTIME_CLASS = "runtime_class", "the overhead and the nodes of the RuntimeClass"
    ON_UNKNOWN_GPU = "on_unknown_gpu", "pods that hold shares of an unknown GPU"
    UNREADABLE = "unreadable", "a part of the pod that cannot be read"


class Unchecked(msgspec.Struct, frozen=True):
    """A part that is not judged; ``detail`` names what exactly it is."""

    part: UncheckedPart
    detail: str = ""

    @property
    def text(self) -> str:
        """The part with its detail, for people."""
        return self.part.explanation + (f" ({self.detail})" if self.detail else "")


class SchedulingPod(msgspec.Struct, frozen=True):
    """What kube-scheduler reads of a pod.

    Attributes:
        requests: what it requests, by resource; nothing is left out.
        node_selector: labels that its node has.
        node_terms: the terms of its required node affinity; None if there is none.
        tolerations: taints that it tolerates.
        unchecked: what else it has by which kube-scheduler chooses nodes.
    """

    requests: Mapping[str, int] = {}
    node_selector: Mapping[str, str] = {}
    node_terms: tuple[wire.NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    unchecked: tuple[Unchecked, ...] = ()


class PlacedPod(msgspec.Struct, frozen=True, gc=False):
    """A pod of a list.

    Attributes:
        uid: its UID.
        node: the node on which its requests count; "" if it has ended or is bound to none.
        requests: what it requests, by resource.
        pod: the pod, if it shares GPUs; None of another one.
        scheduling: what kube-scheduler reads of such a pod.
    """

    uid: str
    node: str
    requests: Mapping[str, int] = {}
    pod: Pod | None = None
    scheduling: SchedulingPod | None = None


class SchedulingNode(msgspec.Struct, frozen=True):
    """What kube-scheduler reads of a node.

    Attributes:
        node: the node, with its readiness, cordon and taints.
        labels: all its labels.
        allocatable: what is allocatable of every resource.
    """

    node: Node
    labels: Mapping[str, str] = {}
    allocatable: Mapping[str, int] = {}


class SchedulingObjects(msgspec.Struct, frozen=True):
    """All nodes and pods that were read for the checks of kube-scheduler; none if none were."""

    nodes: tuple[SchedulingNode, ...] = ()
    placed: tuple[PlacedPod, ...] = ()


# ---------------------------------------------------------------- fields


class _Port(wire.Wire, frozen=True):
    container_port: int = 0
    host_port: int | None = None


class _Container(wire.ContainerFields, frozen=True):
    ports: msgspec.Raw = msgspec.Raw(b"null")


class _SchedulingSpec(wire.PodSpec, frozen=True):
    containers: list[_Container] | None = None  # type: ignore[assignment]
    init_containers: list[_Container] | None = None  # type: ignore[assignment]
    node_selector: dict[str, str] | None = None
    affinity: msgspec.Raw = msgspec.Raw(b"null")
    topology_spread_constraints: msgspec.Raw = msgspec.Raw(b"null")
    volumes: msgspec.Raw = msgspec.Raw(b"null")
    overhead: wire.Quantities = None
    resources: wire.Resources | None = None
    host_network: bool | None = None
    runtime_class_name: str | None = None


class _PodFields(wire.PodFields, frozen=True):
    spec: _SchedulingSpec = _SchedulingSpec()


class _Phase(wire.Wire, frozen=True):
    phase: str = ""


class _PodTerms(wire.Wire, frozen=True):
    required: list[msgspec.Raw] | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class _NodeAffinity(wire.Wire, frozen=True):
    required: wire.NodeTerms | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class _Affinity(wire.Wire, frozen=True):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodTerms | None = None
    pod_anti_affinity: _PodTerms | None = None


class _Constraint(wire.Wire, frozen=True):
    topology_key: str = ""
    when_unsatisfiable: str = ""


_PHASE: Final = msgspec.json.Decoder(_Phase)
_PORTS: Final = msgspec.json.Decoder(list[_Port] | None)
_AFFINITY: Final = msgspec.json.Decoder(_Affinity | None)
_CONSTRAINTS: Final = msgspec.json.Decoder(list[_Constraint] | None)
_VOLUMES: Final = msgspec.json.Decoder(list[dict[str, Any]] | None)

_BOUND_VOLUMES: Final = frozenset(
    {
        "persistentVolumeClaim",
        "ephemeral",
        "awsElasticBlockStore",
        "azureDisk",
        "cinder",
        "gcePersistentDisk",
        "iscsi",
        "rbd",
    }
)
"""Types of volumes by which kube-scheduler chooses nodes (its plugins VolumeBinding, VolumeZone,
VolumeRestrictions and NodeVolumeLimits)."""

_VOLCANO: Final = "volcano"
"""The name of Volcano's scheduler, which has queues and pod groups."""


# ---------------------------------------------------------------- requests


@lru_cache(_REMEMBERED)
def _amount(name: str, quantity: str) -> int:
    """An amount; an unreadable one, which no API server keeps, is 0."""
    return rounded_up(quantity, _MILLI if name == CPU else 1) or 0


def amounts(quantities: wire.Quantities) -> dict[str, int]:
    """Quantities as amounts."""
    return {name: _amount(name, str(each)) for name, each in (quantities or _NOTHING).items()}


def _of_container(resources: wire.Resources) -> dict[str, int]:
    """What a container requests; a limit without a request is one."""
    if resources.requests is None or resources.limits is None:
        return amounts(resources.requests or resources.limits)
    return {**amounts(resources.limits), **amounts(resources.requests)}


def requests_of(spec: wire.PodSpec) -> Mapping[str, int]:
    """What a pod requests, by resource."""
    apps = [_of_container(each.resources) for each in spec.containers or ()]
    if len(apps) == 1 and not spec.init_containers:
        requests = apps[0]
    else:
        before = [
            (
                ContainerKind.SIDECAR if each.restart_policy == "Always" else ContainerKind.INIT,
                _of_container(each.resources),
            )
            for each in spec.init_containers or ()
        ]
        ordered = [*before, *((ContainerKind.APP, each) for each in apps)]
        requests = {
            name: effective((kind, each.get(name, 0)) for kind, each in ordered)
            for name in dict.fromkeys(name for _, each in ordered for name in each)
        }
    if isinstance(spec, _SchedulingSpec):
        _add_of_pod(requests, spec)
    return {name: amount for name, amount in requests.items() if amount}


def _add_of_pod(requests: dict[str, int], spec: _SchedulingSpec) -> None:
    """Add the requests of the pod itself, and its overhead."""
    own = spec.resources
    if own is not None:
        limits, whole = amounts(own.limits), amounts(own.requests)
        for name in {**limits, **whole}:
            if name in (CPU, MEMORY) or name.startswith(_HUGE_PAGES):
                missing = requests.get(name, 0) or limits.get(name, 0)
                requests[name] = whole.get(name, missing)
    for name, amount in amounts(spec.overhead).items():
        requests[name] = requests.get(name, 0) + amount


# ---------------------------------------------------------------- pods


def scheduling_of(fields: _PodFields) -> SchedulingPod:
    """What kube-scheduler reads of the pod."""
    spec = fields.spec
    affinity, unreadable = _read(spec.affinity, _AFFINITY)
    required = affinity and affinity.node_affinity and affinity.node_affinity.required
    unchecked = [*_unchecked(fields, affinity)]
    if unreadable:
        unchecked.append(Unchecked(UncheckedPart.UNREADABLE, "affinity"))
    return SchedulingPod(
        requests_of(spec),
        spec.node_selector or _NOTHING,
        tuple(required.node_selector_terms or ()) if required else None,
        parsed_tolerations(bytes(spec.tolerations)),
        tuple(unchecked),
    )


def _unchecked(fields: _PodFields, affinity: _Affinity | None) -> Iterator[Unchecked]:
    spec = fields.spec
    of_pods = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ()
    if any(each is not None and each.required for each in of_pods):
        yield Unchecked(UncheckedPart.POD_AFFINITY)
    constraints, _ = _read(spec.topology_spread_constraints, _CONSTRAINTS)
    spread = [each for each in constraints or () if each.when_unsatisfiable != "ScheduleAnyway"]
    if spread:
        yield Unchecked(UncheckedPart.TOPOLOGY_SPREAD, _names(each.topology_key for each in spread))
    volumes, _ = _read(spec.volumes, _VOLUMES)
    bound = [each for each in volumes or () if not _BOUND_VOLUMES.isdisjoint(each)]
    if bound:
        yield Unchecked(UncheckedPart.VOLUMES, _names(str(each.get("name", "")) for each in bound))
    ports = sorted(_host_ports(spec))
    if ports:
        yield Unchecked(UncheckedPart.HOST_PORTS, _names(map(str, ports)))
    if spec.resource_claims:
        yield Unchecked(UncheckedPart.RESOURCE_CLAIMS)
    if spec.scheduling_gates:
        gates = _names(each.name for each in spec.scheduling_gates)
        yield Unchecked(UncheckedPart.SCHEDULING_GATES, gates)
    if spec.scheduler_name == _VOLCANO:
        yield Unchecked(UncheckedPart.OTHER_SCHEDULER, spec.scheduler_name)
    if spec.runtime_class_name and spec.overhead is None and not fields.metadata.creation_timestamp:
        yield Unchecked(UncheckedPart.RUNTIME_CLASS, spec.runtime_class_name)


def _host_ports(spec: _SchedulingSpec) -> set[int]:
    """The ports of the node that the pod has; with the node's network these are all of its own."""
    ports: set[int] = set()
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        for port in _read(container.ports, _PORTS)[0] or ():
            ports.add(port.host_port or (port.container_port if spec.host_network else 0))
    return ports - {0}


def _names(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, names)))


def _read(text: msgspec.Raw, decoder: msgspec.json.Decoder[Any]) -> tuple[Any, bool]:
    """A part of the spec, and whether it cannot be read: the API server keeps no such part."""
    content = bytes(text)
    if content == b"null":
        return None, False
    if len(content) > _MOST_BYTES:
        return None, True
    try:
        return decode_go(content, decoder), False
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None, True


def scheduling_pods(keep: Keep) -> ApiKind[PlacedPod]:
    """Pods, of which those that ``keep`` chooses are kept, and the requests of the others."""
    is_kept = PODS.wants(keep)

    def project(fields: _PodFields, object_name: str) -> PlacedPod:
        uid, node = fields.metadata.uid, sys.intern(fields.spec.node_name)
        pod = PODS.project(fields, object_name) if is_kept(fields) else None
        if node and (_ended(fields) if pod is None else pod.terminal):
            node = ""
        if pod is None:
            return PlacedPod(uid, node, requests_of(fields.spec) if node else _NOTHING)
        scheduling = scheduling_of(fields)
        if pod.uses_resource_claims:
            scheduling = _without_supplied(scheduling, pod)
        return PlacedPod(uid, node, scheduling.requests, pod, scheduling)

    return PODS.read_as(Decoders.of(_PodFields), project)


def _without_supplied(scheduling: SchedulingPod, pod: Pod) -> SchedulingPod:
    """The same without extended resources that a ResourceClaim supplies: no node counts these."""
    named = {
        name for container in pod.containers for name in (*container.limits, *container.others)
    }
    requests = {
        name: amount
        for name, amount in scheduling.requests.items()
        if name in named or not is_extended(name)
    }
    return msgspec.structs.replace(scheduling, requests=requests)


def _ended(fields: _PodFields) -> bool:
    """Whether the pod has ended; of a status that cannot be read that is not known."""
    status, _ = _read(fields.status, _PHASE)
    return status is not None and status.phase in TERMINAL_PHASES


# ---------------------------------------------------------------- nodes


def _project_node(fields: wire.NodeFields, object_name: str) -> SchedulingNode:
    return SchedulingNode(
        NODES.project(fields, object_name),
        fields.metadata.labels or _NOTHING,
        amounts(fields.status.allocatable),
    )


SCHEDULING_NODES: Final = NODES.read_as(NODES.decoders, _project_node)
"""Nodes with what kube-scheduler reads of them."""
