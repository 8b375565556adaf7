"""Objects at the API server that cannot be read: they are named, and nobody acts on them. Pure."""

from collections.abc import Iterator

from reconciler.model import Finding, Kind, Subject
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.parts import quoted
from reconciler.scene import Scene


def malformed_object(scene: Scene, _: Policy) -> Iterator[Finding]:
    """Each of them; whoever wrote it has to mend it."""
    for kind in Kind:
        for each in scene.malformed.get(kind, ()):
            ref = each.ref
            yield Finding(
                rule=Rule.MALFORMED_OBJECT,
                cause=Cause.MALFORMED,
                subject=Subject(kind, ref.namespace, ref.name, ref.uid, node=each.node or ""),
                evidence=(f"it cannot be read: {quoted(each.detail)}",),
            )
