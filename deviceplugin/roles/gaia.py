"""gaia's part: what Tencent's gpu-manager does on a node, except for the files of its library.

gpu-admission's choice of cards is law while it can be kept; gpu-manager chooses anew and refuses
the pod where it comes to another card. Where gpu-admission has not spoken the cards are chosen
here, for all containers of the pod at once, as gpu-manager would.

Nothing in gaia's language says that a pod was refused: gpu-admission believes the pod's phase.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from deviceplugin.model import Tenant
from deviceplugin.reasons import Refused, Why
from deviceplugin.role import Folder, Marks, NodeMarks
from deviceplugin.roles import parts
from vgpu.books import Books
from vgpu.facts import Gpu
from vgpu.kube import Node, Pod
from vgpu.model import (
    Allocation,
    Claim,
    ContainerKind,
    Device,
    Phase,
    PodRef,
    Request,
    Scheme,
    Share,
)
from vgpu.placement import gaia as placement
from vgpu.schemes.gaia import PREDICATE_NODE, PREDICATE_TIME, Gaia
from vgpu.schemes.gaia_grant import DEVICE_NODE
from vgpu.schemes.gaia_node import MODEL_LABEL, model_label
from vgpu.schemes.language import ClaimError, Edits
from vgpu.topology import Card, Level, Tree, grow

FOLDER_MODE: Final = 0o755
"""Any user of the pod may look at its limits. gpu-manager's 0777 lets them be written, too."""

_WHY: Final[Mapping[placement.Why, Why]] = {
    placement.Why.NO_FREE_CARD: Why.NO_ROOM,
    placement.Why.TOO_MUCH_MEMORY: Why.NO_ROOM,
    placement.Why.SHARING_OFF: Why.NO_ROOM,  # for parts of cards there is none on this node
    placement.Why.NEEDS_BOTH: Why.MALFORMED,
    placement.Why.ILLEGAL_PREDICATE: Why.NO_ROOM,
    placement.Why.MISMATCH: Why.NO_ROOM,
}

_AT_ONCE: Final = frozenset({ContainerKind.APP, ContainerKind.SIDECAR})
"""Containers that run beside one another; the others use what these will have later."""


class GaiaRole(msgspec.Struct, frozen=True):
    """gaia's role.

    Attributes:
        language: with this node's folders.
        share_mode: whether parts of cards are given at all.
        node_labels: of the node, by key, beside that of the card's model.
        links: how near two cards are, by UUIDs in either order, as ``nvmlGpuTopologyLevel_t``;
            those that are not there are taken for far.
    """

    language: Gaia = Gaia()
    share_mode: bool = True
    node_labels: Mapping[str, str] = {}
    links: Mapping[tuple[str, str], int] = {}

    @property
    def scheme(self) -> Scheme:
        """Gaia."""
        return Scheme.GAIA

    @property
    def resources(self) -> tuple[str, ...]:
        """Cores, the binding one, and memory."""
        return self.language.resources

    def devices(self, gpus: Iterable[Gpu]) -> tuple[Device, ...]:
        """The whole cards; the index is the N of ``/dev/nvidia<N>``."""
        gpus = tuple(gpus)
        minors = {gpu.uuid: gpu.info.get("minor", "") for gpu in gpus}
        found = (
            replace(card, index=int(minor)) if (minor := minors[card.uuid]).isdecimal() else card
            for card in parts.cards(gpus)
        )
        return tuple(sorted(found, key=lambda card: card.index or 0))

    def claim(
        self, pod: Pod, node: str, devices: tuple[Device, ...], books: Books
    ) -> tuple[Allocation, ...]:
        """What gpu-admission promised; for a container that it passed over, what is chosen here."""
        try:
            requests = self.language.requests(pod)
            told = self.language.claim(pod)
        except ClaimError as error:
            raise Refused(Why.MALFORMED, error.detail, pod.ref) from error
        if told and told.node not in ("", node):
            detail = f"its annotations promise it cards of node {told.node}, this is {node}"
            raise Refused(Why.OTHER_NODE, detail, pod.ref)
        promised = {each.container: each.shares for each in told.allocations} if told else {}
        asking = [request for request in requests if request.kind in _AT_ONCE]
        _require_known(pod, asking, promised, devices)
        return self._placed(pod, asking, promised, devices, books)

    def edits(
        self,
        pod: Pod,
        allocation: Allocation,
        name: str,  # noqa: ARG002  # gpu-manager makes nothing up
        devices: Mapping[str, Device],
    ) -> Edits:
        """As the language says. An image's ``compat32=true`` is not seen from outside of it."""
        owner = replace(pod.ref, uid=pod.kubelet_uid)
        try:
            return self.language.edits(owner, allocation, devices)
        except ClaimError as error:
            raise Refused(Why.MALFORMED, error.detail, pod.ref, allocation.container) from error

    def late_env(self, env: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002  # none may
        """None: its library asks for its limits in its own time."""
        return {}

    def folders(self, pod: PodRef, container: str) -> tuple[Folder, ...]:  # noqa: ARG002  # one for all
        """The pod's folder of limits."""
        return (Folder(f"{self.language.limits_path}/{pod.uid}", FOLDER_MODE),)

    def pod_marks(
        self,
        pod: Pod,
        tenant: Tenant,
        devices: Mapping[str, Device],
        now: float,  # noqa: ARG002  # the same at each call: when the pod became a tenant
    ) -> Marks:
        """What gpu-admission would have written, and that it is done, once all are bound."""
        try:
            asking = {request.container for request in self.language.requests(pod)}
            if not asking <= {binding.container for binding in tenant.bindings}:
                return {}
            claim = _done(pod, tenant)
            told = self.language.annotations(claim, devices, pod.apps) if claim else {}
        except ClaimError:
            return {}  # a card is lost, or the pod was edited: what stands there stays
        first = {PREDICATE_NODE, PREDICATE_TIME} & pod.annotations.keys()
        return {
            key: text
            for key, text in told.items()
            if key not in first and not _same(text, pod.annotations.get(key))
        }

    def failure_marks(self, pod: Pod) -> Marks:  # noqa: ARG002  # nothing can be said
        """None: without its promise the pod would be given another card, not given up."""
        return {}

    def node_marks(
        self,
        node: Node,
        devices: tuple[Device, ...],
        now: float,  # noqa: ARG002  # labels do not age
    ) -> NodeMarks:
        """The labels: the operator's, and the model of the first card."""
        model = model_label(devices[0].model) if devices else ""
        wanted = {**self.node_labels} | ({MODEL_LABEL: model} if model else {})
        return NodeMarks(labels=parts.lagging(node.labels, wanted))

    def lock_to_release(
        self,
        node: Node,  # noqa: ARG002  # it has no locks
        pods: Collection[Pod],  # noqa: ARG002
        served: Collection[str],  # noqa: ARG002
    ) -> str | None:
        """None: gaia does not lock nodes."""
        return None

    # ------------------------------------------------------------ which cards

    def _placed(
        self,
        pod: Pod,
        requests: Sequence[Request],
        promised: Mapping[str, Sequence[Share]],
        devices: tuple[Device, ...],
        books: Books,
    ) -> tuple[Allocation, ...]:
        """The cards of all containers, promised ones first: what is chosen has to do without.

        Nothing is chosen on an unhealthy card; whether a promised one is well is asked elsewhere.
        Raises Refused.
        """
        uuids = {str(device.index): device.uuid for device in devices}
        every = self._tree(devices)
        healthy = self._tree(tuple(device for device in devices if device.healthy))
        held = {(str(holder), ""): shares for holder, shares in books.held.items()}
        placed = {}
        for request in sorted(requests, key=lambda one: one.container not in promised):
            key = (pod.kubelet_uid, request.container)
            minors = [int(share.device) for share in promised.get(request.container, ())]
            shares = placement.allocate(
                every if minors else healthy,
                held,
                key,
                request,
                rules=placement.Rules(share_mode=self.share_mode),
                predicate=minors or None,
            )
            if isinstance(shares, placement.Refused):
                raise Refused(_WHY[shares.why], shares.words, pod.ref, request.container)
            held[key] = shares
            placed[request.container] = tuple(
                Share(uuids[share.device], share.memory_bytes, share.cores_milli)
                for share in shares
            )
        return tuple(
            Allocation(request.container, placed[request.container], Phase.ASSIGNED)
            for request in requests
        )

    def _tree(self, devices: tuple[Device, ...]) -> Tree:
        known = {level.value: level for level in Level}

        def between(low: int, high: int) -> Level:
            one, two = devices[low].uuid, devices[high].uuid
            link = self.links.get((one, two), self.links.get((two, one), -1))
            return known.get(link, Level.SYS)

        cards = (
            Card(at, device.index or 0, device.uuid, memory_bytes=device.memory_bytes or 0)
            for at, device in enumerate(devices)
        )
        return grow(cards, between)


def _require_known(
    pod: Pod,
    requests: Iterable[Request],
    promised: Mapping[str, Sequence[Share]],
    devices: Iterable[Device],
) -> None:
    """Raises Refused where a promise cannot be kept here at all."""
    known = {str(device.index) for device in devices}
    for request in requests:
        shares = promised.get(request.container)
        if shares is None:
            continue
        if len(shares) != request.count:
            detail = f"it asks for {request.count} cards and was promised {len(shares)}"
            raise Refused(Why.MALFORMED, detail, pod.ref, request.container)
        strange = [f"{DEVICE_NODE}{one.device}" for one in shares if one.device not in known]
        if strange:
            there = ", ".join(f"{DEVICE_NODE}{index}" for index in sorted(known)) or "none"
            detail = f"promised is {', '.join(strange)}; there are {there}"
            raise Refused(Why.UNKNOWN_DEVICE, detail, pod.ref, request.container)


def _done(pod: Pod, tenant: Tenant) -> Claim | None:
    """What gaia's annotations can say of the tenant: its app containers; None if none has any."""
    allocations = tuple(
        replace(each, phase=Phase.ASSIGNED)
        for each in tenant.allocations
        if each.container in pod.apps
    )
    since = tenant.since  # and not now, which is another at each call
    return Claim(Scheme.GAIA, pod.ref, pod.node, allocations, since) if allocations else None


def _same(text: str, there: str | None) -> bool:
    """Whether an annotation says this already, in whatever order."""
    return there is not None and sorted(there.split(",")) == sorted(text.split(","))
