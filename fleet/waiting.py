"""The pods that share GPUs by their state, grouped by owner, request and place. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Final

import msgspec

from fleet.snapshot import FleetSnapshot
from vgpu.inventory import Pending, WaitingReason
from vgpu.kube.pod_state import STARTING, pod_state
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.model.reasons import Explained
from vgpu.schemes.registry import registry
from vgpucli.group_usage import owner_of


class PodTab(Explained):
    """The tabs of the pods."""

    WAITING = "waiting", "no node yet"
    STARTING = "starting", "on a node, and no container has run yet"
    RUNNING = "running", "its containers run"
    ABNORMAL = "abnormal", "failed, without its GPU, or its containers end again and again"


ABNORMAL: Final = frozenset(
    {
        WaitingReason.FAILED,
        WaitingReason.DEVICE_MISSING,
        WaitingReason.DEVICE_UNHEALTHY,
        WaitingReason.RUNNING_WITHOUT,
        WaitingReason.UNREADABLE,
    }
)
"""Why a container has no device, where waiting does not help."""


class SimilarPods(msgspec.Struct, frozen=True, rename="camel"):
    """Pods of one owner that request the same and are in the same state.

    Attributes:
        tab: the state.
        owner: ``<namespace>/<kind>/<name>`` of the controller, or of the pod itself.
        namespace, name: the pod that has been in the state for longest.
        pods: their number.
        request: what each requests, for people.
        team: "" if it has none.
        nodes: where they are, as far as known.
        reason, detail: why it has no device, by ``vgpu inspect``; "" if it has one.
        since: of the oldest; null if unknown.
        conclusion: the closing sentence of ``vgpu explain``; null where it is not explained yet.
    """

    tab: str
    owner: str
    namespace: str
    name: str
    pods: int
    request: str
    team: str
    nodes: tuple[str, ...]
    reason: str
    detail: str
    since: datetime | None
    conclusion: str | None = None


def similar_pods(snapshot: FleetSnapshot) -> tuple[SimilarPods, ...]:
    """All groups, by tab, the oldest first."""
    pending: dict[str, Pending] = {}
    for each in snapshot.inventory.pending:
        pending.setdefault(each.pod.uid, each)
    groups: dict[tuple[str, ...], list[tuple[Pod, Pending | None]]] = {}
    for uid, pod in snapshot.inventory.pods.items():
        if pod.phase == "Succeeded" or registry().keeps_for_others(pod):
            continue
        why = pending.get(uid)
        tab = tab_of(pod, why)
        reason = "" if why is None else why.reason.value
        key = tab.value, owner_of(pod), request_text(pod), reason
        groups.setdefault(key, []).append((pod, why))
    made = (_group(snapshot, key, members) for key, members in groups.items())
    return tuple(sorted(made, key=_order))


def in_turns(groups: Iterable[SimilarPods]) -> tuple[SimilarPods, ...]:
    """The groups, one of each tab after the other: many of one tab hide none of another."""
    by_tab: dict[str, list[SimilarPods]] = {}
    for group in groups:
        by_tab.setdefault(group.tab, []).append(group)
    rounds = zip_longest(*by_tab.values())
    return tuple(group for each in rounds for group in each if group is not None)


def with_conclusions(
    snapshot: FleetSnapshot, groups: Iterable[SimilarPods]
) -> tuple[SimilarPods, ...]:
    """The same with what is explained by now."""
    known = ((each, snapshot.answers.known_pod(each.namespace, each.name)) for each in groups)
    return tuple(
        msgspec.structs.replace(each, conclusion=explained.conclusion)
        if explained is not None
        else msgspec.structs.replace(each, conclusion=NOT_EXPLAINED)
        if snapshot.answers.has_failed(each.namespace, each.name)
        else each
        for each, explained in known
    )


NOT_EXPLAINED: Final = "could not be explained, by an unexpected error of vgpu itself"
"""In place of the closing sentence of a pod whose explanation has failed."""

_TABS: Final = [tab.value for tab in PodTab]


def _order(group: SimilarPods) -> tuple[int, float, str, str]:
    since = float("inf") if group.since is None else group.since.timestamp()
    return _TABS.index(group.tab), since, group.owner, group.request


def tab_of(pod: Pod, why: Pending | None) -> PodTab:
    """The tab of a pod; ``why`` it has no device, if it has none."""
    if pod.phase == "Failed" or (why is not None and why.reason in ABNORMAL):
        return PodTab.ABNORMAL
    if not pod.node:
        return PodTab.WAITING
    if pod_state(pod).waiting_reason not in STARTING:
        return PodTab.ABNORMAL
    return PodTab.RUNNING if pod.phase == "Running" else PodTab.STARTING


def request_text(pod: Pod) -> str:
    """The resources of GPUs that its containers request, in the units of their systems."""
    parts = [
        ", ".join(f"{name} {amount}" for name, amount in sorted(container.limits.items()))
        for container in pod.containers
        if container.limits
    ]
    return " + ".join(parts)


def since_of(pod: Pod, why: Pending | None) -> float | None:
    """When the state began, in unix seconds."""
    if why is not None and why.since is not None:
        return why.since
    return pod.started_at if pod.started_at is not None else pod.created_at


def _group(
    snapshot: FleetSnapshot, key: tuple[str, ...], members: Iterable[tuple[Pod, Pending | None]]
) -> SimilarPods:
    tab, owner, request, reason = key
    ordered = sorted(members, key=lambda each: (_time(each), each[0].ref))
    first, why = ordered[0]
    ref: PodRef = first.ref
    seconds = since_of(first, why)
    return SimilarPods(
        tab,
        owner,
        ref.namespace,
        ref.name,
        len(ordered),
        request,
        snapshot.team(first),
        tuple(sorted({pod.node for pod, _ in ordered if pod.node})),
        reason,
        "" if why is None else why.detail or why.reason.explanation,
        None if seconds is None else datetime.fromtimestamp(seconds, UTC),
    )


def _time(member: tuple[Pod, Pending | None]) -> float:
    seconds = since_of(*member)
    return float("inf") if seconds is None else seconds
