"""What each pod of a cluster requests, holds and counts for quotas, by the ledger; pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from vgpu.inventory.pods_without_gpu import pods_without_gpu
from vgpu.ledger import Holding, Ledger
from vgpu.ledger.liveness import pods_by_node_uid
from vgpu.ledger.totals import held
from vgpu.model.allocation import Device, Request, Share
from vgpu.model.names import Phase
from vgpu.model.objects import Node, Pod, holds_devices
from vgpu.quota.resources import CORES, GPUS, MEMORY, Amounts, plus
from vgpu.quota.usage import (
    NOTHING,
    NamespaceUsage,
    PodUsage,
    node_model,
    unknown_devices,
    usage_of_requests,
    usage_of_shares,
)
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.kai.keys import KAI
from vgpu.schemes.other_schedulers import fraction_requests
from vgpu.schemes.pod_requests import unknown_shares
from vgpu.schemes.registry import registry

_Unknown = tuple[Sequence[Share], Mapping[str, Device]]
"""Shares of GPUs that are not known, and what is known of these GPUs."""

_KNOWN: Final[_Unknown] = ((), {})


class PodAccount(msgspec.Struct, frozen=True):
    """One pod that holds or requests shares of GPUs.

    Attributes:
        pod: the pod.
        requested: what it requests: ``gpus``, ``memory`` and ``cores`` of :mod:`vgpu.quota`. Memory
            that it leaves to the size of the GPU counts as what it holds.
        usage: what it counts for the quotas of its namespace; nothing if it holds nothing.
        phase: assigned as soon as one container is; None if it holds nothing.
    """

    pod: Pod
    requested: Amounts
    usage: PodUsage = NOTHING
    phase: Phase | None = None

    @property
    def held(self) -> Amounts:
        """What it holds: ``gpus``, ``memory`` and ``cores``."""
        total = self.usage.total
        return {name: total.get(name, 0) for name in (GPUS, MEMORY, CORES)}


def pod_accounts(
    nodes: Iterable[Node],
    ledgers: Mapping[str, Ledger],
    pods: Sequence[Pod],
    codecs: Sequence[SchemeCodec],
) -> list[PodAccount]:
    """The accounts of all pods that may hold devices or request some.

    ``pods`` are joined with their SharePods, and ``ledgers`` are by node, of the same pods.
    """
    by_name = {node.name: node for node in nodes}
    holdings: dict[str, dict[str, list[tuple[Device | None, list[Holding]]]]] = {}
    for name, ledger in ledgers.items():
        for entry in ledger.devices:
            for uid, of_pod in _by_pod(entry.holdings).items():
                holdings.setdefault(uid, {}).setdefault(name, []).append((entry.device, of_pod))
        for uid, of_pod in _by_pod(ledger.unplaced).items():
            holdings.setdefault(uid, {}).setdefault(name, []).append((None, of_pod))
    unknown = _on_unknown_gpus(by_name, ledgers, pods, codecs)
    accounts = []
    for uid, pod in pods_by_node_uid(pods).items():
        if not holds_devices(pod) or registry().keeps_for_others(pod):
            continue
        own_holdings = holdings.get(uid, {})
        unplaced = unknown.get(pod.ref.uid, _KNOWN)
        if unplaced[0] and pod.node in own_holdings:
            # What is on a GPU that the node does not have is on one of the unknown GPUs.
            placed = [each for each in own_holdings[pod.node] if each[0] is not None]
            own_holdings = {**own_holdings, pod.node: placed}
        account = _account(pod, own_holdings, by_name, codecs, unplaced)
        if account.phase is not None or any(account.requested.values()):
            accounts.append(account)
    return accounts


def requested_amounts(pod: Pod, codecs: Sequence[SchemeCodec]) -> Amounts:
    """What the pod requests, without memory that it leaves to the size of the GPU."""
    return _amounts((fraction_requests(pod), *(_requests(pod, codec) for codec in codecs)))


def _amounts(requests: Iterable[Sequence[Request]]) -> Amounts:
    """What these requests come to; each part is those of one system."""
    return plus(*(usage_of_requests({}, each, "").total for each in requests))


def usage_by_namespace(accounts: Iterable[PodAccount]) -> dict[str, NamespaceUsage]:
    """What the pods of each namespace count for its quota."""
    usage: dict[str, NamespaceUsage] = {}
    for account in accounts:
        ref = account.pod.ref
        if account.phase is not None:
            usage.setdefault(ref.namespace, NamespaceUsage()).set(ref.uid, account.usage)
    return usage


def _on_unknown_gpus(
    nodes: Mapping[str, Node],
    ledgers: Mapping[str, Ledger],
    pods: Iterable[Pod],
    codecs: Sequence[SchemeCodec],
) -> dict[str, _Unknown]:
    """What bound pods request of GPUs that are not known, by UID."""
    bound: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.node in ledgers and pod.node in nodes:
            bound.setdefault(pod.node, []).append(pod)
    unknown: dict[str, _Unknown] = {}
    for name, of_node in bound.items():
        for codec, own, lacking in pods_without_gpu(nodes[name], ledgers[name], of_node, codecs):
            devices = [entry.device for entry in own]
            for each in lacking:
                shares = unknown_shares(each.requests, devices, codec.unit_bytes)
                unknown[each.pod.uid] = shares, unknown_devices(shares, devices)
    return unknown


def _by_pod(holdings: Iterable[Holding]) -> dict[str, list[Holding]]:
    by_pod: dict[str, list[Holding]] = {}
    for holding in holdings:
        by_pod.setdefault(holding.pod.uid, []).append(holding)
    return by_pod


def _account(
    pod: Pod,
    holdings: Mapping[str, list[tuple[Device | None, list[Holding]]]],
    nodes: Mapping[str, Node],
    codecs: Sequence[SchemeCodec],
    unplaced: _Unknown = _KNOWN,
) -> PodAccount:
    """The account of a pod; ``unplaced`` is what it requests of GPUs that are not known."""
    unknown, unknown_gpus = unplaced
    requests = [each for codec in codecs if (each := _requests(pod, codec))]
    requested = _amounts((fraction_requests(pod), *requests))
    if not holdings and not unknown:
        return PodAccount(pod, requested)
    units = pod.requested_units()
    parts = [
        usage_of_shares(
            units if number == 0 else {},
            [share for device, of_pod in on_node for share in _at_peak(device, of_pod)],
            {device.name: device for device, _ in on_node if device is not None},
            node_model(nodes.get(name)),
        )
        for number, (name, on_node) in enumerate(sorted(holdings.items()))
    ]
    if unknown:
        model = node_model(nodes.get(pod.node))
        parts.append(usage_of_shares({} if parts else units, unknown, unknown_gpus, model))
    usage = parts[0] if len(parts) == 1 else _sum(parts)
    phases = {
        holding.phase
        for on_node in holdings.values()
        for _, of_pod in on_node
        for holding in of_pod
    }
    phase = Phase.ASSIGNED if Phase.ASSIGNED in phases else Phase.ASSUMED
    of_kai = pod.group_gpus or any(
        holding.scheme is KAI
        for on_node in holdings.values()
        for _, of_pod in on_node
        for holding in of_pod
    )
    if of_kai or any(request.memory_bytes is None for each in requests for request in each):
        requested = {**requested, MEMORY: max(requested.get(MEMORY, 0), usage.total.get(MEMORY, 0))}
    return PodAccount(pod, requested, usage, phase)


def _sum(parts: Sequence[PodUsage]) -> PodUsage:
    models = dict.fromkeys(model for part in parts for model in part.by_model)
    return PodUsage(
        {model: plus(*(part.by_model.get(model, {}) for part in parts)) for model in models}
    )


def _at_peak(device: Device | None, holdings: Sequence[Holding]) -> Iterable[Share]:
    """Shares that come to what the pod holds of a device at its peak."""
    name = device.name if device is not None else ""
    total = held(holdings)
    is_whole = any(holding.share.memory_bytes is None for holding in holdings)
    yield Share(name, None if is_whole and device else total.memory_bytes, total.cores_milli)
    for _ in range(total.slots - 1):
        yield Share(name, 0, 0)


def _requests(pod: Pod, codec: SchemeCodec) -> tuple[Request, ...]:
    """What the pod requests in the system; nothing if that cannot be read."""
    try:
        return codec.requests(pod)
    except ClaimError:
        return ()
