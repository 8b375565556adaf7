"""Pods whose containers cannot start, by the kubelet's reason for their waiting.

The kubelet caches the device plugin's answer and uses it for each start, so such a pod never
recovers by itself; only a new pod asks again.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from reconciler.cluster_index import SUCCEEDED, ClusterIndex
from reconciler.model import Finding
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule
from reconciler.rules.findings import evict, of_pod, quoted
from reconciler.rules.refused import effect_of_eviction
from vgpu.kube.kept_keys import asks_for_gpus
from vgpu.kube.pod_projection import NEVER_STARTED
from vgpu.model.objects import ContainerState, Pod, Status
from vgpu.model.plugin_messages import CHECK_FAILED, CROSSED, NO_ROOM

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
                objection=None if effect is Effect.TIDYING else cluster_index.plugin_objection(pod),
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
