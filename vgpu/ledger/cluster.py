"""A ledger for each node of a cluster, from the API server's nodes and pods alone. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from vgpu.kube.objects import Node, Pod, holds_devices
from vgpu.ledger.entries import Ledger
from vgpu.ledger.from_api import Reading, claim_statements, read_pod, registered
from vgpu.ledger.from_kubelet import OWN_RESOURCES
from vgpu.ledger.merge import merge
from vgpu.ledger.statements import Evidence, Malformed, Statement, Wanted
from vgpu.ledger.virtual_gpus import of_share_pods, on_cards
from vgpu.model import Device, Source
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.handles import with_handles

_Read = tuple[Pod, Reading]


class ClusterLedgers(msgspec.Struct, frozen=True):
    """The ledgers of a cluster's nodes.

    Attributes:
        ledgers: by node, in the order of the nodes; then of those that only pods name.
        unbound: what pods ask for that are bound or promised to no node.
        malformed: what could not be read of these pods.
    """

    ledgers: Mapping[str, Ledger]
    unbound: tuple[Wanted, ...] = ()
    malformed: tuple[Malformed, ...] = ()


def cluster(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    codecs: Iterable[SchemeCodec],
    unhealthy: Mapping[str, str] | None = None,
) -> ClusterLedgers:
    """The ledger of every node.

    ``pods`` are all that share GPUs, with what their SharePods know of them
    (:func:`vgpu.schemes.kubeshare.sharepod.join`); ``unhealthy`` is the text of gpushare's
    ConfigMaps, by node. ``nvidia.com/gpu`` is HAMi's on a node that speaks its language, on others
    it is NVIDIA's own, for which nothing is waited here.
    """
    speakers = tuple(codecs)
    at_home: dict[str, list[_Read]] = {}
    homeless: list[Reading] = []
    for pod in pods:
        if not holds_devices(pod):
            continue
        reading = read_pod(pod, speakers)
        where = home(pod, reading)
        if where:
            at_home.setdefault(where, []).append((pod, reading))
        else:
            homeless.append(reading)
    cards = unhealthy or {}
    ledgers = {
        node.name: _ledger(node, at_home.pop(node.name, ()), speakers, cards.get(node.name, ""))
        for node in nodes
    }
    for name in sorted(at_home):
        ledgers[name] = _ledger(Node(name), at_home[name], speakers)
    return ClusterLedgers(
        ledgers,
        tuple(wanted for reading in homeless for wanted in reading.wanted),
        tuple(malformed for reading in homeless for malformed in reading.malformed),
    )


def home(pod: Pod, reading: Reading) -> str:
    """The node that a pod is bound to, else the one that it is promised to; "" if there is none."""
    return pod.node or next((claim.node for claim in reading.claims if claim.node), "")


def node_ledger(
    node: Node, pods: Iterable[Pod], codecs: Sequence[SchemeCodec], unhealthy: str = ""
) -> Ledger:
    """The ledger of one node; ``pods`` are those at home there that hold devices.

    The rest is as for :func:`cluster`, ``unhealthy`` the text of this node's ConfigMap.
    """
    return _ledger(node, [(pod, read_pod(pod, codecs)) for pod in pods], codecs, unhealthy)


def _ledger(
    node: Node, pods: Sequence[_Read], codecs: Iterable[SchemeCodec], unhealthy: str = ""
) -> Ledger:
    uuids = of_share_pods(pod for pod, _ in pods)
    statements = [
        said for pod, reading in pods for said in on_cards(pod, reading.statements, uuids)
    ]
    told, illegible = registered(node, codecs)
    malformed = [*(one for _, reading in pods for one in reading.malformed), *illegible]
    devices: list[Device] = []
    spoken: set[str] = set()
    for codec, its_cards in told:
        cards = its_cards
        statements += _silent_grants(codec, cards, pods)
        try:
            cards = codec.with_health(cards, unhealthy, node.name)
        except ClaimError as error:
            malformed.append(Malformed(None, "", codec.scheme, str(error)))
        if cards:
            spoken.update(codec.resources)
            devices += cards
    return merge(
        Evidence(
            node=node.name,
            devices=with_handles(_each_once(devices), uuids),
            devices_complete=not illegible and bool(devices),
            statements=tuple(statements),
            pods=tuple(pod for pod, _ in pods),
            pods_complete=True,
            wanted=tuple(
                wanted
                for _, reading in pods
                for wanted in reading.wanted
                if wanted.resource in spoken or not wanted.resource.startswith(OWN_RESOURCES)
            ),
            malformed=tuple(malformed),
            read=frozenset({Source.ANNOTATIONS}),
        )
    )


def _silent_grants(
    codec: SchemeCodec, cards: tuple[Device, ...], pods: Iterable[_Read]
) -> Iterator[Statement]:
    """What a plugin gives without a word: the only GPU of its node."""
    for pod, reading in pods:
        if len(cards) == 1 and not reading.claims and not reading.malformed:
            claim = codec.sole_card(pod, cards)
            if claim is not None:
                yield from claim_statements(pod, claim)


def _each_once(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Of two languages' GPUs with the same index, one may know the UUID: it is one GPU."""
    found = {device.name: device for device in devices}
    with_uuid = {device.index for device in found.values() if device.uuid}
    return tuple(d for d in found.values() if d.uuid or d.index not in with_uuid)
