"""The reconciler's memory kept in the cluster, in a ConfigMap, so that a new leader has it too.

It is a cache: whatever goes wrong with it is said once and the run goes on with what the process
remembers. Losing it only means waiting one grace again.
"""

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, Protocol, TypeVar

import msgspec

from reconciler.reconciler_state import MOST, Attempt, ReconcilerState, decode, encode
from vgpu.kube.connection import ClusterError
from vgpu.reasons import SourceError

log = logging.getLogger(__name__)

CONFIG_MAP: Final = "vgpu-reconcile-state"
KEY: Final = "memory.json"

_Kept = TypeVar("_Kept", float, Attempt)


class ConfigMaps(Protocol):
    """The API server. Both raise ClusterError and SourceError."""

    def versioned_config_map(
        self, namespace: str, name: str
    ) -> tuple[Mapping[str, str], str] | None:
        """Data and resource version, None if there is none of that name."""
        ...

    def write_config_map(
        self, namespace: str, name: str, data: Mapping[str, str], resource_version: str
    ) -> str:
        """Replace that version, or create it where that is ""; the new version."""
        ...


class ConfigMapStateStore:
    """Loads and saves. One thread calls it; it never raises for what the cluster does."""

    def __init__(self, cluster: ConfigMaps, namespace: str, name: str = CONFIG_MAP) -> None:
        """Who judges the same things shares one ConfigMap; a node's own reconciler must not."""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._version = ""
        self._failure = ""

    def load(self) -> ReconcilerState:
        """What was kept; nothing if there is nothing, or nothing that can be read."""
        try:
            memory = self._read()
        except (ClusterError, SourceError) as error:
            self._tell("read", error)
            return ReconcilerState()
        self._tell_well()
        return memory

    def save(self, memory: ReconcilerState) -> ReconcilerState:
        """Keep it; what is to be remembered now.

        It differs where another process has written meanwhile: both are kept, as
        :func:`merge` reports.
        """
        try:
            return self._write(memory)
        except (ClusterError, SourceError) as error:
            if not (isinstance(error, ClusterError) and error.status == HTTPStatus.CONFLICT):
                self._tell("written", error)
                return memory
        try:
            return self._write(merge(memory, self._read()))
        except (ClusterError, SourceError) as error:
            self._tell("written", error)
            return memory

    def _read(self) -> ReconcilerState:
        found = self._cluster.versioned_config_map(self._namespace, self._name)
        if found is None:
            self._version = ""
            return ReconcilerState()
        data, self._version = found
        text = data.get(KEY, "")
        memory = decode(text)
        if text and memory == ReconcilerState() and text != encode(memory):
            log.warning("%s: what is remembered there cannot be read, and is forgotten", self)
        return memory

    def _write(self, memory: ReconcilerState) -> ReconcilerState:
        data = {KEY: encode(memory)}
        self._version = self._cluster.write_config_map(
            self._namespace, self._name, data, self._version
        )
        self._tell_well()
        return memory

    def _tell(self, deed: str, error: ClusterError | SourceError) -> None:
        """The same failure is said once."""
        failure = f"{self} could not be {deed}, memory stays in this process: {error}"
        if failure != self._failure:
            log.warning("%s", failure)
        self._failure = failure

    def _tell_well(self) -> None:
        if self._failure:
            log.info("%s can be used again", self)
        self._failure = ""

    def __str__(self) -> str:
        return f"ConfigMap {self._namespace}/{self._name}"


def merge(ours: ReconcilerState, theirs: ReconcilerState) -> ReconcilerState:
    """What two who judge the same things may both act on: the more patient of the two.

    A thing counts as seen only if both saw it, and since the later of the two: one of them may not
    have looked, or have looked when it was not so. What either has tried counts, the last time and
    the longest row. Waiting too long costs one grace; acting too early may cost a pod.
    """
    seen = {
        key: max(since, theirs.seen[key]) for key, since in ours.seen.items() if key in theirs.seen
    }
    failed = _united(ours.failed, theirs.failed, max)
    attempts = _united(ours.attempts, theirs.attempts, _longest)
    return msgspec.structs.replace(
        ours,
        seen=seen,
        failed=_newest(failed, lambda at: at),
        attempts=_newest(attempts, lambda attempt: attempt.last),
    )


def _longest(one: Attempt, other: Attempt) -> Attempt:
    return Attempt(max(one.count, other.count), max(one.last, other.last))


def _united(
    ours: Mapping[str, _Kept], theirs: Mapping[str, _Kept], join: Callable[[_Kept, _Kept], _Kept]
) -> dict[str, _Kept]:
    both = {key: join(ours[key], theirs[key]) for key in ours.keys() & theirs.keys()}
    return {**theirs, **ours, **both}


def _newest(kept: Mapping[str, _Kept], at: Callable[[_Kept], float]) -> dict[str, _Kept]:
    """No more than a memory may have."""
    return dict(sorted(kept.items(), key=lambda item: (-at(item[1]), item[0]))[:MOST])
