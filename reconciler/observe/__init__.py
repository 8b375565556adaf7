"""Observers: the state of a cluster or a node at one time, as a value.

======= ===========================================================================
dump    what ``kubectl get … -o json`` has printed
cluster the API server, listed once or watched
node    one node's own sources, with the API server's pods of that node
owners  the owners of Failed pods and of node locks, by name
kinds   pods, nodes and SharePods, and whether all of them were seen
folders the shims' folders, and whether processes use them
======= ===========================================================================
"""

from typing import Protocol

import msgspec

from reconciler.model import Snapshot
from vgpu.schemes.codec import SchemeCodec


class ClusterView(msgspec.Struct, frozen=True):
    """One snapshot, and the codecs of the schemes in use."""

    snapshot: Snapshot
    codecs: tuple[SchemeCodec, ...]


class Observer(Protocol):
    """Observes a cluster or a node. One thread calls it."""

    def view(self, now: float) -> ClusterView:
        """The state at this time; ``now`` is unix seconds. Raises SourceError, ClusterError."""
        ...

    def close(self) -> None:
        """End all watches, and close what was opened for them."""
        ...
