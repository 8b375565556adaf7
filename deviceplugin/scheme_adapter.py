"""The differences between schemes, as one Protocol that each scheme's adapter implements,
and the functions that several adapters use.

An adapter is a frozen value of a scheme's codec and the operator's settings; its methods are pure.
The rest of the plugin knows no scheme.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import msgspec

from deviceplugin.capacity import NodeCapacity
from deviceplugin.model import AdmittedPod
from vgpu.ledger.from_node import devices_of
from vgpu.model.allocation import Allocation, Device
from vgpu.model.facts import Gpu
from vgpu.model.names import PodRef, Scheme
from vgpu.model.objects import Node, Pod
from vgpu.schemes.codec import ContainerEdits, SchemeCodec

AnnotationPatch = Mapping[str, str | None]
"""Annotations or labels to be set; None removes one. Empty if nothing has to change."""


class NodePatch(msgspec.Struct, frozen=True):
    """The changes that the Node object needs.

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
        """The scheme."""
        ...

    @property
    def codec(self) -> SchemeCodec:
        """The scheme's codec with this node's settings."""
        ...

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources for the kubelet; the first is the binding one, the others answer empty."""
        ...

    def devices(self, gpus: Iterable[Gpu]) -> tuple[Device, ...]:
        """The GPUs as they are shared here: scaled, split, with indices as the scheme counts.

        Leaves out MIG instances and GPUs that are split into them. Health is not known here.
        """
        ...

    def claim(
        self, pod: Pod, node: str, devices: tuple[Device, ...], capacity: NodeCapacity
    ) -> tuple[Allocation, ...]:
        """The allocations of the pod's containers by UUID; ``capacity`` are without the pod.

        From its annotations, or chosen here among healthy devices if the scheme lets its plugin
        choose; the allocation state checks the health of reserved devices. Has only those init
        containers that the annotations give something of their own.
        Raises BindRefused: NO_CLAIM, MALFORMED, CLAIM_FAILED, OTHER_NODE, UNKNOWN_DEVICE, NO_ROOM.
        """
        ...

    def edits(
        self, pod: Pod, allocation: Allocation, name: str, devices: Mapping[str, Device]
    ) -> ContainerEdits:
        """All edits of a container, exactly as the original plugin makes them.

        ``name`` is the binding's name, in place of the original's random names; ``devices`` by
        every name. Raises BindRefused MALFORMED.
        """
        ...

    def late_env(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """The part of an environment that may reach the container by a file, without CDI.

        HAMi-core reads ``KEY=value`` lines from ``/overrideEnv``; {} if nothing reads a file.
        """
        ...

    def folders(self, pod: PodRef, container: str) -> tuple[Folder, ...]:
        """Host folders of the container, in the order of its mounts."""
        ...

    def pod_annotations(
        self, pod: Pod, admitted_pod: AdmittedPod, devices: Mapping[str, Device], now: float
    ) -> AnnotationPatch:
        """The pod's annotations that its bindings have made outdated; {} if there are none.

        ``devices`` by every name. Called repeatedly: the result must be stable, so that nothing is
        written twice.
        """
        ...

    def failure_annotations(self, pod: Pod) -> AnnotationPatch:
        """The annotations by which the pod stops being a candidate, after a final refusal."""
        ...

    def node_annotations(self, node: Node, devices: tuple[Device, ...], now: float) -> NodePatch:
        """The changes that the Node object needs for these devices (with their health)."""
        ...

    def lock_to_release(
        self, node: Node, pods: Collection[Pod], served: Collection[str]
    ) -> str | None:
        """The key of a node lock whose owner needs it no more; None if there is no such lock.

        ``served`` are the UIDs of pods with an answer for every container: it is bound, or refused,
        perhaps only for now.
        """
        ...


def gpu_devices(gpus: Iterable[Gpu]) -> tuple[Device, ...]:
    """The GPUs that can be shared, by index: their memory is known, and MIG does not cut them."""
    gpus = tuple(gpus)
    cut = {gpu.parent for gpu in gpus}
    whole = (
        gpu
        for gpu in gpus
        if not gpu.parent and gpu.uuid not in cut and not gpu.readings.get(("mig_mode",))
    )
    known = (device for device in devices_of(whole) if device.memory_bytes)
    return tuple(sorted(known, key=lambda device: device.index or 0))


def lagging(current: Mapping[str, str], wanted: AnnotationPatch) -> AnnotationPatch:
    """The part of ``wanted`` that differs from the annotations or labels of now."""
    return {key: text for key, text in wanted.items() if current.get(key) != text}
