"""What was read of pods and grants before, so that only what has changed is read again. Pure.

Most of a node's pods and grants are the same from one sample to the next, and reading what they
say costs more than anything else about a ledger.
"""

from collections.abc import Iterable, Mapping, Sequence

from vgpu.facts import Grant
from vgpu.kube.objects import Pod
from vgpu.ledger.from_api import Reading, read_pod
from vgpu.ledger.from_kubelet import Given, GrantReader, by_container
from vgpu.model import Source
from vgpu.schemes.codec import SchemeCodec


class StatementCache:
    """Of one node, in the same languages each time. One thread uses it."""

    def __init__(self) -> None:
        self._pods: Mapping[str, tuple[Pod, Reading]] = {}
        self._grants: dict[Source, Mapping[tuple[str, str], tuple[Mapping[str, Grant], Given]]] = {}

    def readings(self, pods: Iterable[Pod], codecs: Sequence[SchemeCodec]) -> list[Reading]:
        """What each pod reports."""
        found = []
        now: dict[str, tuple[Pod, Reading]] = {}
        for pod in pods:
            known = self._pods.get(pod.ref.uid)
            if known is None or (known[0] is not pod and known[0] != pod):
                known = (pod, read_pod(pod, codecs))
            now[pod.ref.uid] = known
            found.append(known[1])
        self._pods = now
        return found

    def given(
        self,
        grants: Iterable[Grant],
        codecs: Sequence[SchemeCodec],
        source: Source,
    ) -> list[Given]:
        """What the kubelet gave each container, as ``source`` tells it."""
        reader = GrantReader(codecs, source)
        before = self._grants.get(source, {})
        now = {}
        for place, by_resource in by_container(grants).items():
            known = before.get(place)
            if known is None or known[0] != by_resource:
                known = (by_resource, reader.read(*place, by_resource))
            now[place] = known
        self._grants[source] = now
        return [given for _, given in now.values()]
