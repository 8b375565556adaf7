"""gpu-manager's part: what Tencent's gpu-manager does on a node, except for the files of its
library.

gpu-admission's choice of GPUs is kept where that is possible; gpu-manager chooses again and refuses
the pod if it chooses another GPU. Where gpu-admission has written nothing, this adapter chooses the
GPUs for all containers of the pod at once, as gpu-manager would.

No annotation of gpu-manager reports that a pod was refused: gpu-admission trusts the pod's phase.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from deviceplugin.capacity import NodeCapacity
from deviceplugin.model import AdmittedPod
from deviceplugin.reasons import BindRefusal, BindRefused
from deviceplugin.scheme_adapter import AnnotationPatch, Folder, NodePatch, gpu_devices, lagging
from vgpu.model.allocation import Allocation, Claim, Device, Request, Share
from vgpu.model.facts import Gpu
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, device_node
from vgpu.model.objects import Node, Pod
from vgpu.model.topology import LinkLevel, TopologyGpu, TopologyTree, grow
from vgpu.model.units import count
from vgpu.placement import gaia as placement
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.schemes.codec import ClaimError, ContainerEdits
from vgpu.schemes.gaia.codec import PREDICATE_NODE, PREDICATE_TIME, Gaia
from vgpu.schemes.gaia.node import MODEL_LABEL, model_label

FOLDER_MODE: Final = 0o755
"""Any user of the pod may read its limits. gpu-manager's 0777 also lets any user write them."""

_WHY: Final[Mapping[PlacementReason, BindRefusal]] = {
    PlacementReason.NO_FITTING_GPU: BindRefusal.NO_ROOM,
    PlacementReason.MEMORY: BindRefusal.NO_ROOM,
    PlacementReason.SHARING_OFF: BindRefusal.NO_ROOM,  # this node shares no parts of GPUs
    PlacementReason.MALFORMED_REQUEST: BindRefusal.MALFORMED,
    PlacementReason.RESERVATION_ILLEGAL: BindRefusal.NO_ROOM,
    PlacementReason.RESERVATION_DIFFERS: BindRefusal.NO_ROOM,
}

_AT_ONCE: Final = frozenset({ContainerKind.APP, ContainerKind.SIDECAR})
"""Containers that run at the same time; the others use the shares of these before they start."""


class GaiaAdapter(msgspec.Struct, frozen=True):
    """gpu-manager's adapter.

    Attributes:
        codec: the scheme's codec with this node's folders.
        share_mode: whether parts of GPUs are allocated at all.
        node_labels: labels of the node by key, besides the label of the GPU's model.
        links: how near two GPUs are, by UUIDs in either order, as ``nvmlGpuTopologyLevel_t``;
            a pair that is missing counts as far apart.
    """

    codec: Gaia = Gaia()
    share_mode: bool = True
    node_labels: Mapping[str, str] = {}
    links: Mapping[tuple[str, str], int] = {}

    @property
    def scheme(self) -> Scheme:
        """gpu-manager's."""
        return Scheme.GAIA

    @property
    def resources(self) -> tuple[str, ...]:
        """Cores, which is the binding resource, and memory."""
        return self.codec.resources

    def devices(self, gpus: Iterable[Gpu]) -> tuple[Device, ...]:
        """The whole GPUs, in the order of their minor numbers.

        A GPU of unknown minor number is unhealthy: no container can get its device node, and no
        annotation can name it.
        """
        devices = (
            device if device.minor is not None else replace(device, healthy=False)
            for device in gpu_devices(gpus)
        )
        return tuple(sorted(devices, key=lambda device: (device.minor is None, device.minor or 0)))

    def claim(
        self, pod: Pod, node: str, devices: tuple[Device, ...], capacity: NodeCapacity
    ) -> tuple[Allocation, ...]:
        """What gpu-admission reserved; what is chosen here for a container that it passed over."""
        try:
            requests = self.codec.requests(pod)
            claim = self.codec.claim(pod)
        except ClaimError as error:
            raise BindRefused(BindRefusal.MALFORMED, error.detail, pod.ref) from error
        if claim and claim.node not in ("", node):
            detail = f"its annotations reserve GPUs of node {claim.node}, this is {node}"
            raise BindRefused(BindRefusal.OTHER_NODE, detail, pod.ref)
        reserved = (
            {allocation.container: allocation.shares for allocation in claim.allocations}
            if claim
            else {}
        )
        asking = [request for request in requests if request.kind in _AT_ONCE]
        _require_known(pod, asking, reserved, devices)
        return self._placed(pod, asking, reserved, devices, capacity)

    def edits(
        self,
        pod: Pod,
        allocation: Allocation,
        name: str,  # noqa: ARG002  # gpu-manager uses no random names
        devices: Mapping[str, Device],
    ) -> ContainerEdits:
        """The codec's edits. The plugin cannot see an image's ``compat32=true``."""
        owner = replace(pod.ref, uid=pod.kubelet_uid)
        try:
            return self.codec.edits(owner, allocation, devices)
        except ClaimError as error:
            raise BindRefused(
                BindRefusal.MALFORMED, error.detail, pod.ref, allocation.container
            ) from error

    def late_env(self, env: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002  # none may
        """None: gpu-manager's library asks for its limits when the container runs."""
        return {}

    def folders(self, pod: PodRef, container: str) -> tuple[Folder, ...]:  # noqa: ARG002  # one for all
        """The pod's folder of limits."""
        return (Folder(f"{self.codec.limits_path}/{pod.uid}", FOLDER_MODE),)

    def pod_annotations(
        self,
        pod: Pod,
        admitted_pod: AdmittedPod,
        devices: Mapping[str, Device],
        now: float,  # noqa: ARG002  # the same at each call: when the pod was admitted
    ) -> AnnotationPatch:
        """What gpu-admission would have written, and success, once all containers are bound."""
        try:
            asking = {request.container for request in self.codec.requests(pod)}
            if not asking <= {binding.container for binding in admitted_pod.bindings}:
                return {}
            claim = _done(pod, admitted_pod)
            annotations = self.codec.annotations(claim, devices, pod.apps) if claim else {}
        except ClaimError:
            return {}  # a GPU is lost, or the pod was edited: the annotations stay as they are
        first = {PREDICATE_NODE, PREDICATE_TIME} & pod.annotations.keys()
        return {
            key: text
            for key, text in annotations.items()
            if key not in first and not _same(text, pod.annotations.get(key))
        }

    def failure_annotations(self, pod: Pod) -> AnnotationPatch:  # noqa: ARG002  # nothing can be said
        """None: a pod without its reservation would get another GPU instead of being abandoned."""
        return {}

    def node_annotations(
        self,
        node: Node,
        devices: tuple[Device, ...],
        now: float,  # noqa: ARG002  # labels do not age
    ) -> NodePatch:
        """The labels: the operator's, and the model of the first GPU."""
        model = model_label(devices[0].model) if devices else ""
        wanted = {**self.node_labels} | ({MODEL_LABEL: model} if model else {})
        return NodePatch(labels=lagging(node.labels, wanted))

    def lock_to_release(
        self,
        node: Node,  # noqa: ARG002  # it has no locks
        pods: Collection[Pod],  # noqa: ARG002
        served: Collection[str],  # noqa: ARG002
    ) -> str | None:
        """None: gpu-manager does not lock nodes."""
        return None

    # ------------------------------------------------------------ which GPUs

    def _placed(
        self,
        pod: Pod,
        requests: Sequence[Request],
        reserved: Mapping[str, Sequence[Share]],
        devices: tuple[Device, ...],
        capacity: NodeCapacity,
    ) -> tuple[Allocation, ...]:
        """The GPUs of all containers, reserved ones first: a choice cannot use their shares.

        Nothing is chosen on an unhealthy GPU; the allocation state checks the reserved ones.
        Raises BindRefused.
        """
        uuids = {device_node(d.minor): d.uuid for d in devices if d.minor is not None}
        minors = {device_node(d.minor): d.minor for d in devices if d.minor is not None}
        every = self._tree(devices)
        healthy = self._tree(tuple(device for device in devices if device.healthy))
        held = {(str(holder), ""): shares for holder, shares in capacity.held.items()}
        placed = {}
        for request in sorted(requests, key=lambda asking: asking.container not in reserved):
            key = (pod.kubelet_uid, request.container)
            predicate = [minors[share.device] for share in reserved.get(request.container, ())]
            shares = placement.allocate(
                every if predicate else healthy,
                held,
                key,
                request,
                rules=placement.GaiaRules(share_mode=self.share_mode),
                predicate=predicate or None,
            )
            if isinstance(shares, PlacementRefusal):
                raise BindRefused(_WHY[shares.reason], shares.message, pod.ref, request.container)
            held[key] = shares
            placed[request.container] = tuple(
                Share(uuids[share.device], share.memory_bytes, share.cores_milli)
                for share in shares
            )
        return tuple(
            Allocation(request.container, placed[request.container], Phase.ASSIGNED)
            for request in requests
        )

    def _tree(self, devices: tuple[Device, ...]) -> TopologyTree:
        known = {level.value: level for level in LinkLevel}

        def between(low: int, high: int) -> LinkLevel:
            low_uuid, high_uuid = devices[low].uuid, devices[high].uuid
            link = self.links.get((low_uuid, high_uuid), self.links.get((high_uuid, low_uuid), -1))
            return known.get(link, LinkLevel.SYS)

        gpus = (
            TopologyGpu(position, device.minor, device.uuid, memory_bytes=device.memory_bytes or 0)
            for position, device in enumerate(devices)
        )
        return grow(gpus, between)


def _require_known(
    pod: Pod,
    requests: Iterable[Request],
    reserved: Mapping[str, Sequence[Share]],
    devices: Iterable[Device],
) -> None:
    """Raises BindRefused where a reservation can never hold here."""
    known = {device_node(device.minor) for device in devices if device.minor is not None}
    for request in requests:
        shares = reserved.get(request.container)
        if shares is None:
            continue
        if len(shares) != request.count:
            detail = f"it asks for {count(request.count, 'GPU')}, and reserved are {len(shares)}"
            raise BindRefused(BindRefusal.MALFORMED, detail, pod.ref, request.container)
        strange = [share.device for share in shares if share.device not in known]
        if strange:
            there = ", ".join(sorted(known)) or "none"
            detail = f"reserved is {', '.join(strange)}; there are {there}"
            raise BindRefused(BindRefusal.UNKNOWN_DEVICE, detail, pod.ref, request.container)


def _done(pod: Pod, admitted_pod: AdmittedPod) -> Claim | None:
    """The pod's app containers, which gpu-manager's annotations name; None without any."""
    allocations = tuple(
        replace(allocation, phase=Phase.ASSIGNED)
        for allocation in admitted_pod.allocations
        if allocation.container in pod.apps
    )
    since = admitted_pod.since  # not the time of now, which differs at each call
    return Claim(Scheme.GAIA, pod.ref, pod.node, allocations, since) if allocations else None


def _same(text: str, there: str | None) -> bool:
    """Whether an annotation has this text already, in any order."""
    return there is not None and sorted(there.split(",")) == sorted(text.split(","))
