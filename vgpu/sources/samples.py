"""The data of a node's sources as values, and all data of one time. Pure.

The data of the driver, the shims, the kubelet, limit files and the kernel is in
:mod:`vgpu.model.facts`, which the ledger reads; here is the data of the API server and our own
plugins, and the sum.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from vgpu.kube.kept_keys import shares_gpus
from vgpu.ledger.statements import Statement
from vgpu.model.facts import (
    CollectorSamples,
    ContainerName,
    KubeletSample,
    PodSummary,
    ProcessSample,
    RegionFile,
    ResourceClaimSample,
    ShimSample,
    TokenSample,
)
from vgpu.model.names import ContainerKind, PodRef, Source
from vgpu.model.objects import MalformedObject, Node, Pod
from vgpu.model.reasons import Reason, Rejection
from vgpu.schemes.registry import registry

T = TypeVar("T")

ID_DIGITS: Final = 64
"""Number of digits of a container id."""

MIN_ID_DIGITS: Final = 12
"""Minimum number of digits of an id that the kubelet has cut, so that they identify a container."""

_SHOWN: Final = 64
"""Maximum number of shown characters of a UID: a mirror pod's is an annotation, of any length."""


class PodSample(msgspec.Struct, frozen=True):
    """The pods of one node, with their names and phases.

    Attributes:
        pods: each once.
        complete: whether a pod that is not among them is not on the node. A dump may be older
            than a pod.
        names: UID on the node -> pod; a static pod's is not the API server's. A UID of
            several pods has no entry: a user may mark any pod as a static pod's mirror.
        containers: container id -> names.
        statuses: phase and reason of each pod.
        finished: (UID on the node, name) of init containers that have done their work.
        heard_at: when the server last sent something, in unix seconds; None of a dump.
        rejections: the UIDs of several pods, the pods that cannot be read, and why the server
            does not answer now.
    """

    pods: tuple[Pod, ...]
    complete: bool
    names: Mapping[str, PodRef] = {}
    containers: Mapping[str, ContainerName] = {}
    statuses: tuple[PodSummary, ...] = ()
    finished: frozenset[tuple[str, str]] = frozenset()
    heard_at: float | None = None
    rejections: tuple[Rejection, ...] = ()


def pod_sample(
    pods: Iterable[Pod], *, complete: bool, malformed: Iterable[MalformedObject] = ()
) -> PodSample:
    """The sample of these pods; of ``malformed`` pods only the existence is known."""
    all_pods = registry().resolved(pods)
    refs: dict[str, list[PodRef]] = {}
    containers: dict[str, ContainerName] = {}
    statuses = []
    finished = set()
    for pod in all_pods:
        ref = PodRef(pod.kubelet_uid, pod.ref.namespace, pod.ref.name)
        refs.setdefault(ref.uid, []).append(ref)
        statuses.append(PodSummary(ref, pod.phase, pod.reason, shares_gpus(pod)))
        for status in pod.statuses:
            if status.id:  # not before the first start
                containers[status.id] = ContainerName(ref.namespace, ref.name, status.name, ref.uid)
            if status.has_succeeded and status.kind is ContainerKind.INIT:
                finished.add((ref.uid, status.name))
    names = {uid: pod_refs[0] for uid, pod_refs in refs.items() if len(pod_refs) == 1}
    unread = tuple(malformed)
    for bad in unread:
        if bad.ref.uid:
            names.setdefault(bad.ref.uid, bad.ref)
    return PodSample(
        all_pods,
        complete and not unread,
        names,
        containers,
        tuple(statuses),
        frozenset(finished),
        rejections=(
            *(_shared(uid, pod_refs) for uid, pod_refs in refs.items() if len(pod_refs) > 1),
            *(Rejection(bad.title, Reason.MALFORMED, bad.detail) for bad in unread),
        ),
    )


def _shared(uid: str, refs: Iterable[PodRef]) -> Rejection:
    first, second, *more = sorted(f"{ref.namespace}/{ref.name}" for ref in refs)
    detail = f"{2 + len(more)} pods have this UID: {first}, {second}{', …' if more else ''}"
    return Rejection(uid[:_SHOWN], Reason.AMBIGUOUS, detail)


class NodeSample(PodSample, frozen=True):
    """The node's pods; ``node`` is None as long as the node itself could not be read."""

    node: Node | None = None


def with_node(
    pods: PodSample, node: Node | None, rejections: Iterable[Rejection] = ()
) -> NodeSample:
    """A node's pods and the node itself; ``rejections`` are why it could not be read."""
    fields = msgspec.structs.asdict(pods)
    fields["rejections"] = (*pods.rejections, *rejections)
    return NodeSample(**fields, node=node)


class OwnSample(msgspec.Struct, frozen=True):
    """One pass over the checkpoints of all schemes."""

    statements: tuple[Statement, ...]
    rejections: tuple[Rejection, ...] = ()


# ---------------------------------------------------------------- all of them


class CollectorRow(msgspec.Struct, frozen=True):
    """The health of one collector; its data is elsewhere.

    ``success`` is False, too, of a pass that could not read all for want of descriptors or memory.
    ``success`` and ``duration`` (of the last finished pass, in seconds) are None before the first
    pass. ``stuck_seconds`` is how long the pass under way has missed its deadline, 0 if it has
    not. ``rejected`` counts the inputs refused in the last pass by reason, the two totals count
    since start.
    """

    name: str
    success: bool | None
    duration: float | None
    last_success: float | None
    stuck_seconds: float
    failures: Mapping[Reason, int]
    rejected: Mapping[Reason, int]
    rejections: Mapping[Reason, int]
    last_error: str = ""
    examples: tuple[str, ...] = ()


class Observation(CollectorSamples, frozen=True):
    """The data of all collectors; None is a collector that is off, failed or stale.

    ``kubelet`` has the names of ``pods``, too: :func:`with_names`. ``own`` is what our own
    plugins keep. ``at`` is when they were asked, in unix seconds. ``incomplete`` are the fields
    whose collector is on and did not bring all data: it failed, is late, or brought a part. A
    missing entry in them means nothing.
    """

    own: OwnSample | None = None
    pods: PodSample | None = None
    resource_claims: ResourceClaimSample | None = None
    tokens: TokenSample | None = None
    at: float = 0.0
    incomplete: frozenset[str] = frozenset()


SOURCES: Mapping[str, frozenset[Source]] = {
    "shim": frozenset({Source.SHIM}),
    "kubelet": frozenset({Source.CHECKPOINT, Source.POD_RESOURCES, Source.DRA_STATE}),
    "limits": frozenset({Source.LIMIT_FILE}),
    "own": frozenset({Source.OWN_CHECKPOINT}),
    "pods": frozenset({Source.ANNOTATIONS, Source.RESERVATION_POD}),
    "process": frozenset({Source.PROCESS}),
}
"""The sources that are in each field of an observation; the driver adds the processes."""


def incomplete_sources(observation: Observation) -> frozenset[Source]:
    """The sources whose data is not complete."""
    return frozenset[Source]().union(*(SOURCES.get(name, ()) for name in observation.incomplete))


def with_names(kubelet: KubeletSample | None, pods: PodSample | None) -> KubeletSample | None:
    """What the kubelet left on the node, with the names from the API server."""
    if pods is None:
        return kubelet
    if kubelet is None:
        return KubeletSample(pods.names, pods.containers, named=pods.complete)
    return msgspec.structs.replace(
        kubelet,
        pods={**kubelet.pods, **pods.names},
        containers={**kubelet.containers, **pods.containers},
        named=kubelet.named or pods.complete,
    )


def is_cut(container_id: str) -> bool:
    """Whether it is the beginning of an id, from a link that the kubelet has cut."""
    return MIN_ID_DIGITS <= len(container_id) < ID_DIGITS


def with_whole_ids(names: Mapping[str, T], container_ids: Collection[str]) -> dict[str, T]:
    """The names of one pod's containers, with whole ids for cut ones.

    ``container_ids`` are the whole ids of the pod's containers. A cut id that begins several of
    them names none, and no id gets two names.
    """
    whole = {key: name for key, name in names.items() if not is_cut(key)}
    found: dict[str, list[T]] = {}
    for key in names.keys() - whole.keys():
        matches = [each for each in container_ids if each.startswith(key)]
        if len(matches) == 1:
            found.setdefault(matches[0], []).append(names[key])
    return {key: of_id[0] for key, of_id in found.items() if len(of_id) == 1} | whole


def with_whole_names(
    kubelet: KubeletSample | None, process: ProcessSample | None
) -> KubeletSample | None:
    """The kubelet's names, with the ids that it has cut in its links made whole by the kernel's."""
    if kubelet is None or process is None or not any(map(is_cut, kubelet.containers)):
        return kubelet
    ids: dict[str, set[str]] = {}
    for owner in process.owners.values():
        if owner is not None and owner.pod_uid:
            ids.setdefault(owner.pod_uid, set()).add(owner.container_id)
    for uid, pids in process.pod_pids.items():
        ids.setdefault(uid, set()).update(pids.containers)
    cut = {key: name for key, name in kubelet.containers.items() if is_cut(key)}
    containers = {key: name for key, name in kubelet.containers.items() if key not in cut}
    for uid, of_pod in ids.items():
        pod = kubelet.pods.get(uid)
        names = {
            key: name
            for key, name in cut.items()
            if pod and (name.namespace, name.pod) == (pod.namespace, pod.name)
        }
        containers = with_whole_ids(names, of_pod) | containers
    return msgspec.structs.replace(kubelet, containers=containers)


def with_resource_claim_users(
    shim: ShimSample | None, kubelet: KubeletSample | None, api: ResourceClaimSample | None = None
) -> ShimSample | None:
    """The regions, with those of ResourceClaims as regions of the container that uses them.

    The UID of a ResourceClaim is known from the kubelet's state, or from the API server. What no
    pod uses is left out: HAMi's driver empties the folder when it prepares a ResourceClaim. The
    region of several containers is a rejection, since nothing in it names a container.
    """
    if shim is None or not shim.has_resource_claims:
        return shim
    files: list[RegionFile] = []
    rejections = list(shim.rejections)
    resource_claims = _resource_claim_pods(kubelet, api)
    for file in shim.files:
        if not file.resource_claim_uid:
            files.append(file)
        elif file.resource_claim_uid in resource_claims and kubelet is not None:
            places = list(_users(*resource_claims[file.resource_claim_uid], kubelet))
            if len(places) > 1:
                detail = f"{len(places)} containers use its ResourceClaim"
                rejections.append(Rejection(file.path, Reason.AMBIGUOUS, detail))
            for pod_uid, container in places if len(places) == 1 else ():
                files.append(msgspec.structs.replace(file, pod_uid=pod_uid, container=container))
    return ShimSample(tuple(files), tuple(rejections))


_ResourceClaimPods = tuple[str, str, Collection[str]]
"""Namespace and name of a ResourceClaim, and the UIDs of its pods."""


def _resource_claim_pods(
    kubelet: KubeletSample | None, api: ResourceClaimSample | None
) -> dict[str, _ResourceClaimPods]:
    """The ResourceClaims by UID; the kubelet's state decides where it is read."""
    if kubelet is not None and kubelet.dra_state_known:
        prepared = kubelet.resource_claims or ()
        return {
            resource_claim.uid: (
                resource_claim.namespace,
                resource_claim.name,
                resource_claim.pod_uids,
            )
            for resource_claim in prepared
        }
    return {
        resource_claim.uid: (
            resource_claim.namespace,
            resource_claim.name,
            [pod.uid for pod in resource_claim.reserved_for],
        )
        for resource_claim in (api.resource_claims if api else ())
    }


def _users(
    namespace: str, name: str, pod_uids: Collection[str], kubelet: KubeletSample
) -> Iterator[tuple[str, str]]:
    """The containers that use a ResourceClaim, by the UID of their pod."""
    for uid in pod_uids:
        pod = kubelet.pods.get(uid)
        for held in kubelet.held_resource_claims if pod else ():
            place = held.namespace, held.pod, held.resource_claim
            if pod and place == (namespace, pod.name, name) and pod.namespace == namespace:
                yield uid, held.container
