"""A cache of what was read from pods and grants, so that only changed ones are read again. Pure.

Most of a node's pods and grants are the same from one sample to the next, and reading them costs
more than anything else about a ledger.
"""

from collections.abc import Iterable, Mapping, Sequence

from vgpu.ledger.from_api import Reading, read_pod
from vgpu.ledger.from_kubelet import (
    NO_CONTEXT,
    GrantContext,
    GrantReader,
    GrantStatements,
    by_container,
)
from vgpu.model.facts import Grant
from vgpu.model.names import Source
from vgpu.model.objects import Pod
from vgpu.schemes.codec import SchemeCodec


class StatementCache:
    """The cache of one node, always for the same codecs. One thread uses it."""

    def __init__(self) -> None:
        self._pods: Mapping[str, tuple[Pod, Reading]] = {}
        self._context = NO_CONTEXT
        self._grants: dict[
            Source, Mapping[tuple[str, str], tuple[Mapping[str, Grant], GrantStatements]]
        ] = {}

    def readings(self, pods: Iterable[Pod], codecs: Sequence[SchemeCodec]) -> list[Reading]:
        """The reading of each pod."""
        readings = []
        current: dict[str, tuple[Pod, Reading]] = {}
        for pod in pods:
            known = self._pods.get(pod.ref.uid)
            if known is None or (known[0] is not pod and known[0] != pod):
                known = (pod, read_pod(pod, codecs, on_node=True))
            current[pod.ref.uid] = known
            readings.append(known[1])
        self._pods = current
        return readings

    def allocations(
        self,
        grants: Iterable[Grant],
        codecs: Sequence[SchemeCodec],
        source: Source,
        context: GrantContext = NO_CONTEXT,
    ) -> list[GrantStatements]:
        """The kubelet's allocations to each container, as ``source`` reports them."""
        if context != self._context:
            self._context, self._grants = context, {}
        reader = GrantReader(codecs, source, context)
        before = self._grants.get(source, {})
        current = {}
        for place, by_resource in by_container(grants).items():
            known = before.get(place)
            if known is None or known[0] != by_resource:
                known = (by_resource, reader.read(*place, by_resource))
            current[place] = known
        self._grants[source] = current
        return [reading for _, reading in current.values()]
