"""The plugin's reasons for refusals, in one place for code, metrics, events and docs."""

from typing import Final

from vgpu.model.names import PodRef
from vgpu.model.reasons import Explained


class BindRefusal(Explained):
    """The label ``reason`` of refusals; ``explanation`` is the text for people."""

    NOT_RECOVERED = "not_recovered", "the plugin is still recovering which pod holds what"
    NO_CANDIDATE = "no_candidate", "no pod on this node waits for this number of devices"
    NOT_SEEN = "not_seen", "the pod is not yet in the kubelet's checkpoint or at the API server"
    NOT_ASKED = "not_asked", "the container requests nothing of this scheme"
    NO_CLAIM = "no_claim", "no scheduler has written a device for the pod"
    MALFORMED = "malformed", "the pod's annotations or requests cannot be decoded"
    CLAIM_FAILED = "claim_failed", "the pod's annotations mark its allocation as failed"
    OTHER_NODE = "other_node", "the pod's annotations reserve devices of another node"
    OTHER_COUNT = (
        "other_count",
        "the annotations reserve another number of devices than the kubelet requested",
    )
    UNKNOWN_DEVICE = "unknown_device", "the reserved device is not on this node"
    UNHEALTHY_DEVICE = "unhealthy_device", "the reserved device is unhealthy"
    NO_ROOM = (
        "no_room",
        "the device has not enough free: other pods hold it, or still have containers",
    )
    CROSSED = (
        "crossed",
        "without CDI: the answer was made for another pod and does not fit this one",
    )
    NOT_WRITTEN = "not_written", "a file that the container needs could not be written"
    INTERNAL = "internal_error", "a defect in this program; the log has the details"


FINAL: Final = frozenset(
    {
        BindRefusal.NOT_ASKED,
        BindRefusal.MALFORMED,
        BindRefusal.CLAIM_FAILED,
        BindRefusal.OTHER_NODE,
        BindRefusal.OTHER_COUNT,
        BindRefusal.CROSSED,
    }
)
"""Refusals that waiting does not resolve: only a new pod can ask again."""


class BindRefused(Exception):  # noqa: N818  # it is an answer, not a failure of ours
    """The plugin refuses a request, for now or for ever.

    Attributes:
        why: the reason code.
        detail: the request, its container, and the obstacle.
        pod: the pod, None if it is not known.
        container: the container's name, "" if it is not known.
    """

    def __init__(
        self, why: BindRefusal, detail: str, pod: PodRef | None = None, container: str = ""
    ) -> None:
        where = (
            f"{pod.namespace}/{pod.name}" + (f" {container}" if container else "") if pod else ""
        )
        super().__init__(f"{where}: {detail}" if where else detail)
        self.why = why
        self.detail = detail
        self.pod = pod
        self.container = container

    @property
    def final(self) -> bool:
        """Whether waiting does not resolve the refusal."""
        return self.why in FINAL
