"""What the plugin knows, as frozen values: the kubelet's assignments, and tenants with bindings.

Allocate answers with a fresh random **name** and does not know for whom. The kubelet writes the
answer into its checkpoint, beside the pod and the container: an **assignment**. From the pod's own
claim the plugin then makes the container's **binding** under that name. A pod that holds devices
here is a **tenant**; it is admitted as a whole, once, and leaves when its containers are gone.
"""

import msgspec

from vgpu.admitted import AdmittedPod, Binding
from vgpu.model import PodRef
from vgpu.schemes.codec import ContainerEdits

__all__ = ["AdmittedPod", "AllocationConflict", "Binding", "ContainerDevices"]


class ContainerDevices(msgspec.Struct, frozen=True, gc=False):
    """What the kubelet gave one container of the binding resource, by its own checkpoint.

    Attributes:
        pod_uid: the pod, by the UID that the node knows it by.
        container: its name.
        ids: device IDs; no two live pods have one in common.
        name: that of our answer; "" if the answer is none of ours, or of an older plugin's.
        answer: what the container is given at its creation, as the kubelet has it; without what
            CDI adds.
    """

    pod_uid: str
    container: str
    ids: frozenset[str]
    name: str
    answer: ContainerEdits


class AllocationConflict(msgspec.Struct, frozen=True, gc=False):
    """Who holds more than there is, or what two sources say differently, in words.

    ``parties`` are the UIDs of all whom it is about, where that is more than ``pod``.
    """

    pod: PodRef | None
    detail: str
    parties: frozenset[str] = frozenset()
