"""What a plugin does differently for each scheme, in one Protocol that the roles speak.

A role is a frozen value over a scheme's language and its operator's settings; its methods are pure.
The rest of the plugin knows no scheme.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import msgspec

from deviceplugin.model import AdmittedPod
from vgpu.capacity import NodeCapacity
from vgpu.facts import Gpu
from vgpu.kube.objects import Node, Pod
from vgpu.model import Allocation, Device, PodRef, Scheme
from vgpu.schemes.codec import ContainerEdits, SchemeCodec

AnnotationPatch = Mapping[str, str | None]
"""Annotations or labels to be set; None removes one. Empty where all is as it is to be."""


class NodePatch(msgspec.Struct, frozen=True):
    """What the Node object is to say, as far as it does not.

    Attributes:
        annotations, labels: see :data:`AnnotationPatch`.
        capacity: extended resources of the node's status, capacity and allocatable alike.
        unhealthy: data of the ConfigMap of unhealthy GPUs; None if the scheme has none.
    """

    annotations: AnnotationPatch = {}
    labels: AnnotationPatch = {}
    capacity: Mapping[str, int] = {}
    unhealthy: Mapping[str, str] | None = None


class Folder(msgspec.Struct, frozen=True):
    """A folder on the host that must be there before a container is made; ``mode`` as chmod."""

    path: str
    mode: int


class SchemeAdapter(Protocol):
    """One scheme's part."""

    @property
    def scheme(self) -> Scheme:
        """Which."""
        ...

    @property
    def codec(self) -> SchemeCodec:
        """The scheme's language with this node's settings."""
        ...

    @property
    def resources(self) -> tuple[str, ...]:
        """What is offered to the kubelet; the first is the binding one, the others answer empty."""
        ...

    def devices(self, gpus: Iterable[Gpu]) -> tuple[Device, ...]:
        """The GPUs as they are shared here: scaled, cut, with indices as the scheme counts.

        MIG instances and GPUs that are cut into them are left out. Health is not known here.
        """
        ...

    def claim(
        self, pod: Pod, node: str, devices: tuple[Device, ...], books: NodeCapacity
    ) -> tuple[Allocation, ...]:
        """What the pod's containers are to have, devices by UUID; ``books`` are without the pod.

        As its annotations say, or chosen here, among the healthy ones, where the scheme lets its
        plugin choose; whether a promised one is healthy the allocation state asks. Of init
        containers only those that the annotations give something of their own.
        Raises Refused: NO_CLAIM, MALFORMED, CLAIM_FAILED, OTHER_NODE, UNKNOWN_DEVICE, NO_ROOM.
        """
        ...

    def edits(
        self, pod: Pod, allocation: Allocation, name: str, devices: Mapping[str, Device]
    ) -> ContainerEdits:
        """All that a container is given, exactly as the original plugin gives it.

        ``name`` is that of the binding, for what the original makes up at random; ``devices`` by
        every name. Raises Refused MALFORMED.
        """
        ...

    def late_env(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """Of an environment, what may reach the container by a file, where there is no CDI.

        HAMi-core reads ``KEY=value`` lines from ``/overrideEnv``; {} where nothing reads a file.
        """
        ...

    def folders(self, pod: PodRef, container: str) -> tuple[Folder, ...]:
        """Host folders of the container, those of its mounts first to last."""
        ...

    def pod_annotations(
        self, pod: Pod, tenant: AdmittedPod, devices: Mapping[str, Device], now: float
    ) -> AnnotationPatch:
        """The pod's annotations that lag behind what has been bound; {} if none does.

        ``devices`` by every name. Called again and again: it must be stable, so that what was
        written is not written again.
        """
        ...

    def failure_annotations(self, pod: Pod) -> AnnotationPatch:
        """The annotations by which the pod stops being a candidate, after a final refusal."""
        ...

    def node_annotations(self, node: Node, devices: tuple[Device, ...], now: float) -> NodePatch:
        """What the Node has to say of these devices (with their health), as far as it does not."""
        ...

    def lock_to_release(
        self, node: Node, pods: Collection[Pod], served: Collection[str]
    ) -> str | None:
        """The key of the node lock whose owner needs it no more; None if there is none such.

        ``served`` are the UIDs of pods of which every container has its answer: it is bound, or
        refused, be it for now.
        """
        ...
