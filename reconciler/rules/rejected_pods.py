"""Pods that the kubelet or a device plugin has rejected: they never start by themselves. Pure.

The kubelet does not admit a pod, or shuts it down: the pod is Failed for good, and not removed. The
reason is the kubelet's (Kubernetes ``pkg/kubelet/lifecycle``, ``pkg/kubelet/cm/admission`` and
``pkg/kubelet/nodeshutdown``) or gpu-manager's own. With any reason, a Failed pod without a started
container has been rejected; a pod that was evicted or whose deadline has passed is left to its
owner.

A device plugin rejects a container: the kubelet caches the plugin's answer and uses it for each
start, so such a pod never recovers by itself; only a new pod asks again. One cause is a scheduler
that has reserved more of a GPU than the GPU has. All four original schedulers do so at times. Our
device plugin rejects the pod that comes last. The finding names every pod that has a claim to that
GPU, and the likely defect.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from reconciler.cluster_index import FAILED, SUCCEEDED, ClusterIndex
from reconciler.model import Finding
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule
from reconciler.rules.findings import (
    PodIndex,
    at_most,
    ended_at,
    evict,
    of_device,
    of_holding,
    of_pod,
    quoted,
)
from vgpu.kube.kept_keys import asks_for_gpus, is_gpu_resource
from vgpu.kube.pod_projection import NEVER_STARTED
from vgpu.ledger import Holding
from vgpu.ledger.entries import DeviceEntry
from vgpu.ledger.liveness import node_uid
from vgpu.ledger.totals import exceeded
from vgpu.model.names import ContainerKind
from vgpu.model.objects import ContainerState, Pod, Status
from vgpu.model.plugin_messages import CHECK_FAILED, CROSSED, NO_ROOM
from vgpu.schemes.registry import registry
from vgpu.schemes.row import DefectSign

_ADMISSION: Final[Mapping[str, Cause]] = {
    "UnexpectedAdmissionError": Cause.UNEXPECTED_ADMISSION_ERROR,
    "UnexpectedPredicateFailureType": Cause.UNEXPECTED_ADMISSION_ERROR,
    "TopologyAffinityError": Cause.TOPOLOGY_AFFINITY_ERROR,
    "PreStartContainerCheckErr": Cause.PRESTART_CHECK_ERROR,
}
"""By ``status.reason``: reasons that only a refused pod has."""

_OUT_OF: Final = "OutOf"
"""The beginning of the reason if the kubelet had too little of a resource."""

_NEVER_STARTED: Final[Mapping[str, Cause]] = {
    "NodeAffinity": Cause.NODE_AFFINITY,
    "NodeShutdown": Cause.NODE_SHUTDOWN,
}
"""The same, for a pod of which no container was ever started; else the cause is ``other``."""

_SHUT_DOWN: Final = "Terminated"
"""The reason of a pod that its node's shutdown has killed (``pkg/kubelet/nodeshutdown``)."""

RAN_AND_ENDED: Final = frozenset({"Evicted", "DeadlineExceeded", _SHUT_DOWN})
"""Reasons of pods that were admitted and have run, also where no status of a container is left."""

_UNKNOWN: Final = "ContainerStatusUnknown"
"""The kubelet's reason for a dead pod's containers that it cannot find, started or not."""


# ---------------------------------------------------------------- by the kubelet


def refused(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Evict pods that the kubelet did not admit."""
    for pod in _failed(cluster_index):
        cause = _cause(pod)
        if cause is not None:
            yield _finding(Rule.REFUSED, cause, pod, cluster_index, policy)


def terminated(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Evict pods that their node's shutdown has killed: they ran, and may have logs to be read."""
    for pod in _failed(cluster_index):
        if pod.reason == _SHUT_DOWN:
            yield _finding(Rule.TERMINATED, Cause.NODE_WENT_DOWN, pod, cluster_index, policy)


def _failed(cluster_index: ClusterIndex) -> Iterator[Pod]:
    """Failed GPU pods, with those of NVIDIA's own plugin."""
    for pod in cluster_index.all_pods:
        if pod.phase == FAILED and cluster_index.has_gpus(pod):
            yield pod


def _finding(
    rule: Rule, cause: Cause, pod: Pod, cluster_index: ClusterIndex, policy: Policy
) -> Finding:
    return Finding(
        rule=rule,
        cause=cause,
        object_ref=of_pod(pod),
        evidence=(f"reason {quoted(pod.reason)}", f"message {quoted(pod.message)}"),
        since=ended_at(pod),
        grace=policy.ages.failed,
        effect=effect_of_eviction(cluster_index, pod),
        action=evict(pod),
    )


def _cause(pod: Pod) -> Cause | None:
    out_of = pod.reason.removeprefix(_OUT_OF)
    if out_of != pod.reason and is_gpu_resource(out_of):
        return Cause.OUT_OF_RESOURCE
    if pod.reason in _ADMISSION:
        return _ADMISSION[pod.reason]
    if pod.reason in RAN_AND_ENDED or any(map(_has_started, pod.statuses)):
        return None
    if pod.reason.startswith(_OUT_OF) and pod.reason != _OUT_OF:
        return Cause.OUT_OF_RESOURCE
    return _NEVER_STARTED.get(pod.reason, Cause.OTHER)


def _has_started(status: Status) -> bool:
    """Whether the container ever existed, even if the runtime could not start it."""
    if status.id or status.restarts or status.last_reason:
        return True
    waits = status.state is ContainerState.WAITING
    return not (waits or (status.state is ContainerState.TERMINATED and status.reason == _UNKNOWN))


def effect_of_eviction(cluster_index: ClusterIndex, pod: Pod) -> Effect:
    """The effect of evicting the pod: tidying, if it has failed and is already replaced."""
    if pod.phase != FAILED or pod.owner is None:
        return Effect.RECOVERY
    if not cluster_index.reaction(pod).remakes:
        return Effect.TIDYING
    failed_at, newest = ended_at(pod), cluster_index.newest_replica.get(pod.owner.uid)
    replaced = failed_at is not None and newest is not None and newest >= failed_at
    return Effect.TIDYING if replaced else Effect.RECOVERY


_Patterns = tuple[tuple[Cause, re.Pattern[str]], ...]

_PATTERNS: Final[Mapping[Rule, _Patterns]] = {
    Rule.OVER_PROMISED: (
        (Cause.SUM_EXCEEDED, re.compile(f"{CHECK_FAILED}.*{re.escape(NO_ROOM)}", re.DOTALL)),
    ),
    Rule.PRESTART_FAILED: (  # gpu-manager, its successor vgpu-manager, and our own plugin
        (Cause.CROSSED, re.compile(f"{CHECK_FAILED}.*{CROSSED}", re.DOTALL)),
        (Cause.PRESTART_CHECK_FAILED, re.compile(CHECK_FAILED)),
        (Cause.ALLOCATE_CHECK_FAILED, re.compile("Allocate check failed")),
    ),
    Rule.NO_GPU_MATCHED: (  # gpushare, and volcano-sh/devices, which came of it
        (Cause.NO_GPU_TO_RUN, re.compile("no-gpu-has-[0-9]{1,19}[A-Za-z]{1,4}-to-run")),
    ),
}
"""Patterns of a container's message, by the rule that searches for them."""

_OF_ITS_IMAGE: Final = frozenset(
    {
        *("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"),
        *("ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"),
    }
)
"""Waiting reasons whose messages repeat the image's name, which the user chooses
(``pkg/kubelet/images/types.go``)."""

_CONTEXT: Final = 100
"""Number of characters before the match that evidence repeats."""


# ---------------------------------------------------------------- by a device plugin


def prestart_failed(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Evict pods that the plugin refuses to start, once the plugin is ready."""
    return find_waiting(Rule.PRESTART_FAILED, cluster_index, policy)


def no_gpu_matched(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Evict pods whose environment has the plugin's error, once the plugin is ready."""
    return find_waiting(Rule.NO_GPU_MATCHED, cluster_index, policy)


def find_waiting(rule: Rule, cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Pods whose containers wait with a message that this rule searches for."""
    for pod in cluster_index.snapshot.pods:
        match = None if pod.phase == SUCCEEDED else _search(pod, _PATTERNS[rule])
        if match is not None and asks_for_gpus(pod):
            cause, status, message = match
            effect = effect_of_eviction(cluster_index, pod)
            yield Finding(
                rule=rule,
                cause=cause,
                object_ref=of_pod(pod),
                evidence=(
                    f"container {status.name} is {status.state}: {quoted(status.reason)}",
                    f"message {quoted(message)}",
                ),
                since=status.finished_at if pod.status_at is None else pod.status_at,
                grace=policy.ages.failed,
                effect=effect,
                action=evict(pod),
                skip_reason=None
                if effect is Effect.TIDYING
                else cluster_index.plugin_skip_reason(pod),
            )


def _search(pod: Pod, patterns: _Patterns) -> tuple[Cause, Status, str] | None:
    """The first container with such a message, and the message from just before the match."""
    for status in pod.statuses:
        for message in _messages(status):
            for cause, pattern in patterns:
                match = pattern.search(message)
                if match is not None:
                    return cause, status, message[max(0, match.start() - _CONTEXT) :]
    return None


def _messages(status: Status) -> Iterator[str]:
    """Messages of the kubelet or the runtime; in a back-off, the last end has the reason."""
    ended = status.state is ContainerState.TERMINATED and status.reason in NEVER_STARTED
    waits = status.state is ContainerState.WAITING and status.reason not in _OF_ITS_IMAGE
    if status.message and (ended or waits):
        yield status.message
    if status.state is ContainerState.WAITING and status.last_reason in NEVER_STARTED:
        yield status.last_message


_CAUSES: Final = {cause.value: cause for cause in Cause}


# ---------------------------------------------------------------- more reserved than there is


def over_promised(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Evict a pod that waits for a reserved share that is more than the GPU has left.

    A pod that waits for a pod's deletion is no finding: there will be room, or ``prestart_failed``
    finds the pod after more refused starts.
    """
    pod_index = PodIndex(cluster_index)
    for finding in find_waiting(Rule.OVER_PROMISED, cluster_index, policy):
        pod = cluster_index.pods[finding.object_ref.uid]
        entry = _exceeded_gpu(cluster_index, pod)
        if entry is None:
            continue
        named = (pod_index.pod(holding.pod.uid) for holding in entry.holdings)
        holders = [holder for holder in named if holder is not None]
        if any(holder.deleted_at is not None for holder in holders):
            continue
        cause = _likely_defect(cluster_index, pod, holders, entry.holdings)
        evidence = (
            *finding.evidence,
            cause.explanation,
            of_device(entry.device),
            *at_most([of_holding(holding, entry.device.name) for holding in entry.holdings]),
        )
        yield replace(finding, cause=cause, evidence=evidence)


def _exceeded_gpu(cluster_index: ClusterIndex, pod: Pod) -> DeviceEntry | None:
    """The first GPU that the pod has a claim to, and of which more is claimed than there is."""
    ledger = cluster_index.snapshot.ledgers.get(pod.node)
    for entry in ledger.devices if ledger is not None else ():
        uids = {holding.pod.uid for holding in entry.holdings}
        if node_uid(pod) in uids and exceeded(entry.held, entry.device):
            return entry
    return None


def _likely_defect(
    cluster_index: ClusterIndex, pod: Pod, holders: Iterable[Pod], holdings: Sequence[Holding]
) -> Cause:
    """The known defect of the pod's scheduler that fits these holders."""
    rows = {
        registry().row(reading.codec).name: registry().row(reading.codec)
        for reading in cluster_index.readings(pod)
        if reading.claim is not None
    }
    defects = [row.defect for row in rows.values() if row.defect is not None]
    has_init = any(
        container.kind is not ContainerKind.APP
        for holder in holders
        for container in holder.containers
    )
    holdings_of_pod = Counter(holding.pod.uid for holding in holdings)
    for sign, is_seen in (
        (DefectSign.ALWAYS, True),
        (DefectSign.INIT_CONTAINERS, has_init),
        (DefectSign.SAME_POD, max(holdings_of_pod.values()) > 1),
    ):
        for defect in defects:
            if defect.sign is sign:
                return _CAUSES[defect.cause] if is_seen else Cause.SUM_EXCEEDED
    return Cause.SUM_EXCEEDED
