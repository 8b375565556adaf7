"""The objects of systems with queues as a watched cluster shows them, for metrics by queue.

What cannot be read is a note: metrics alone need it, and no plan is lost for it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from reconciler.observe.kinds import Seen
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.kai_groups import KAI_GROUPS, KAI_QUEUE_KINDS, KAI_QUEUES
from vgpu.kube.kueue_kinds import (
    CLUSTER_QUEUES,
    COHORTS,
    KUEUE_KINDS,
    LOCAL_QUEUES,
    RESOURCE_FLAVORS,
    WORKLOADS,
)
from vgpu.kube.volcano_kinds import POD_GROUPS, QUEUES, VOLCANO_KINDS
from vgpu.quota.kai_tree import KaiQueues
from vgpu.quota.kueue_config import CONFIG_MAP, NAMESPACE, UNKNOWN_CONFIG, KueueConfig, kueue_config
from vgpu.quota.kueue_tree import KueueObjects
from vgpu.quota.volcano_scheduler import VolcanoScheduler, volcano_scheduler
from vgpu.quota.volcano_tree import VolcanoObjects

_Kept = TypeVar("_Kept")

ReadConfigMap = Callable[[str, str], Mapping[str, str] | None]
"""Reads the data of a ConfigMap by namespace and name, None if there is none. Raises ClusterError.
"""

VOLCANO_CONFIG: Final = ("volcano-system", "volcano-scheduler-configmap")
"""The ConfigMap of Volcano's scheduler, as its chart and its manifest name it."""


class SeenQueues(msgspec.Struct, frozen=True):
    """What was read of each system; ``notes`` name what is unknown."""

    kueue: KueueObjects = KueueObjects()
    volcano: VolcanoObjects = VolcanoObjects()
    kai: KaiQueues = KaiQueues()

    @property
    def notes(self) -> tuple[str, ...]:
        """What is unknown, for people."""
        return (*self.kueue.notes, *self.volcano.notes, *self.kai.notes)


def seen_queues(seen: Mapping[str, Seen[Any]], config_map: ReadConfigMap) -> SeenQueues:
    """The objects of each system as far as they are seen; none if no kind is watched."""
    if not seen:
        return _NONE
    return SeenQueues(_kueue(seen, config_map), _volcano(seen, config_map), _kai(seen))


_NONE: Final = SeenQueues()


def _of(seen: Mapping[str, Seen[Any]], kind: ApiKind[_Kept]) -> tuple[_Kept, ...]:
    return seen[kind.key].objects


def _notes(seen: Mapping[str, Seen[Any]], kinds: tuple[ApiKind[Any], ...]) -> list[str]:
    each_kind = [seen[kind.key] for kind in kinds]
    notes = [each.note for each in each_kind if each.note]
    return notes + [str(bad) for each in each_kind for bad in each.malformed]


def _unread(seen: Mapping[str, Seen[Any]], kinds: tuple[ApiKind[Any], ...]) -> frozenset[str]:
    each_kind = ((kind.name, seen[kind.key]) for kind in kinds)
    return frozenset(name for name, each in each_kind if each.note or each.malformed)


def _kueue(seen: Mapping[str, Seen[Any]], config_map: ReadConfigMap) -> KueueObjects:
    queues, local_queues = _of(seen, CLUSTER_QUEUES), _of(seen, LOCAL_QUEUES)
    config = KueueConfig()
    if queues or local_queues:
        try:
            config = kueue_config(config_map(NAMESPACE, CONFIG_MAP))
        except ClusterError as error:
            config = KueueConfig(problem=error.message)
    notes = _notes(seen, KUEUE_KINDS)
    notes += [f"{UNKNOWN_CONFIG} ({config.problem})"] if config.problem else []
    return KueueObjects(
        queues,
        local_queues,
        _of(seen, COHORTS),
        _of(seen, RESOURCE_FLAVORS),
        _of(seen, WORKLOADS),
        config,
        tuple(notes),
        is_read=seen[CLUSTER_QUEUES.key].complete,
        unread=_unread(seen, KUEUE_KINDS),
    )


def _volcano(seen: Mapping[str, Seen[Any]], config_map: ReadConfigMap) -> VolcanoObjects:
    queues = _of(seen, QUEUES)
    scheduler = _scheduler(config_map) if queues else VolcanoScheduler()
    notes = _notes(seen, VOLCANO_KINDS)
    if queues and scheduler.problem:
        notes.append(f"limits of Volcano's Queues are unknown ({scheduler.problem})")
    return VolcanoObjects(
        queues, _of(seen, POD_GROUPS), scheduler, tuple(notes), _unread(seen, VOLCANO_KINDS)
    )


def _kai(seen: Mapping[str, Seen[Any]]) -> KaiQueues:
    return KaiQueues(
        _of(seen, KAI_QUEUES),
        _of(seen, KAI_GROUPS),
        tuple(_notes(seen, KAI_QUEUE_KINDS)),
        _unread(seen, KAI_QUEUE_KINDS),
    )


def _scheduler(config_map: ReadConfigMap) -> VolcanoScheduler:
    """Volcano's scheduler by its ConfigMap; its version is not read."""
    place = "ConfigMap {}/{}".format(*VOLCANO_CONFIG)
    try:
        data = config_map(*VOLCANO_CONFIG)
    except ClusterError as error:
        return VolcanoScheduler(problem=error.message)
    if data is None:
        return VolcanoScheduler(problem=f"{place} does not exist")
    if len(data) != 1:
        return VolcanoScheduler(problem=f"{place} does not have exactly one text")
    ((key, text),) = data.items()
    return volcano_scheduler(text, f"{place} {key}")
