"""How many pods fit that kube-scheduler alone places, by units of extended resources. Pure.

Of GPUs of NVIDIA's own plugin the API server has numbers of units alone: the kubelet chooses the
GPU. So for a pod p that requests units of r, and a node n that advertises each r:

    fits(p, n) = min over what p requests: ⌊free(n, r) / requests(p, r)⌋
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from vgpu.inventory.nvidia import plugin_refusal
from vgpu.kube.closed_nodes import ClosedReason
from vgpu.kube.quantities import is_extended
from vgpu.model.objects import Pod
from vgpu.placement.node_offers import NodeOffers
from vgpu.quota.check import QuotaRefusal, check
from vgpu.quota.limits import NamespaceQuota
from vgpu.quota.resources import plus
from vgpu.quota.usage import PodUsage
from vgpucli.fit.model import FitAnswer, FitReason, FreeUnits, MovedPod, NodeExclusion, NodeFit

MOST_ON_NODE: Final = 10_000
"""Maximum number of pods that are counted on a node."""

_NEVER: Final = "no node has all resources that the pod requests: {}"

_OF_UNITS: Final = frozenset({ClosedReason.NOTHING_ALLOCATABLE, ClosedReason.INSUFFICIENT_RESOURCE})
"""Reasons that are about units."""


def units_answer(
    offers: NodeOffers,
    wanted: int | None,
    system: str,
    quota_room: tuple[int | None, str] = (None, ""),
    refusing: Collection[str] = (),
) -> FitAnswer:
    """How many of the wanted pods fit: as many as do, or ``wanted``.

    ``quota_room`` is how many the quota of the namespace admits, None for any number, and its
    refusal of one more. The device plugins of the ``refusing`` nodes would refuse the pods.
    """
    asking = offers.wanted
    units = {name: amount for name, amount in asking.requests.items() if is_extended(name)}
    of_system = [name for name in offers.names if units.keys() <= offers.node(name).node.advertised]
    open_names = frozenset(offers.open_to(asking)).difference(refusing)
    room = {
        name: min(MOST_ON_NODE, offers.room(name, asking) or 0)
        for name in of_system
        if name in open_names
    }
    most, over_quota = quota_room
    total = sum(room.values())
    bounds = [each for each in (wanted, most) if each is not None]
    left = fitting = min((total, *bounds))
    nodes = []
    for name in sorted(room, key=lambda each: (-room[each], each)):
        pods = min(room[name], left)
        left -= pods
        if pods:
            nodes.append(NodeFit(name, pods, units=_free_units(offers, name, units)))
    is_all = wanted is None or fitting < wanted
    limited = {
        name: NodeExclusion.of(why)
        for name, pods in room.items()
        if is_all
        and not over_quota
        and (why := offers.shortage(name, asking, pods)) is not None
        and why.reason not in _OF_UNITS
    }
    rejection = over_quota if is_all and most is not None and fitting == most else ""
    if not of_system:
        rejection = _NEVER.format(", ".join(sorted(units)))
    return FitAnswer(
        system,
        fitting,
        is_all and all(pods < MOST_ON_NODE for pods in room.values()),
        tuple(sorted(nodes, key=lambda node: node.node)),
        rejection,
        limited=limited,
        of_system=frozenset(of_system),
    )


def _free_units(offers: NodeOffers, name: str, units: Mapping[str, int]) -> tuple[FreeUnits, ...]:
    node = offers.node(name)
    return tuple(
        FreeUnits(resource, offers.free(name, resource), node.allocatable.get(resource, 0))
        for resource in sorted(units)
    )


def quota_room(
    quota: NamespaceQuota | None, pods: Iterable[Pod], units: Mapping[str, int], namespace: str
) -> tuple[int | None, str]:
    """How many pods with these units the quota admits, None for any number, and why no more.

    The bound pods of the namespace count, as in the scheduler's quotas.
    """
    if quota is None:
        return None, ""
    bound = (
        each.requested_units()
        for each in pods
        if each.ref.namespace == namespace and each.node and not each.terminal
    )
    used = {"": plus(*bound)}
    one = PodUsage({"": units})
    refused: QuotaRefusal | None = check(quota, used, one)
    if refused is not None:
        return 0, refused.text
    rooms = [
        (limit.amount - limit.of(used)) // requested
        for limit in quota.limits
        if (requested := limit.of(one.by_model))
    ]
    if not rooms:
        return None, ""
    most = min(rooms)
    beside = plus(used[""], {name: amount * most for name, amount in units.items()})
    refused = check(quota, {"": beside}, one)
    return most, "" if refused is None else refused.text


def move_units(
    offers: NodeOffers, pods: Iterable[Pod], drained: Collection[str], names: Sequence[str]
) -> tuple[MovedPod, ...]:
    """Place the pods of drained nodes on the others, the most important first.

    They count there afterwards. ``pods`` are those that kube-scheduler alone places; pods of
    DaemonSets end with their node.
    """
    leaving = [
        pod
        for pod in pods
        if pod.node in drained
        and not pod.terminal
        and (pod.owner is None or pod.owner.kind != "DaemonSet")
    ]
    leaving.sort(key=lambda each: (-each.priority, each.created_at or 0.0, each.ref))
    return tuple(_moved(offers, pod, names) for pod in leaving)


def _moved(offers: NodeOffers, pod: Pod, names: Sequence[str]) -> MovedPod:
    asking = offers.of_pod(pod.ref.uid)
    units = {name for name in asking.requests if is_extended(name)}
    open_names = frozenset(offers.open_to(asking))
    for name in names:
        node = offers.node(name).node
        if name in open_names and units <= node.advertised and not plugin_refusal(pod, node):
            offers.count(name, asking)
            return MovedPod(pod.ref, pod.node, name)
    refusal = FitReason.UNITS_MISSING.explanation
    return MovedPod(pod.ref, pod.node, refusal=refusal)
