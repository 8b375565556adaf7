"""The plugin's knowledge as frozen values: the kubelet's assignments, admitted pods with bindings.

Allocate answers with a fresh random **name** and does not know the container. The kubelet writes
the answer into its checkpoint, beside the pod and the container: an **assignment**. From the pod's
own claim the plugin then makes the container's **binding** under that name. A pod that holds
devices here is an **admitted pod**; it is admitted as a whole, once, and leaves when its containers
are gone.
"""

import re
from typing import Final

import msgspec

from vgpu.model.admitted_pod import AdmittedPod, Binding
from vgpu.model.names import PodRef
from vgpu.schemes.codec import ContainerEdits

__all__ = [
    "BINDING_KIND",
    "AdmittedPod",
    "AllocationConflict",
    "Binding",
    "ContainerDevices",
    "checked_name",
    "is_binding_name",
]

BINDING_KIND: Final = "vgpu.dev/share"
"""The CDI kind: a container's device is called ``<kind>=<name>``."""

_NAME: Final = re.compile(r"[0-9a-f]{24}")


def is_binding_name(text: str) -> bool:
    """Whether the text may be one of our names, and so a part of a file's name."""
    return _NAME.fullmatch(text) is not None


def checked_name(text: str) -> str:
    """The same text. Raises ValueError if it can be no name, so that it never becomes a path."""
    if not is_binding_name(text):
        raise ValueError(f"no name of a binding: {text[:64]!r}")
    return text


class ContainerDevices(msgspec.Struct, frozen=True, gc=False):
    """The devices of the binding resource that the kubelet's checkpoint has for one container.

    Attributes:
        pod_uid: the pod, by the UID that the node knows it by.
        container: its name.
        ids: device IDs; no two live pods share one.
        name: the name of our answer; "" if the answer is not ours, or an older plugin's.
        answer: the edits of the answer, as the kubelet has them; without the edits of CDI.
    """

    pod_uid: str
    container: str
    ids: frozenset[str]
    name: str
    answer: ContainerEdits


class AllocationConflict(msgspec.Struct, frozen=True, gc=False):
    """A pod that holds more than there is, or a disagreement of two sources, for people.

    ``parties`` are the UIDs of all pods that it is about, if they are more than ``pod``.
    """

    pod: PodRef | None
    detail: str
    parties: frozenset[str] = frozenset()
