"""Why the plugin did not do what the kubelet asked, once, for code, metrics, events and docs."""

from typing import Final

from vgpu.model import PodRef
from vgpu.reasons import Explained


class BindRefusal(Explained):
    """The label ``reason`` of refusals; ``explanation`` says it in words."""

    NOT_RECOVERED = "not_recovered", "the plugin is still finding out who holds what"
    NO_CANDIDATE = "no_candidate", "no pod on this node waits for so many devices"
    NOT_SEEN = "not_seen", "the kubelet's checkpoint or the API server does not show the pod yet"
    NOT_ASKED = "not_asked", "the container asks for nothing in this scheme's language"
    NO_CLAIM = "no_claim", "no scheduler has written which device the pod is to have"
    MALFORMED = "malformed", "what the pod's annotations or requests say cannot be read"
    CLAIM_FAILED = "claim_failed", "the pod was given up: its annotations say that it failed"
    OTHER_NODE = "other_node", "the pod's annotations promise it devices of another node"
    OTHER_COUNT = "other_count", "promised are more or fewer devices than the kubelet counted"
    UNKNOWN_DEVICE = "unknown_device", "the promised device is not on this node"
    UNHEALTHY_DEVICE = "unhealthy_device", "the promised device is unhealthy"
    NO_ROOM = "no_room", "the device has not enough left: others hold it, or still have containers"
    CROSSED = (
        "crossed",
        "without CDI: the answer was made for another pod and does not fit",
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
"""What does not heal by waiting: only a new pod asks anew."""


class BindRefused(Exception):  # noqa: N818  # it is an answer, not a failure of ours
    """The plugin will not do it, now or ever.

    Attributes:
        why: the reason code.
        detail: what was asked, by whom, and what stands against it.
        pod: whose pod, None if that is not known.
        container: its name, "" if that is not known.
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
        """Whether waiting does not help."""
        return self.why in FINAL
