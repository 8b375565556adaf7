"""Whether a node's device plugin can serve a pod at all, or would fail with every new one. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from vgpu.ledger import Ledger
from vgpu.model.names import Phase, Source
from vgpu.model.objects import Node, Pod
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.registry import registry
from vgpu.schemes.row import SchemeRow

PLUGIN_LABEL: Final = "vgpu.dev/plugin"
"""The label of nodes for which an operator has installed our device plugin, with its scheme."""


class PluginService(msgspec.Struct, frozen=True):
    """A pod that the original device plugin of its sharing system can never serve.

    Attributes:
        limit: why the original cannot, in words.
        ours: what shows that the node's plugin is vgpu's, which can; "" if nothing does.
    """

    limit: str
    ours: str = ""


def plugin_service(
    pod: Pod,
    node: Node,
    codecs: Iterable[SchemeCodec],
    pods: Iterable[Pod],
    ledger: Ledger | None,
) -> PluginService | None:
    """The service of the pod on the node; None if the original may serve it, too.

    ``pods`` are those of the node, ``ledger`` is the node's.
    """
    for codec in codecs:
        row = registry().row(codec)
        limit = row.never_serves(pod, node) if row.never_serves else ""
        if limit:
            return PluginService(limit, next(_ours(row, codec, node, pods, ledger), ""))
    return None


def _ours(
    row: SchemeRow, codec: SchemeCodec, node: Node, pods: Iterable[Pod], ledger: Ledger | None
) -> Iterator[str]:
    """What shows that the node's plugin is vgpu's."""
    if node.labels.get(PLUGIN_LABEL) == row.adapter:
        yield f"node {node.name} has the label {PLUGIN_LABEL}: {row.adapter}"
    for holding in ledger.holdings if ledger else ():
        if holding.scheme is codec.scheme and Source.OWN_CHECKPOINT in holding.sources:
            yield f"the checkpoint of vgpu's device plugin on node {node.name}"
    for pod in pods:
        if row.never_serves and row.never_serves(pod, node) and _is_served(pod, codec):
            name = f"{pod.ref.namespace}/{pod.ref.name}"
            yield f"the plugin of node {node.name} has served such a pod: {name}"


def _is_served(pod: Pod, codec: SchemeCodec) -> bool:
    """Whether the plugin has marked the pod as served, and its containers have started."""
    try:
        claim = codec.claim(pod)
    except ClaimError:
        return False
    return (
        pod.phase == "Running"
        and claim is not None
        and bool(claim.allocations)
        and all(allocation.phase is Phase.ASSIGNED for allocation in claim.allocations)
    )
