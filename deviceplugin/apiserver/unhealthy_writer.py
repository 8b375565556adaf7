"""Writes the ConfigMap of unhealthy GPUs that gpushare's scheduler reads."""

import logging
from collections.abc import Mapping
from typing import Final

from deviceplugin.apiserver.node_writer import NodeWriter
from deviceplugin.apiserver.write_context import WriteContext
from vgpu.apiserver.connection import ClusterError
from vgpu.model.reasons import SourceError
from vgpu.schemes.registry import registry

log = logging.getLogger(__name__)

FORBIDDEN_SECONDS: Final = 3600.0
"""Interval between two tries of a write that was forbidden, in seconds: the right may have been
granted."""

_FORBIDDEN: Final = 403


class UnhealthyWriter:
    """Used by the status manager's thread alone."""

    def __init__(self, context: WriteContext, node: NodeWriter) -> None:
        self._context = context
        self._node = node
        self._last: tuple[Mapping[str, str], str] | None = None  # data and version
        self._forbidden_until = 0.0  # 0 unless a write was forbidden after the last success

    def write(self) -> bool:
        """Write the ConfigMap if it differs; returns whether it did. Raises ClusterError,
        SourceError.
        """
        known = self._context.desired_of_node()
        if known is None:
            return False
        cluster, (desired, node) = self._context.cluster, known
        wanted = self._node.patch(desired).unhealthy
        row = registry().of(self._context.adapter.scheme)
        place = row.unhealthy_map if row else None
        if wanted is None or place is None or self._context.monotonic() < self._forbidden_until:
            return False
        where = place.namespace, place.name(node.name)
        try:
            if self._last is None:
                self._last = cluster.versioned_config_map(*where) or ({}, "")
            data, version = self._last
            if data.get(place.key) == wanted.get(place.key):
                return False
            others = {key: text for key, text in data.items() if key != place.key}
            data = {**others, **wanted}
            self._last = data, cluster.write_config_map(*where, data, version)
        except (ClusterError, SourceError) as error:
            self._last = None  # the ConfigMap may have changed: it is read again
            if not isinstance(error, ClusterError) or error.status != _FORBIDDEN:
                raise
            self._forbidden(error)
            return False
        self._forbidden_until = 0.0
        log.info("unhealthy GPUs written", extra={"unhealthy": wanted.get(place.key, "")})
        return True

    def _forbidden(self, error: ClusterError) -> None:
        """The operator grants the right to the ConfigMap: a missing right is logged once."""
        if not self._forbidden_until:
            log.info("unhealthy GPUs are not written: no permission", extra={"reason": str(error)})
        self._forbidden_until = self._context.monotonic() + FORBIDDEN_SECONDS
