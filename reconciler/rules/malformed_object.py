"""Objects at the API server that cannot be read: report only. Pure."""

from collections.abc import Iterator

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Finding, ObjectKind, ObjectRef
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.findings import quoted


def malformed_object(cluster_index: ClusterIndex, _: Policy) -> Iterator[Finding]:
    """One finding for each unreadable object; its author has to repair it."""
    for kind in ObjectKind:
        for malformed in cluster_index.malformed.get(kind, ()):
            ref = malformed.ref
            yield Finding(
                rule=Rule.MALFORMED_OBJECT,
                cause=Cause.MALFORMED,
                object_ref=ObjectRef(
                    kind, ref.namespace, ref.name, ref.uid, node=malformed.node or ""
                ),
                evidence=(f"it cannot be read: {quoted(malformed.detail)}",),
            )
