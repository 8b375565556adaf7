"""Judges one object of a plan again, by its newest version. Pure.

Some objects change often, but hardly ever in the parts that rules judge. An action is still right
if its rule has the same finding now, and no skip reason.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Action, Coverage, Edit, Entry, Evict, ObjectKind, Snapshot
from reconciler.plan import run_rule, skip_reason, with_guards
from reconciler.policy import Policy
from reconciler.reasons import Rule
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules import RULES
from vgpu.model.objects import Node, Pod
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.registry import registry

_BY_LEDGER: Final = frozenset(
    {Rule.RECOVER, Rule.DOUBLE_BOOKED, Rule.RUNNING_WITHOUT_DEVICE, Rule.LOST_DEVICE}
    | {Rule.OVER_PROMISED}
    | {entry.rule for entry in RULES if Coverage.LEDGER in entry.needs}
)
"""Rules that judge a node's ledger, which is not recreated for one pod."""


class Judge:
    """Judges objects with the snapshot that a plan was made from."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        state: ReconcilerState,
        codecs: Sequence[SchemeCodec] = (),
    ) -> None:
        """``state`` is that with which the plan was made."""
        self.codecs = tuple(codecs)
        self._snapshot = snapshot
        self._policy = policy
        self._state = state

    def current_action(self, entry: Entry, pod: Pod, node: Node | None) -> Action | None:
        """The entry's action on the pod or SharePod as it is now; None if not right any more.

        ``node`` is the pod's node as it is now; None if the pod has none, or the node is gone.
        """
        planned, pod = entry.finding, self._resolved(pod)
        if planned.rule in _BY_LEDGER and not self._looks_the_same(entry, pod):
            return None
        cluster_index = ClusterIndex(self._near(entry, pod, node), self.codecs)
        for rule in (rule_entry for rule_entry in RULES if rule_entry.rule is planned.rule):
            for raw in run_rule(rule, cluster_index, self._policy):
                finding = with_guards(raw, cluster_index, self._policy)
                same = (finding.key, finding.cause, finding.effect) == (
                    planned.key,
                    planned.cause,
                    planned.effect,
                )
                if same and skip_reason(finding, cluster_index, self._policy, self._state) is None:
                    alike = _lasting(finding.action) == _lasting(planned.action)
                    return finding.action if alike else None
        return None

    def _resolved(self, current: Pod) -> Pod:
        """The pod with what the snapshot's pods of its node know of its GPUs."""
        seen = (each for each in self._snapshot.pods if each.ref.uid != current.ref.uid)
        near = (each for each in seen if each.node == current.node)
        return registry().resolved((*near, current))[-1] if current.node else current

    def _looks_the_same(self, entry: Entry, current: Pod) -> bool:
        object_ref = entry.finding.object_ref
        seen = (
            *self._snapshot.pods,
            *self._snapshot.nvidia_pods,
            *self._snapshot.share_pods,
        )
        before = next((pod for pod in seen if pod.ref.uid == object_ref.uid), None)
        return before is not None and _unversioned(before) == _unversioned(current)

    def _near(self, entry: Entry, current: Pod, node: Node | None) -> Snapshot:
        """The snapshot's objects near this object, with it and its node as they are now.

        Near are the node, pods that are or may yet be on it, and pods of the same owner; for a
        quota all pods of the namespace.
        """
        object_ref, seen = entry.finding.object_ref, self._snapshot
        owner = current.owner.uid if current.owner else ""
        is_of_namespace = entry.finding.rule is Rule.OVER_QUOTA
        pods = tuple(
            pod
            for pod in seen.pods
            if pod.ref.uid != object_ref.uid
            and (
                pod.node in ("", current.node)
                or (is_of_namespace and pod.ref.namespace == current.ref.namespace)
                or (pod.owner is not None and pod.owner.uid in (owner, object_ref.uid))
            )
        )
        share_pods = tuple(pod for pod in seen.share_pods if pod.ref.uid != object_ref.uid)
        nvidia_pods = tuple(pod for pod in seen.nvidia_pods if pod.ref.uid != object_ref.uid)
        if object_ref.kind is ObjectKind.SHARE_POD:
            share_pods += (current,)
        elif len(nvidia_pods) < len(seen.nvidia_pods):
            nvidia_pods += (current,)
        else:
            pods += (current,)
        nodes = tuple(other_node for other_node in seen.nodes if other_node.name != current.node)
        ledgers = {name: ledger for name, ledger in seen.ledgers.items() if name == current.node}
        return structs.replace(
            seen,
            nodes=nodes if node is None else (*nodes, node),
            pods=pods,
            nvidia_pods=nvidia_pods,
            share_pods=share_pods,
            ledgers=ledgers,
        )


def _unversioned(pod: Pod) -> Pod:
    return structs.replace(pod, resource_version="", status_at=None)


def _lasting(action: Action | None) -> Action | None:
    """The action without the version that it is planned for."""
    if isinstance(action, Evict | Edit):
        return structs.replace(action, resource_version="")
    return action
