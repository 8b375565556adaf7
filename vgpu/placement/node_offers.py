"""Which nodes kube-scheduler offers for pods, while pods come and go. No I/O.

The checks are those of :mod:`vgpu.kube.closed_nodes`. Resources that only the schedulers of the
sharing systems count are not compared.
"""

from collections.abc import Collection, Mapping
from itertools import chain
from typing import Final

import msgspec
from msgspec import structs

from vgpu.kube.closed_nodes import NO_POD, ClosedNode, FreeResources, closed_to_pod
from vgpu.kube.scheduling_objects import SchedulingNode, SchedulingObjects, SchedulingPod
from vgpu.placement.dialects import dialect_rows

AGAIN: Final = "-again"
"""At the end of the UID of a pod that takes the place of another one."""

Offered = tuple[list[str], dict[str, ClosedNode]]
"""The open nodes, and why the others are closed, by name."""


def uncounted() -> frozenset[str]:
    """Resources that no node reports and that kube-scheduler is to ignore."""
    rows = dialect_rows()
    return frozenset(chain.from_iterable((*row.only_counted, *row.unread) for row in rows))


class NodeOffers:
    """The nodes that kube-scheduler offers for pods. Not for several threads.

    Attributes:
        wanted: what it reads of the pods that are asked about.
    """

    def __init__(
        self,
        read: SchedulingObjects,
        wanted: SchedulingPod = NO_POD,
        drained: Collection[str] = (),
        unjudged: Collection[str] = (),
    ) -> None:
        """``drained`` nodes are offered for no pod; ``unjudged`` resources are not compared."""
        self.wanted = wanted
        self._nodes = {each.node.name: each for each in read.nodes if each.node.name not in drained}
        self._unjudged = uncounted().union(unjudged)
        self._free = FreeResources(read.nodes, read.placed)
        self._of_pods = {
            each.uid: each.scheduling for each in read.placed if each.scheduling is not None
        }
        self._offered: dict[bytes, tuple[SchedulingPod, Offered]] = {}
        self._keys: dict[int, tuple[SchedulingPod, bytes]] = {}

    def of_pod(self, uid: str) -> SchedulingPod:
        """What kube-scheduler reads of the pod of this UID, or of the one that takes its place."""
        return self._of_pods.get(uid.removesuffix(AGAIN), self.wanted)

    def known(self, uid: str) -> SchedulingPod | None:
        """What kube-scheduler reads of the pod of this UID; None if it was not read."""
        return self._of_pods.get(uid)

    def open_to(self, pod: SchedulingPod) -> list[str]:
        """The names of the nodes that are offered for one more such pod, in order."""
        return self._answer(pod)[0]

    def closed_to(self, pod: SchedulingPod) -> Mapping[str, ClosedNode]:
        """Why the other nodes are not, by name."""
        return self._answer(pod)[1]

    def closed(self, name: str, pod: SchedulingPod) -> ClosedNode | None:
        """Why one node is not offered for one more such pod; None if it is, or is not known."""
        node = self._nodes.get(name)
        return None if node is None else self._closed(pod, node)

    def selected_by(self, pod: SchedulingPod) -> list[str]:
        """The nodes that would be offered for the pod without any other pod, in order."""
        return sorted(
            name for name, node in self._nodes.items() if closed_to_pod(pod, node) is None
        )

    @property
    def names(self) -> list[str]:
        """The names of all nodes but the drained ones, in order."""
        return sorted(self._nodes)

    def node(self, name: str) -> SchedulingNode:
        """The node of this name."""
        return self._nodes[name]

    def free(self, name: str, resource: str) -> int:
        """What is free of a resource that the node advertises."""
        return max(0, self._free.of(name, resource) or 0)

    def room(self, name: str, pod: SchedulingPod) -> int | None:
        """How many such pods the resources of the node suffice for; None without a bound."""
        judged = {
            resource: amount
            for resource, amount in pod.requests.items()
            if resource not in self._unjudged
        }
        return self._free.room(name, judged)

    def shortage(self, name: str, pod: SchedulingPod, pods: int) -> ClosedNode | None:
        """Of what the node has too little once it has so many more such pods."""
        return self._free.shortage(name, pod.requests, self._unjudged, pods)

    def count(self, name: str, pod: SchedulingPod, sign: int = 1) -> None:
        """Count a pod on a node from now on; with ``sign`` -1 no more."""
        self._free.take(name, pod.requests, sign)
        node = self._nodes.get(name)
        if node is None:
            return
        for asking, (names, closed) in self._offered.values():
            why = self._closed(asking, node)
            if (why is None) is (name in closed):
                known = (*names, name) if why is None else (each for each in names if each != name)
                names[:] = sorted(known)
            closed.pop(name, None)
            if why is not None:
                closed[name] = why

    # ------------------------------------------------------------ parts

    def _closed(self, pod: SchedulingPod, node: SchedulingNode) -> ClosedNode | None:
        return closed_to_pod(pod, node, self._free, self._unjudged)

    def _answer(self, pod: SchedulingPod) -> Offered:
        key = self._key(pod)
        known = self._offered.get(key)
        if known is None:
            closed = {
                name: why
                for name, node in self._nodes.items()
                if (why := self._closed(pod, node)) is not None
            }
            names = sorted(name for name in self._nodes if name not in closed)
            known = self._offered[key] = pod, (names, closed)
        return known[1]

    def _key(self, pod: SchedulingPod) -> bytes:
        """The content of the pod, without what does not matter here: alike pods count once."""
        known = self._keys.get(id(pod))
        if known is None or known[0] is not pod:
            content = structs.replace(pod, unchecked=())
            known = self._keys[id(pod)] = pod, msgspec.json.encode(content, order="deterministic")
        return known[1]
