"""A ledger for each node of a cluster, from the API server's nodes and pods alone. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from vgpu.kube import BOUND_DEVICE, Node, Pod, holds_devices
from vgpu.ledger.entries import Ledger
from vgpu.ledger.from_api import Reading, claim_statements, read_pod
from vgpu.ledger.from_kubelet import OWN_RESOURCES
from vgpu.ledger.merge import merge
from vgpu.ledger.statements import Evidence, Malformed, Statement, Wanted
from vgpu.model import Device, Source
from vgpu.schemes.gpushare import Gpushare
from vgpu.schemes.gpushare_node import unhealthy_cards, with_health
from vgpu.schemes.kubeshare_node import with_handles
from vgpu.schemes.kubeshare_sharepod import GPUID
from vgpu.schemes.language import ClaimError, Language

_Read = tuple[Pod, Reading]


class Cluster(msgspec.Struct, frozen=True):
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
    languages: Iterable[Language],
    unhealthy: Mapping[str, str] | None = None,
) -> Cluster:
    """The ledger of every node.

    ``pods`` are all that share GPUs, with what their SharePods know of them
    (:func:`vgpu.schemes.kubeshare_sharepod.join`); ``unhealthy`` is the text of gpushare's
    ConfigMaps, by node. ``nvidia.com/gpu`` is HAMi's on a node that speaks its language, on others
    it is NVIDIA's own, for which nothing is waited here.
    """
    speakers = tuple(languages)
    at_home: dict[str, list[_Read]] = {}
    homeless: list[Reading] = []
    for pod in pods:
        if not holds_devices(pod):
            continue
        reading = read_pod(pod, speakers)
        home = pod.node or next((claim.node for claim in reading.claims if claim.node), "")
        if home:
            at_home.setdefault(home, []).append((pod, reading))
        else:
            homeless.append(reading)
    ledgers = {
        node.name: _ledger(node, at_home.pop(node.name, ()), speakers, unhealthy or {})
        for node in nodes
    }
    for name in sorted(at_home):
        ledgers[name] = _ledger(Node(name), at_home[name], speakers, {})
    return Cluster(
        ledgers,
        tuple(wanted for reading in homeless for wanted in reading.wanted),
        tuple(malformed for reading in homeless for malformed in reading.malformed),
    )


def _ledger(
    node: Node, pods: Sequence[_Read], languages: Iterable[Language], unhealthy: Mapping[str, str]
) -> Ledger:
    statements = [said for _, reading in pods for said in reading.statements]
    malformed = [one for _, reading in pods for one in reading.malformed]
    devices: list[Device] = []
    spoken: set[str] = set()
    legible = True
    for language in languages:
        try:
            cards = language.devices(node)
        except ClaimError as error:
            malformed.append(Malformed(None, "", language.scheme, str(error)))
            legible = False
            continue
        if isinstance(language, Gpushare):
            statements += _silent_grants(language, cards, pods)
            try:
                cards = with_health(cards, unhealthy_cards(unhealthy.get(node.name, ""), node.name))
            except ClaimError as error:
                malformed.append(Malformed(None, "", language.scheme, str(error)))
        if cards:
            spoken.update(language.resources)
            devices += cards
    return merge(
        Evidence(
            node=node.name,
            devices=with_handles(_each_once(devices), _virtual_gpus(pods)),
            devices_complete=legible and bool(devices),
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


def _virtual_gpus(pods: Iterable[_Read]) -> dict[str, str]:
    """KubeShare's GPUID -> UUID, as far as a SharePod is bound there."""
    told = ((pod.annotations.get(GPUID), pod.annotations.get(BOUND_DEVICE)) for pod, _ in pods)
    return {gpuid: uuid for gpuid, uuid in told if gpuid and uuid}


def _silent_grants(
    language: Gpushare, cards: tuple[Device, ...], pods: Iterable[_Read]
) -> Iterator[Statement]:
    """What gpushare's plugin gives without a word: the only card of its node."""
    for pod, reading in pods:
        if len(cards) == 1 and not reading.claims and not reading.malformed:
            claim = language.sole_card(pod, cards)
            if claim is not None:
                yield from claim_statements(pod, claim)


def _each_once(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Of two languages' cards with the same index, one may know the UUID: it is one card."""
    found = {device.name: device for device in devices}
    with_uuid = {device.index for device in found.values() if device.uuid}
    return tuple(d for d in found.values() if d.uuid or d.index not in with_uuid)
