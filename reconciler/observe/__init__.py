"""What is there to be judged: one look at a cluster or a node, as a value.

======= ===========================================================================
dump    what ``kubectl get … -o json`` has printed
cluster the API server, listed once or followed
node    one node's own sources, with the API server's pods of that node
owners  what owns Failed pods, where its own policy decides
kinds   pods, nodes and SharePods, each with whether all of them were seen
folders the shims' folders, and who uses them
lock_owners whom the nodes' locks name, where no list has them
======= ===========================================================================
"""

from typing import Protocol

import msgspec

from reconciler.model import Snapshot
from vgpu.schemes.codec import SchemeCodec


class ClusterView(msgspec.Struct, frozen=True):
    """What one look has seen, and the languages in which it is to be read."""

    snapshot: Snapshot
    codecs: tuple[SchemeCodec, ...]


class Observer(Protocol):
    """Somebody who looks. One thread asks."""

    def view(self, now: float) -> ClusterView:
        """What is there; ``now`` is unix seconds. Raises SourceError, ClusterError."""
        ...

    def close(self) -> None:
        """Look no longer; what was opened for it is let go."""
        ...
