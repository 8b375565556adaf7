"""HAMi's label of a bound pod: the name of its node, for HAMi's own tools."""

import logging
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from vgpu.kube.connection import ClusterError
from vgpu.model import PodRef
from vgpu.reasons import SourceError

log = logging.getLogger(__name__)

LONGEST_VALUE: Final = 63
"""Maximum length of a label's value, in characters; names of nodes may be longer."""


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
