"""Keeps the reconciler's state in a ConfigMap, so that a new leader has it too.

The ConfigMap is a cache: each of its errors is logged once, and the run goes on with the state of
the process. Losing it only restarts the findings' ages.
"""

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, Protocol, TypeVar

import msgspec

from reconciler.reconciler_state import MOST, Attempt, ReconcilerState, decode, encode
from vgpu.apiserver.connection import ClusterError
from vgpu.model.reasons import SourceError

log = logging.getLogger(__name__)

CONFIG_MAP: Final = "vgpu-reconcile-state"
KEY: Final = "memory.json"

_Kept = TypeVar("_Kept", float, Attempt)


class ConfigMaps(Protocol):
    """The API server. Both raise ClusterError and SourceError."""

    def versioned_config_map(
        self, namespace: str, name: str
    ) -> tuple[Mapping[str, str], str] | None:
        """Data and resource version, None if there is no ConfigMap of that name."""
        ...

    def write_config_map(
        self, namespace: str, name: str, data: Mapping[str, str], resource_version: str
    ) -> str:
        """Replace that version, or create the ConfigMap if ""; returns the new version."""
        ...


class ConfigMapStateStore:
    """Loads and saves the state. One thread calls it; it never raises for the cluster's errors."""

    def __init__(self, cluster: ConfigMaps, namespace: str, name: str = CONFIG_MAP) -> None:
        """Reconcilers of the same objects share one ConfigMap; a node's own must not."""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._version = ""
        self._failure = ""

    def load(self) -> ReconcilerState:
        """The kept state; an empty state if there is none, or if it cannot be read."""
        try:
            state = self._read()
        except (ClusterError, SourceError) as error:
            self._log_failure("read", error)
            return ReconcilerState()
        self._log_recovery()
        return state

    def save(self, state: ReconcilerState) -> ReconcilerState:
        """Keep the state; returns the state to go on with.

        It differs where another process has written meanwhile: both are kept, as by
        :func:`merge`.
        """
        try:
            return self._write(state)
        except (ClusterError, SourceError) as error:
            if not (isinstance(error, ClusterError) and error.status == HTTPStatus.CONFLICT):
                self._log_failure("written", error)
                return state
        try:
            return self._write(merge(state, self._read()))
        except (ClusterError, SourceError) as error:
            self._log_failure("written", error)
            return state

    def _read(self) -> ReconcilerState:
        config_map = self._cluster.versioned_config_map(self._namespace, self._name)
        if config_map is None:
            self._version = ""
            return ReconcilerState()
        data, self._version = config_map
        text = data.get(KEY, "")
        state = decode(text)
        if text and state == ReconcilerState() and text != encode(state):
            message = "state ConfigMap is unreadable; starting with empty state"
            log.warning(message, extra=self._object)
        return state

    def _write(self, state: ReconcilerState) -> ReconcilerState:
        data = {KEY: encode(state)}
        self._version = self._cluster.write_config_map(
            self._namespace, self._name, data, self._version
        )
        self._log_recovery()
        return state

    def _log_failure(self, deed: str, error: ClusterError | SourceError) -> None:
        """Logs a failure; the same failure once."""
        failure = f"{deed}: {error}"
        if failure != self._failure:
            message = f"state ConfigMap could not be {deed}; the state stays in this process"
            log.warning(message, extra=self._object | {"reason": str(error)})
        self._failure = failure

    def _log_recovery(self) -> None:
        if self._failure:
            log.info("state ConfigMap can be used again", extra=self._object)
        self._failure = ""

    @property
    def _object(self) -> dict[str, str]:
        """The field of log lines that names the ConfigMap."""
        return {"config_map": f"{self._namespace}/{self._name}"}


def merge(ours: ReconcilerState, theirs: ReconcilerState) -> ReconcilerState:
    """The state of two reconcilers of the same objects: the later action of the two.

    A finding counts as seen only if both saw it, and since the later time: one of them may not have
    observed, or may have observed when the finding did not hold. Attempts of either count, with the
    last time and the largest count. Waiting costs one grace; acting too early may cost a pod.
    """
    seen = {
        key: max(since, theirs.seen[key]) for key, since in ours.seen.items() if key in theirs.seen
    }
    failed = _united(ours.failed, theirs.failed, max)
    attempts = _united(ours.attempts, theirs.attempts, _longest)
    return msgspec.structs.replace(
        ours,
        seen=seen,
        failed=_newest(failed, lambda failed_at: failed_at),
        attempts=_newest(attempts, lambda attempt: attempt.last),
    )


def _longest(first: Attempt, second: Attempt) -> Attempt:
    return Attempt(max(first.count, second.count), max(first.last, second.last))


def _united(
    ours: Mapping[str, _Kept], theirs: Mapping[str, _Kept], join: Callable[[_Kept, _Kept], _Kept]
) -> dict[str, _Kept]:
    both = {key: join(ours[key], theirs[key]) for key in ours.keys() & theirs.keys()}
    return {**theirs, **ours, **both}


def _newest(kept: Mapping[str, _Kept], last: Callable[[_Kept], float]) -> dict[str, _Kept]:
    """The newest entries, at most :data:`MOST`."""
    return dict(sorted(kept.items(), key=lambda item: (-last(item[1]), item[0]))[:MOST])
