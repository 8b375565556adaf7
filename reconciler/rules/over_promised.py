"""Pods that wait because their scheduler has promised more of a GPU than the GPU has.

All four original schedulers do so at times. Our device plugin refuses the pod that comes last. The
finding names every pod that was promised something of that GPU, and the likely defect.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Finding
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.evidence_text import PodIndex, at_most, of_device, of_holding
from reconciler.rules.waiting import find_waiting
from vgpu.kube.objects import Pod
from vgpu.ledger import Holding
from vgpu.ledger.entries import DeviceEntry
from vgpu.ledger.liveness import node_uid
from vgpu.ledger.totals import exceeded
from vgpu.model import ContainerKind, Scheme
from vgpu.schemes.volcano.codec import HAMI, Volcano


def over_promised(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Evict a pod that waits for what it was promised and what is not there.

    A pod that waits for one that is being deleted is none: there will be room, or else its start is
    refused for so long that ``prestart_failed`` finds it.
    """
    pod_index = PodIndex(cluster_index)
    for finding in find_waiting(Rule.OVER_PROMISED, cluster_index, policy):
        pod = cluster_index.pods[finding.subject.uid]
        entry = _exceeded_gpu(cluster_index, pod)
        if entry is None:
            continue
        named = (pod_index.pod(holding.pod.uid) for holding in entry.holdings)
        holders = [holder for holder in named if holder is not None]
        if any(holder.deleted_at is not None for holder in holders):
            continue
        cause = _likely_defect(cluster_index, pod, holders, entry.holdings)
        evidence = (
            *finding.evidence,
            cause.explanation,
            of_device(entry.device),
            *at_most([of_holding(holding) for holding in entry.holdings]),
        )
        yield replace(finding, cause=cause, evidence=evidence)


def _exceeded_gpu(cluster_index: ClusterIndex, pod: Pod) -> DeviceEntry | None:
    """The first GPU that the pod was promised, and of which more is promised than there is."""
    ledger = cluster_index.snapshot.ledgers.get(pod.node)
    for entry in ledger.devices if ledger is not None else ():
        uids = {holding.pod.uid for holding in entry.holdings}
        if node_uid(pod) in uids and exceeded(entry.held, entry.device):
            return entry
    return None


def _likely_defect(
    cluster_index: ClusterIndex, pod: Pod, holders: Iterable[Pod], holdings: Sequence[Holding]
) -> Cause:
    """What the pod's scheduler is known to do wrong and what fits these holders."""
    codecs = [spoken.codec for spoken in cluster_index.spoken(pod) if spoken.claim is not None]
    schemes = {codec.scheme for codec in codecs}
    if Scheme.GPUSHARE in schemes:
        return Cause.FREE_BELOW_ZERO
    if Scheme.GAIA in schemes:
        return Cause.CACHE_BEHIND
    if any(isinstance(codec, Volcano) and codec.key_set is HAMI for codec in codecs):
        first = any(one.kind is not ContainerKind.APP for pod in holders for one in pod.containers)
        return Cause.INIT_CONTAINERS_MISCOUNTED if first else Cause.SUM_EXCEEDED
    containers = Counter(holding.pod.uid for holding in holdings)
    if Scheme.VOLCANO in schemes and max(containers.values()) > 1:
        return Cause.SAME_GPU_TWICE
    return Cause.SUM_EXCEEDED
