"""Whose pods may be evicted: a pod's owner, and its reaction when a Failed pod is deleted.

Some owners create another pod, or do nothing; some restart everything that they own. The reaction
of each kind is in :mod:`reconciler.owners.kinds`; where an owner's own settings decide, its pods
are tidied only if it changes nothing else. Kinds that the configuration names are always allowed.
Pure.
"""

import re
from collections.abc import Callable
from typing import Final

import msgspec

from reconciler.owners.kinds import ROWS, OwnerKind
from reconciler.owners.policies import Reaction, unread
from reconciler.reasons import SkipReason
from vgpu.kube.kept_keys import GROUP_NAME, JOB_SET_NAME
from vgpu.model.objects import Pod

FAILED: Final = "Failed"


class OwnerId(msgspec.Struct, frozen=True, order=True):
    """An owner's object at the API server; ``uid`` is "" where the pod does not name it."""

    group: str
    version: str
    plural: str
    namespace: str
    name: str
    uid: str = ""


class OwnerSeen(msgspec.Struct, frozen=True):
    """An owner's object as JSON, or why it could not be read."""

    text: bytes = b""
    unread: str = ""


_BY_KIND: Final = {(row.group, row.kind): row for row in ROWS}
_OF_LABEL: Final = {
    ("apps", "StatefulSet"): (GROUP_NAME, _BY_KIND["leaderworkerset.x-k8s.io", "LeaderWorkerSet"]),
    ("batch", "Job"): (JOB_SET_NAME, _BY_KIND["jobset.x-k8s.io", "JobSet"]),
}
"""The owner of an owner, by the label that it puts on its pods."""

_JOBS: Final = frozenset({("batch", "Job"), ("jobset.x-k8s.io", "JobSet")})
_BUILT_IN: Final = {row.kind: row.group for row in ROWS if row.group in ("", "apps", "batch")}
"""Kinds that without a group are Kubernetes' own, even if others have kinds of the same name."""

_VERSION: Final = re.compile(r"v[0-9]{1,3}((alpha|beta)[0-9]{1,3})?", re.ASCII)
_GROUP_VERSION: Final = "v1"
"""The version of LeaderWorkerSet, which no pod names as its owner."""


def row_of(pod: Pod) -> OwnerKind | None:
    """The kind of the pod's owner; None if it has no owner, or one of an unknown kind."""
    if pod.owner is None:
        return None
    named = _BY_KIND.get((_group(pod), pod.owner.kind))
    label, behind = _OF_LABEL.get((_group(pod), pod.owner.kind), ("", None))
    return behind if behind is not None and label in pod.labels else named


def owner_id(pod: Pod) -> OwnerId | None:
    """The object that decides about this Failed pod's siblings; None if none does.

    An owner whose API version has no valid form is asked for as v1.
    """
    row = row_of(pod)
    if row is None or row.judge is None or pod.owner is None or pod.phase != FAILED:
        return None
    if behind := pod.labels.get(GROUP_NAME, "") if row.kind == "LeaderWorkerSet" else "":
        return OwnerId(row.group, _GROUP_VERSION, row.plural, pod.ref.namespace, behind)
    version = pod.owner.api_version.rpartition("/")[2]
    known = version if _VERSION.fullmatch(version) else _GROUP_VERSION
    owner = pod.owner
    return OwnerId(row.group, known, row.plural, pod.ref.namespace, owner.name, owner.uid)


class _Meta(msgspec.Struct, frozen=True):
    uid: str = ""


class _Any(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


def reaction(pod: Pod, seen: OwnerSeen | None) -> Reaction:
    """The reaction to this Failed pod's deletion; ``seen`` is the object of :func:`owner_id`."""
    row, asked = row_of(pod), owner_id(pod)
    if row is None:
        return Reaction("its kind is not known", remakes=True)
    if row.judge is None or asked is None:
        return Reaction(remakes=row.remakes)
    if seen is None or seen.unread:
        return unread(seen.unread if seen else "not in this scope")
    if asked.uid and asked.uid != _uid(seen.text):
        return unread("another of its name is in its place")
    return row.judge(seen.text, row.part(pod))


def _uid(text: bytes) -> str:
    try:
        return msgspec.json.decode(text, type=_Any).metadata.uid
    except (msgspec.DecodeError, RecursionError, ValueError):
        return ""


def is_allowed(pod: Pod, allowed: tuple[str, ...]) -> bool:
    """Whether the configuration's ``owners`` name the pod's owner, or its owner's owner."""
    if pod.owner is None:
        return False
    row = row_of(pod)
    kind, group = (row.kind, row.group) if row else (pod.owner.kind, _group(pod))
    return any(_names(entry, kind, group) for entry in allowed)


def _names(entry: str, kind: str, group: str) -> bool:
    name, dot, of = entry.partition(".")
    return name == kind and (of == group if dot else _BUILT_IN.get(kind, group) == group)


def objection(
    pod: Pod, allowed: tuple[str, ...], react: Callable[[Pod], Reaction]
) -> tuple[SkipReason, str] | None:
    """Why a pod with an owner is not evicted, with a detail in words; None if it may be."""
    if pod.owner is None:
        return None
    if pod.owner.kind == "DaemonSet":
        return SkipReason.DAEMON_SET_POD, ""
    if is_allowed(pod, allowed):
        return None
    row = row_of(pod)
    if row is None or row.listed:
        return SkipReason.OWNER_KIND, _spelled(pod)
    return _of_kind(row, pod, react)


def _of_kind(
    row: OwnerKind, pod: Pod, react: Callable[[Pod], Reaction]
) -> tuple[SkipReason, str] | None:
    """The same by the table, which allows evictions of Failed pods only."""
    failed = pod.phase == FAILED
    if (row.group, row.kind) in _JOBS:
        return None if failed and not pod.tracked else (SkipReason.JOB_POD, "")
    if not failed:
        return SkipReason.OWNER_KIND, f"{row.kind}.{row.group}: only its Failed pods are tidied"
    owner_reaction = react(pod)
    skip = SkipReason.OWNER_UNREAD if owner_reaction.unread else SkipReason.OWNER_POLICY
    return (skip, owner_reaction.touches) if owner_reaction.touches else None


def _spelled(pod: Pod) -> str:
    """The name of the owner's kind in the configuration."""
    group = _group(pod)
    kind = pod.owner.kind if pod.owner else ""
    return f"{kind}.{group}" if group and _BUILT_IN.get(kind) != group else kind


def _group(pod: Pod) -> str:
    return pod.owner.api_version.rpartition("/")[0] if pod.owner else ""
