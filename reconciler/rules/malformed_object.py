"""Objects at the API server that cannot be read: they are named, and nobody acts on them. Pure."""

from collections.abc import Iterator

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Finding, ObjectKind, ObjectRef
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.findings import quoted


def malformed_object(cluster_index: ClusterIndex, _: Policy) -> Iterator[Finding]:
    """Each of them; whoever wrote it has to repair it."""
    for kind in ObjectKind:
        for each in cluster_index.malformed.get(kind, ()):
            ref = each.ref
            yield Finding(
                rule=Rule.MALFORMED_OBJECT,
                cause=Cause.MALFORMED,
                subject=ObjectRef(kind, ref.namespace, ref.name, ref.uid, node=each.node or ""),
                evidence=(f"it cannot be read: {quoted(each.detail)}",),
            )
