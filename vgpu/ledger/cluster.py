"""A ledger for each node of a cluster, from the API server's nodes and pods alone. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
from msgspec import structs

from vgpu.kube.kai_kinds import BindRequest
from vgpu.ledger.entries import Ledger
from vgpu.ledger.from_api import Reading, claim_statements, node_ref, read_pod, registered
from vgpu.ledger.from_kai import (
    awaited_groups,
    configured,
    group_evidence,
    promised,
    promised_groups,
    promises,
    shared_device,
)
from vgpu.ledger.from_resource_claims import (
    NO_RESOURCE_CLAIMS,
    ClusterResourceClaims,
    NodeResourceClaims,
    node_resource_claims,
)
from vgpu.ledger.merge import merge
from vgpu.ledger.statements import Evidence, Malformed, Statement, Wanted
from vgpu.ledger.virtual_gpus import of_share_pods, on_gpus
from vgpu.model.allocation import Device
from vgpu.model.names import Source
from vgpu.model.objects import Node, Pod, holds_devices
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.counted_claims import OTHER_AMOUNT
from vgpu.schemes.kai.config_map import ConfigMaps
from vgpu.schemes.kai.groups import Place
from vgpu.schemes.kubeshare.node import with_handles
from vgpu.schemes.nvidia.resources import PREFIX
from vgpu.schemes.registry import registry

_Read = tuple[Pod, Reading]

NO_PROMISES: Final[Mapping[str, BindRequest]] = {}
"""The BindRequests of a cluster without KAI Scheduler."""

NO_CONFIG_MAPS: Final[ConfigMaps] = {}
"""Its ConfigMaps."""


class ClusterLedgers(msgspec.Struct, frozen=True):
    """The ledgers of a cluster's nodes.

    Attributes:
        ledgers: by node, in the order of the nodes; nodes that only pods name come last.
        unbound: the requests of pods that are bound or reserved to no node.
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
    resource_claims: ClusterResourceClaims | None = None,
    *,
    lists_all: bool = False,
    bind_requests: Iterable[BindRequest] = (),
    config_maps: ConfigMaps = NO_CONFIG_MAPS,
    doubted_groups: AbstractSet[Place] = frozenset(),
) -> ClusterLedgers:
    """The ledger of every node.

    ``pods`` are all that share GPUs, with what their SharePods know of them
    (:func:`vgpu.schemes.kubeshare.sharepod.join`); ``unhealthy`` is the text of gpushare's
    ConfigMaps, by node. ``nvidia.com/gpu`` is HAMi's on a node with HAMi's annotations. On other
    nodes it is NVIDIA's own, and no container waits for it here. ``lists_all`` is whether these are
    certainly the pods of all namespaces. ``bind_requests`` and ``config_maps`` are those
    of KAI Scheduler, and ``doubted_groups`` are
    :func:`~vgpu.schemes.kai.groups.doubted_groups` of all pods, also of those that share nothing.
    """
    all_codecs = tuple(codecs)
    by_node: dict[str, list[_Read]] = {}
    unbound_readings: list[Reading] = []
    all_pods = tuple(pods)
    all_nodes = tuple(nodes)
    advertised = {node.name: node.advertised for node in all_nodes}
    resource_claims_of_nodes = node_resource_claims(
        resource_claims or ClusterResourceClaims(), all_pods
    )
    promised_to = promises(all_pods, bind_requests)
    labelled = awaited_groups(all_pods)
    for pod in all_pods:
        if not holds_devices(pod) and not registry().is_reservation(pod):
            continue
        reading = read_pod(pod, all_codecs, advertised.get(pod.node))
        node_name = home(pod, reading)
        if bind_request := promised_to.get(pod.ref.uid):
            node_name = bind_request.node
        if node_name:
            by_node.setdefault(node_name, []).append((pod, reading))
        else:
            unbound_readings.append(reading)
    unhealthy_gpus = unhealthy or {}
    lists_reservations = lists_all or any(map(registry().is_reservation, all_pods))
    ledgers = {
        node.name: _ledger(
            node,
            by_node.pop(node.name, ()),
            all_codecs,
            unhealthy_gpus.get(node.name, ""),
            resource_claims_of_nodes.pop(node.name, NO_RESOURCE_CLAIMS),
            lists_reservations=lists_reservations,
            lists_tenants=lists_all,
            promised_to=promised_to,
            labelled=labelled,
            config_maps=config_maps,
            doubted_groups=doubted_groups,
        )
        for node in all_nodes
    }
    for name in sorted(by_node.keys() | resource_claims_of_nodes.keys()):
        own_resource_claims = resource_claims_of_nodes.get(name, NO_RESOURCE_CLAIMS)
        ledgers[name] = _ledger(
            Node(name),
            by_node.get(name, ()),
            all_codecs,
            "",
            own_resource_claims,
            lists_reservations=lists_reservations,
            lists_tenants=lists_all,
            promised_to=promised_to,
            labelled=labelled,
            config_maps=config_maps,
            doubted_groups=doubted_groups,
        )
    return ClusterLedgers(
        ledgers,
        tuple(wanted for reading in unbound_readings for wanted in reading.wanted),
        tuple(malformed for reading in unbound_readings for malformed in reading.malformed),
    )


def home(pod: Pod, reading: Reading) -> str:
    """The node that a pod is bound to, else the node that its claim names; "" if there is none."""
    return pod.node or next((claim.node for claim in reading.claims if claim.node), "")


def node_ledger(
    node: Node,
    pods: Iterable[Pod],
    codecs: Sequence[SchemeCodec],
    unhealthy: str = "",
    resource_claims: NodeResourceClaims = NO_RESOURCE_CLAIMS,
    *,
    lists_reservations: bool = False,
    lists_tenants: bool = False,
    doubted_groups: AbstractSet[Place] = frozenset(),
    promised_to: Mapping[str, BindRequest] = NO_PROMISES,
    config_maps: ConfigMaps = NO_CONFIG_MAPS,
    labelled: AbstractSet[str] = frozenset(),
) -> Ledger:
    """The ledger of one node; ``pods`` are this node's pods that hold devices.

    ``codecs`` are as for :func:`cluster`, ``unhealthy`` is the text of this node's ConfigMap.
    ``lists_reservations`` is whether no reservation pod of the node is missing among the pods,
    ``lists_tenants`` whether no pod of a GPU group is. ``promised_to`` are KAI's BindRequests
    (:func:`~vgpu.ledger.from_kai.promises`), and ``labelled`` the groups of pods without a node
    (:func:`~vgpu.ledger.from_kai.awaited_groups`).
    """
    readings = [(pod, read_pod(pod, codecs, node.advertised or None)) for pod in pods]
    return _ledger(
        node,
        readings,
        codecs,
        unhealthy,
        resource_claims,
        lists_reservations=lists_reservations,
        lists_tenants=lists_tenants,
        doubted_groups=doubted_groups,
        promised_to=promised_to,
        config_maps=config_maps,
        labelled=labelled,
    )


def _ledger(
    node: Node,
    pods: Sequence[_Read],
    codecs: Sequence[SchemeCodec],
    unhealthy: str = "",
    resource_claims: NodeResourceClaims = NO_RESOURCE_CLAIMS,
    *,
    lists_reservations: bool = False,
    lists_tenants: bool = False,
    promised_to: Mapping[str, BindRequest] = NO_PROMISES,
    labelled: AbstractSet[str] = frozenset(),
    config_maps: ConfigMaps = NO_CONFIG_MAPS,
    doubted_groups: AbstractSet[Place] = frozenset(),
) -> Ledger:
    registrations, unreadable = registered(node, codecs)
    pods = _sized(node, pods, registrations, codecs)
    uuids = of_share_pods(pod for pod, _ in pods)
    statements = [
        statement for pod, reading in pods for statement in on_gpus(pod, reading.statements, uuids)
    ]
    malformed = [*(fault for _, reading in pods for fault in reading.malformed), *unreadable]
    statements += resource_claims.statements
    devices: list[Device] = [*resource_claims.devices]
    resources: set[str] = set()
    for codec, registered_gpus in registrations:
        gpus = registered_gpus
        statements += _silent_grants(codec, gpus, pods)
        try:
            gpus = codec.with_health(gpus, unhealthy, node.name)
        except ClaimError as claim_error:
            malformed.append(Malformed(None, "", codec.scheme, str(claim_error)))
        if gpus:
            resources.update(codec.resources)
            devices += gpus
    is_complete = not unreadable and bool(devices)
    here = [pod for pod, _ in pods if pod.ref.uid in promised_to]
    groups = group_evidence(
        (pod for pod, _ in pods),
        node,
        lists_all=lists_reservations,
        lists_tenants=lists_tenants,
        promised_to={
            *labelled,
            *(group for pod in here for group in promised_groups(pod, promised_to[pod.ref.uid])),
        },
        doubted=doubted_groups,
    )
    statements += (
        promised(pod, promised_to[pod.ref.uid], (each for each, _ in pods), node) for pod in here
    )
    by_config = tuple(configured((pod for pod, _ in pods), config_maps, node))
    if groups.is_used:
        statements += (*groups.statements, *by_config)
        known = {name for device in devices for name in device.names}
        named = {share.device for each in by_config for share in each.shares}
        shared = {device.uuid: device for device in groups.devices}
        shared |= {uuid: shared_device(uuid, node) for uuid in sorted(named - shared.keys())}
        devices += (device for uuid, device in shared.items() if uuid not in known)
    return merge(
        Evidence(
            node=node.name,
            devices=with_handles(_each_once(devices), uuids),
            devices_complete=is_complete,
            statements=tuple(statements),
            pods=(*(pod for pod, _ in pods), *resource_claims.pods),
            pods_complete=True,
            wanted=tuple(
                wanted
                for _, reading in pods
                for wanted in reading.wanted
                if wanted.resource in resources or not wanted.resource.startswith(PREFIX)
            ),
            malformed=tuple(malformed),
            read=frozenset(
                {
                    Source.ANNOTATIONS,
                    *(one.source for one in resource_claims.statements),
                    *((Source.RESERVATION_POD,) if groups.is_used else ()),
                    *((Source.BIND_REQUEST,) if here else ()),
                    *((Source.CONFIG_MAP,) if by_config else ()),
                }
            ),
            group_problems=groups.problems,
        )
    )


_NOT_HERE: Final = "the annotations reserve GPUs of a system that the node does not have"


def _sized(
    node: Node,
    pods: Sequence[_Read],
    registrations: Sequence[tuple[SchemeCodec, tuple[Device, ...]]],
    all_codecs: Sequence[SchemeCodec],
) -> Sequence[_Read]:
    """The pods; those whose claims depend on the GPUs of the node are read again with these.

    The ``registrations`` are those that can be read; ``all_codecs`` are also the others.

    They are reservations of pods that are not bound, and claims of another size than requested.
    """
    doubtful = [_depends_on_node(pod, reading) for pod, reading in pods]
    if not any(doubtful):
        return pods
    has_gpus = any(gpus and codec.advertised for codec, gpus in registrations)
    own = [codec for codec, gpus in registrations if gpus or not codec.advertised]
    devices = {
        codec.name: {name: gpu for gpu in gpus for name in gpu.names}
        for codec, gpus in registrations
    }
    advertised = node.advertised or None
    read: list[_Read] = []
    for (pod, reading), is_doubtful in zip(pods, doubtful, strict=True):
        again = reading
        if is_doubtful:
            codecs = all_codecs if pod.node or not has_gpus else own
            again = read_pod(pod, codecs, advertised, devices)
            if not pod.node:
                again = _reserved_here(pod, reading, again)
        read.append((pod, again))
    return read


def _depends_on_node(pod: Pod, reading: Reading) -> bool:
    if not pod.node:
        return bool(reading.claims)
    return any(each.problem in OTHER_AMOUNT for each in reading.malformed)


def _reserved_here(pod: Pod, anywhere: Reading, here: Reading) -> Reading:
    """What counts of a reservation on the node that it names, and a remark if that is less."""
    malformed = here.malformed
    if len(here.claims) < len(anywhere.claims):
        scheme = anywhere.claims[-1].scheme
        malformed = (*malformed, Malformed(node_ref(pod), "", scheme, _NOT_HERE))
    return structs.replace(here, wanted=anywhere.wanted, malformed=malformed)


def _silent_grants(
    codec: SchemeCodec, gpus: tuple[Device, ...], pods: Iterable[_Read]
) -> Iterator[Statement]:
    """The only GPU of a node, which a plugin allocates without an annotation."""
    for pod, reading in pods:
        if len(gpus) == 1 and not reading.claims and not reading.malformed:
            claim = codec.sole_gpu(pod, gpus)
            if claim is not None:
                yield from claim_statements(pod, claim)


def _each_once(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Each GPU once: two schemes' GPUs with the same index are one GPU, named by its UUID.

    That is a guess about their number, never about which is which: gpu-manager's number of a GPU is
    not the others', so that only the GPUs of a node of gpu-manager alone have its number.
    """
    by_name: dict[str, Device] = {}
    for device in devices:
        other = by_name.get(device.name, device)
        same = other.minor == device.minor
        by_name[device.name] = device if same else msgspec.structs.replace(device, minor=None)
    with_uuid = {device.index for device in by_name.values() if device.uuid}
    return tuple(d for d in by_name.values() if d.uuid or d.index not in with_uuid)
