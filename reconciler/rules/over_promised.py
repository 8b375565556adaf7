"""Pods that wait because their scheduler has promised more of a GPU than the GPU has.

All four original schedulers do so at times. Our device plugin refuses the pod that comes last. The
finding names every pod that has a claim to that GPU, and the likely defect.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Finding
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.evidence_text import PodIndex, at_most, of_device, of_holding
from reconciler.rules.waiting import find_waiting
from vgpu.ledger import Holding
from vgpu.ledger.entries import DeviceEntry
from vgpu.ledger.liveness import node_uid
from vgpu.ledger.totals import exceeded
from vgpu.model.names import ContainerKind
from vgpu.model.objects import Pod
from vgpu.schemes.registry import registry
from vgpu.schemes.row import DefectSign

_CAUSES: Final = {cause.value: cause for cause in Cause}


def over_promised(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Evict a pod that waits for a reserved share that is more than the GPU has left.

    A pod that waits for a pod's deletion is no finding: there will be room, or ``prestart_failed``
    finds the pod after more refused starts.
    """
    pod_index = PodIndex(cluster_index)
    for finding in find_waiting(Rule.OVER_PROMISED, cluster_index, policy):
        pod = cluster_index.pods[finding.object_ref.uid]
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
            *at_most([of_holding(holding, entry.device.name) for holding in entry.holdings]),
        )
        yield replace(finding, cause=cause, evidence=evidence)


def _exceeded_gpu(cluster_index: ClusterIndex, pod: Pod) -> DeviceEntry | None:
    """The first GPU that the pod has a claim to, and of which more is claimed than there is."""
    ledger = cluster_index.snapshot.ledgers.get(pod.node)
    for entry in ledger.devices if ledger is not None else ():
        uids = {holding.pod.uid for holding in entry.holdings}
        if node_uid(pod) in uids and exceeded(entry.held, entry.device):
            return entry
    return None


def _likely_defect(
    cluster_index: ClusterIndex, pod: Pod, holders: Iterable[Pod], holdings: Sequence[Holding]
) -> Cause:
    """The known defect of the pod's scheduler that fits these holders."""
    rows = {
        registry().row(reading.codec).name: registry().row(reading.codec)
        for reading in cluster_index.readings(pod)
        if reading.claim is not None
    }
    defects = [row.defect for row in rows.values() if row.defect is not None]
    has_init = any(
        container.kind is not ContainerKind.APP
        for holder in holders
        for container in holder.containers
    )
    holdings_of_pod = Counter(holding.pod.uid for holding in holdings)
    for sign, is_seen in (
        (DefectSign.ALWAYS, True),
        (DefectSign.INIT_CONTAINERS, has_init),
        (DefectSign.SAME_POD, max(holdings_of_pod.values()) > 1),
    ):
        for defect in defects:
            if defect.sign is sign:
                return _CAUSES[defect.cause] if is_seen else Cause.SUM_EXCEEDED
    return Cause.SUM_EXCEEDED
