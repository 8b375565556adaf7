"""The containers that have no device, or none yet, and the reasons."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from vgpu.inventory.model import NodeView, Pending, WaitingReason
from vgpu.ledger import DeviceEntry, Holding, Malformed, Wanted
from vgpu.ledger.cluster import ClusterLedgers
from vgpu.ledger.from_api import read_pod
from vgpu.ledger.liveness import pods_by_node_uid
from vgpu.model.allocation import Request
from vgpu.model.names import Phase, PodRef, Scheme
from vgpu.model.objects import Pod
from vgpu.schemes.codec import SchemeCodec


def pending_containers(
    ledgers: ClusterLedgers,
    views: Iterable[NodeView],
    pods: Iterable[Pod],
    codecs: Sequence[SchemeCodec],
) -> tuple[Pending, ...]:
    """The containers that have no device, or none yet, ordered by namespace and name of the pod."""
    return tuple(sorted(_pending(ledgers, views, pods, codecs), key=_order))


def _pending(
    ledgers: ClusterLedgers,
    views: Iterable[NodeView],
    pods: Iterable[Pod],
    codecs: Sequence[SchemeCodec],
) -> Iterator[Pending]:
    by_uid = pods_by_node_uid(pods)
    yield from _without_holding("", ledgers.unbound, ledgers.malformed, by_uid)
    for view in views:
        ledger = view.ledger
        yield from _without_holding(view.node.name, ledger.waiting, ledger.malformed, by_uid)
        for entry in (*ledger.devices, None):
            holdings = ledger.unplaced if entry is None else entry.holdings
            for holding in holdings:
                pod = by_uid.get(holding.pod.uid)
                if pod is not None and not pod.has_run(holding.container):
                    yield from _not_started(view, entry, holding, pod, codecs)


def _without_holding(
    node: str, wanted: Iterable[Wanted], malformed: Iterable[Malformed], pods: Mapping[str, Pod]
) -> Iterator[Pending]:
    """The containers that hold nothing."""
    unreadable: dict[tuple[str, Scheme], list[str]] = {}
    for entry in malformed:
        if entry.pod is not None:
            unreadable.setdefault((entry.pod.uid, entry.scheme), []).append(entry.detail)
    wanting: set[tuple[str, Scheme]] = set()
    for want in wanted:
        pod = pods[want.pod.uid]
        key = (want.pod.uid, want.scheme)
        wanting.add(key)
        reason, detail = _reason(pod, "; ".join(unreadable.get(key, ())), running=want.running)
        since = pod.scheduled_at if pod.scheduled_at is not None else pod.created_at
        yield Pending(
            want.pod,
            want.request.container,
            want.scheme,
            node,
            reason,
            detail,
            since=since,
            request=want.request,
        )
    for (uid, scheme), details in unreadable.items():
        pod = pods[uid]
        if (uid, scheme) not in wanting and not pod.has_run():
            ref = PodRef(uid, pod.ref.namespace, pod.ref.name)
            detail = "; ".join(details)
            since = pod.created_at
            yield Pending(ref, "", scheme, node, WaitingReason.UNREADABLE, detail, since=since)


def _reason(pod: Pod, unreadable: str, *, running: bool) -> tuple[WaitingReason, str]:
    if unreadable:
        return WaitingReason.UNREADABLE, unreadable
    if running:
        return WaitingReason.RUNNING_WITHOUT, ""
    if pod.node:
        return WaitingReason.NO_ANNOTATION, ""
    if pod.gated:
        return WaitingReason.GATED, ", ".join(pod.gates)
    if pod.unschedulable:
        return WaitingReason.UNSCHEDULABLE, pod.unschedulable
    return WaitingReason.NOT_SCHEDULED, ""


def _not_started(
    view: NodeView,
    entry: DeviceEntry | None,
    holding: Holding,
    pod: Pod,
    codecs: Sequence[SchemeCodec],
) -> Iterator[Pending]:
    """Why a holding's container has not started, if its device or allocation is the reason."""
    device = holding.share.device
    detail = ""
    if entry is None and device and _knows_its_gpus(view):
        reason = WaitingReason.DEVICE_MISSING
    elif entry is not None and not entry.device.healthy:
        reason = WaitingReason.DEVICE_UNHEALTHY
    elif holding.phase is not Phase.ASSUMED:
        return
    elif any(claim.failed for claim in read_pod(pod, codecs).claims):
        reason = WaitingReason.FAILED
    elif not pod.node:
        reason, detail = WaitingReason.NOT_BOUND, pod.unschedulable
    else:
        reason = WaitingReason.NOT_ASSIGNED
    share = holding.share
    yield Pending(
        holding.pod,
        holding.container,
        holding.scheme,
        view.node.name,
        reason,
        detail,
        device,
        holding.since if holding.since is not None else pod.scheduled_at,
        Request(holding.container, 1, share.memory_bytes, cores_milli=share.cores_milli or 0),
    )


def _knows_its_gpus(view: NodeView) -> bool:
    """Whether a GPU that the node does not list is missing; not if its list cannot be read."""
    return view.known and all(entry.pod is not None for entry in view.ledger.malformed)


def _order(pending: Pending) -> tuple[str, str, str, str]:
    return pending.pod.namespace, pending.pod.name, pending.pod.uid, pending.container
