"""The mark ``vgpu.dev/over-quota`` of Namespaces, by which an admission policy refuses more pods.

A Namespace has the mark exactly while its pods hold more than its quota.
"""

from collections.abc import Iterator
from typing import Final

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Edit, Finding, ObjectKind, ObjectRef
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.rules.evidence_text import at_most
from reconciler.rules.findings import quoted
from reconciler.rules.quota_holders import quota_holders, used_by
from vgpu.model.objects import Namespace
from vgpu.quota.check import OVER_QUOTA, mark, overruns
from vgpu.quota.limits import NamespaceQuota

_WITHIN: Final = "its pods hold no more than its quota"


def quota_mark(cluster_index: ClusterIndex, _: Policy) -> Iterator[Finding]:
    """Set the mark of Namespaces over their quota, and remove it from those that are within it."""
    snapshot = cluster_index.snapshot
    holders = quota_holders(cluster_index, snapshot.quotas)
    doubtful = {doubt.node for doubt in snapshot.unit_doubts}
    unread = {malformed.ref.namespace for malformed in cluster_index.malformed[ObjectKind.POD]}
    for namespace in sorted(snapshot.quota_namespaces, key=lambda each: each.name):
        quota = snapshot.quotas.get(namespace.name) or NamespaceQuota(namespace.name)
        of_namespace = holders.get(namespace.name, [])
        used = used_by(of_namespace)
        wanted = mark(quota, used)
        if wanted == namespace.annotations.get(OVER_QUOTA):
            continue
        objection = None
        if any(holder.pod.node in doubtful for holder in of_namespace):
            objection = SkipReason.SIZES_DIFFER
        elif wanted is None and (quota.unreadable or namespace.name in unread):
            objection = SkipReason.INCOMPLETE_VIEW
        exceeded = [f"it exceeds its quota: {each.text}" for each in overruns(quota, used)]
        yield _finding(namespace, wanted, (*at_most(exceeded),), objection)


def _finding(
    namespace: Namespace,
    wanted: str | None,
    exceeded: tuple[str, ...],
    objection: SkipReason | None,
) -> Finding:
    present = namespace.annotations.get(OVER_QUOTA)
    object_ref = ObjectRef(ObjectKind.NAMESPACE, namespace.name, namespace.name, namespace.uid)
    marked = f"{OVER_QUOTA}: {quoted(present)}" if present is not None else "it has no mark"
    return Finding(
        rule=Rule.QUOTA_MARK,
        cause=Cause.MARK_LEFT if wanted is None else Cause.MARK_MISSING,
        object_ref=object_ref,
        evidence=(*(exceeded or (_WITHIN,)), marked),
        effect=Effect.REPAIR,
        action=Edit(object_ref, "", {OVER_QUOTA: present}, {OVER_QUOTA: wanted}),
        objection=objection,
    )
