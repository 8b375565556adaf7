"""Plans made by hand, of objects as they are now: what apply and restore are tried with."""

from reconciler.judge import Judge
from reconciler.model import (
    Breaker,
    Edit,
    Entry,
    Evict,
    Finding,
    ObjectKind,
    ObjectRef,
    Plan,
    Scope,
    Snapshot,
)
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule
from reconciler.reconciler_state import ReconcilerState
from vgpu.model.objects import SHARE_POD, Node


def unmoved(codecs=()):
    """A judge who has seen nothing: whatever has changed is not judged the same any more."""
    return Judge(Snapshot(now=0.0), Policy(), ReconcilerState(), codecs)


def object_ref_of(each, part=""):
    if isinstance(each, Node):
        return ObjectRef(ObjectKind.NODE, "", each.name, each.uid, part, each.name)
    kind = ObjectKind.SHARE_POD if SHARE_POD in each.annotations else ObjectKind.POD
    return ObjectRef(kind, each.ref.namespace, each.ref.name, each.ref.uid, part, each.node)


def evicting(pod, rule=Rule.REFUSED, cause=Cause.UNEXPECTED_ADMISSION_ERROR):
    """An entry that evicts this pod as it is now."""
    return entry(object_ref_of(pod), Evict(pod.ref, pod.resource_version), rule, cause)


def editing(each, after, rule=Rule.LEFTOVER_CLAIM, cause=Cause.ENDED_WITH_CLAIM, **fields):
    """An entry that changes annotations of this object as it is now."""
    before = {key: each.annotations.get(key) for key in after}
    version = "" if isinstance(each, Node) else each.resource_version
    object_ref = object_ref_of(each, next(iter(after)) if isinstance(each, Node) else "")
    return entry(object_ref, Edit(object_ref, version, before, after, **fields), rule, cause)


def entry(object_ref, action, rule, cause):
    finding = Finding(rule, cause, object_ref, ("as seen",), action=action)
    return Entry(finding, owner="uid-of-owner")


def plan(*entries, identity="plan-1"):
    return Plan(identity, 0.0, Scope.CLUSTER, entries, (), (), Breaker(len(entries), 10, 100))
