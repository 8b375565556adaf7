"""The findings of the reconciler's rules about the objects near an explained one.

A whole cluster would take seconds to judge.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

from msgspec import structs

from reconciler.cluster_index import ClusterIndex
from reconciler.ledger_cache import LedgerCache
from reconciler.model import Coverage, Finding, ObjectKind, Snapshot
from reconciler.observe.cluster import cluster_view
from reconciler.observe.dump import uses_share_pods
from reconciler.observe.owners import named_owners
from reconciler.plan import find
from reconciler.policy import Mode, Policy
from reconciler.reasons import Rule
from reconciler.rules.conflicts import CAUSES
from reconciler.rules.findings import of_pod
from reconciler.rules.kai import CAUSES as KAI_CAUSES
from reconciler.rules.kai import group_finding
from vgpu.inventory import DetectedSchemes
from vgpu.ledger import Conflict, ConflictKind, Ledger
from vgpu.ledger.cluster import home
from vgpu.ledger.conflict_kinds import OF_GPU_GROUPS
from vgpu.ledger.from_api import read_pod
from vgpu.model.objects import Node, Pod
from vgpu.quota.check import OVER_QUOTA
from vgpu.quota.limits import cluster_quotas
from vgpu.schemes.registry import registry
from vgpucli.explain.cluster_objects import ClusterObjects

PORTION_ZERO: Final = ConflictKind.PORTION_ZERO

EVERY_RULE: Final = Policy(modes=dict.fromkeys(Rule, Mode.PLAN))
"""All rules are on, with their default ages: a state that is normal for a while is no finding."""


class NearFindings:
    """Judges the objects near one of a cluster's."""

    def __init__(
        self, cluster: ClusterObjects, schemes: DetectedSchemes, nodes: Mapping[str, Node]
    ) -> None:
        """``schemes`` and ``nodes`` are those of the cluster."""
        self.cluster = cluster
        self.schemes = schemes
        self._nodes = nodes
        self.now = cluster.as_of

    @cached_property
    def _complete(self) -> frozenset[Coverage]:
        """What the rules may take as seen in full; the absence of an unread kind shows nothing."""
        objects = self.cluster.objects
        kinds = {each.kind for each in objects.malformed}
        has_share_pods = bool(objects.share_pods) or ObjectKind.SHARE_POD in kinds
        unread_share_pods = self.cluster.is_dump and not has_share_pods
        known_claims = objects.resource_claims.resource_claims
        unread = {
            Coverage.RESOURCE_CLAIMS: not (self.cluster.claims_read or known_claims),
            Coverage.PODS: not self.cluster.pods_read,
            Coverage.NODES: not self.cluster.nodes_read,
            Coverage.SHARE_PODS: unread_share_pods and uses_share_pods(objects),
            Coverage.QUOTAS: False,
        }
        return frozenset(view for view, is_unread in unread.items() if not is_unread)

    def findings(
        self, nodes: Collection[str], namespaces: frozenset[str], uids: Collection[str]
    ) -> tuple[Finding, ...]:
        """The findings of all rules about objects on these nodes and in these namespaces.

        Pods that a SharePod or its holder may be are judged together with all others of the kind,
        and so are those that use ResourceClaims.
        """
        whole = self.cluster.objects
        quotas = cluster_quotas(
            self.cluster.namespaces,
            self.cluster.resource_quotas,
            self.cluster.gpu_quota,
            namespaces,
        )
        quotas = {name: quota for name, quota in quotas.items() if name in namespaces}
        declared = tuple(q for q in self.cluster.resource_quotas if q.namespace in namespaces)
        marked = tuple(
            each
            for each in self.cluster.namespaces
            if each.name in namespaces and OVER_QUOTA in each.annotations
        )
        is_limited = bool(quotas or declared or marked)
        codecs = self.schemes.codecs

        def is_near(pod: Pod) -> bool:
            return (
                pod.node in nodes
                or pod.ref.uid in uids
                or pod.uses_resource_claims
                or (is_limited and pod.ref.namespace in namespaces)
                or (not pod.node and home(pod, read_pod(pod, codecs)) in nodes)
                or registry().uses_share_pods((*pod.annotations, *pod.labels))
            )

        pods = tuple(filter(is_near, whole.pods))
        names = {*nodes, *(pod.node for pod in pods)}
        near = structs.replace(
            whole,
            pods=pods,
            nodes=tuple(node for name, node in self._nodes.items() if name in names),
        )
        near_uids = {pod.ref.uid for pod in (*pods, *whole.share_pods)}
        schemes = structs.replace(
            self.schemes,
            pods=tuple(pod for pod in self.schemes.pods if pod.ref.uid in near_uids),
        )
        by_name = {(pod.ref.namespace, pod.ref.name): pod for pod in whole.pods}
        snapshot = Snapshot(
            now=self.now,
            complete=self._complete,
            lock_owners={**self._gone_owners(near.nodes, by_name), **self.cluster.lock_owners},
            quotas=quotas,
            quota_namespaces=marked,
            resource_quotas=declared,
            dated_by_status=self.cluster.is_dump,
        )
        view = cluster_view(
            snapshot, near, schemes, LedgerCache(), whole.unhealthy, lists_all=whole.lists_all
        )
        return tuple(find(ClusterIndex(view.snapshot, view.codecs), EVERY_RULE))

    def _gone_owners(
        self, nodes: Iterable[Node], pods: Mapping[tuple[str, str], Pod]
    ) -> Mapping[tuple[str, str], Pod | None]:
        """The owners of locks: a dump that has pods has all of them, and other pods are gone."""
        if not (self.cluster.is_dump and self.cluster.pods_read):
            return pods
        owners = named_owners(nodes, self.schemes.codecs)
        return {**dict.fromkeys(owners), **pods}


def is_about(finding: Finding, pod: Pod) -> bool:
    """Whether the finding is about this pod, or about its SharePod."""
    about = finding.object_ref
    if about.kind not in (ObjectKind.POD, ObjectKind.SHARE_POD):
        return False
    named = (about.namespace, about.name) == (pod.ref.namespace, pod.ref.name)
    return about.uid in (pod.ref.uid, pod.kubelet_uid) or (
        named and about.kind is ObjectKind.SHARE_POD
    )


def group_findings(ledger: Ledger, pod: Pod) -> Iterator[Finding]:
    """The findings of the rule kai about the pod and the groups that it is in.

    A portion that is printed as 0.00 keeps no pod from running: its conflict is a remark.
    """
    uids = {pod.ref.uid, pod.kubelet_uid}
    for conflict in ledger.conflicts:
        cause = KAI_CAUSES.get(conflict.kind)
        about = {each.uid for each in (conflict.pod, *conflict.members) if each is not None}
        if cause is not None and conflict.kind is not PORTION_ZERO and about & uids:
            yield group_finding((conflict,), cause, of_pod(pod), ledger.node, EVERY_RULE)


def unreported(
    ledger: Ledger, pod: Pod, held: Collection[str], findings: Iterable[Finding]
) -> Iterator[Conflict]:
    """The conflicts about the pod, devices that it holds and their node, that no finding reports.

    A conflict of the node alone is one of its register.
    """
    rules = {finding.rule for finding in findings}
    uids = {pod.ref.uid, pod.kubelet_uid}
    for conflict in ledger.conflicts:
        is_own = conflict.pod is not None and conflict.pod.uid in uids
        is_of_device = conflict.pod is None and conflict.device in {*held, ""} and bool(held)
        rule = CAUSES[conflict.kind][0] if conflict.kind in CAUSES else None
        is_found = conflict.kind in OF_GPU_GROUPS and conflict.kind is not PORTION_ZERO
        if (is_own or is_of_device) and rule not in rules and not is_found:
            yield conflict
