"""HAMi's label of a bound pod: the name of its node, for HAMi's own tools."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from vgpu.apiserver.connection import ClusterError
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod, holds_devices
from vgpu.model.reasons import SourceError
from vgpu.placement.dialects import SchedulerScheme

log = logging.getLogger(__name__)

LONGEST_VALUE: Final = 63
"""Maximum length of a label's value, in characters; names of nodes may be longer."""

RECENT_SECONDS: Final = 3600.0
"""Maximum age of a binding whose missing label is written at the start, in seconds: a replica that
was killed may have written it. HAMi's older versions write no label."""


class NodeLabel(msgspec.Struct, frozen=True):
    """A label that a bound pod gets; its value is the name of the node."""

    pod: PodRef
    key: str
    node: str


class LabelApi(Protocol):
    """The API server."""

    def label_pod(self, pod: PodRef, labels: Mapping[str, str]) -> None:
        """Set labels of exactly this pod. Raises ClusterError and SourceError."""
        ...


def missing_label(pod: Pod, schemes: Sequence[SchedulerScheme]) -> NodeLabel | None:
    """The label that a bound pod lacks; None if it has the label, or needs none.

    A pod with a reservation has an annotation of the same key and value.
    """
    for key in {scheme.dialect_row.label for scheme in schemes} - {""}:
        if pod.node and pod.annotations.get(key) == pod.node != pod.labels.get(key):
            return NodeLabel(pod.ref, key, pod.node)
    return None


def recent_missing_labels(
    pods: Iterable[Pod], schemes: Sequence[SchedulerScheme], now: float
) -> Iterator[NodeLabel]:
    """The labels that pods lack that were bound a short time ago; ``now`` is in unix seconds."""
    for pod in pods:
        label = missing_label(pod, schemes)
        is_recent = now - (pod.scheduled_at or 0.0) <= RECENT_SECONDS
        if label is not None and is_recent and holds_devices(pod):
            yield label


def write_label(api: LabelApi, label: NodeLabel) -> bool:
    """Set the label by one patch; returns whether nothing is left to do.

    The patch names the pod's UID alone: the label is right whatever else of the pod has changed.
    """
    if len(label.node) > LONGEST_VALUE:
        return True
    try:
        api.label_pod(label.pod, {label.key: label.node})
    except ClusterError as error:
        name = f"{label.pod.namespace}/{label.pod.name}"
        log.info("pod %s has no label %s: %s", name, label.key, error)
        return 400 <= error.status < 500  # the pod is gone, or a right is missing
    except SourceError as error:
        log.info("an answer to a label was no answer: %s", error)
        return False
    return True
