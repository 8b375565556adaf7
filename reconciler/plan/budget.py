"""The number of actions that one cycle may take: the circuit breaker and the limits. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Breaker, Entry, Evict, Finding, ObjectKind
from reconciler.plan.eligibility import Verdict
from reconciler.plan.order import is_ended
from reconciler.policy import Limits, NamespacePolicy, Policy, policy_of
from reconciler.reasons import Cause, Effect, SkipReason


def breaker_of(entries: Iterable[Entry], cluster_index: ClusterIndex, limits: Limits) -> Breaker:
    """The circuit breaker of these entries, against the living pods that share GPUs.

    Each eviction for recovery counts. Tidying and repairs disrupt no workload, and one tenant can
    cause thousands with one template: those of one rule in one namespace count once, and so do all
    leftover folders. So one tenant cannot trip the breaker for all, and a controller whose pods are
    refused again and again does not stop the tidying that it needs.
    """
    troubles = len({_trouble(entry.finding) for entry in entries})
    pods = cluster_index.living
    allowed = max(limits.breaker_floor, int(pods * limits.breaker))
    return Breaker(troubles, allowed, pods)


def _trouble(finding: Finding) -> tuple[str, ...]:
    """A key that is equal for the findings that count once."""
    object_ref = finding.object_ref
    if finding.effect is Effect.RECOVERY:
        return (object_ref.key,)
    if object_ref.kind is ObjectKind.FOLDER:
        return (finding.rule,)
    return (finding.rule, object_ref.namespace) if object_ref.namespace else (object_ref.key,)


class _Tally:
    """Actions of one cycle against three limits; ``of`` names what is counted, for people."""

    def __init__(
        self, per_cycle: int, per_node: int, in_namespace: Callable[[str], int], of: str = ""
    ) -> None:
        self._limits = per_cycle, per_node
        self._in_namespace = in_namespace
        self._of = of
        self._total = 0
        self._nodes: Counter[str] = Counter()
        self._namespaces: Counter[str] = Counter()

    def reached(self, node: str, namespace: str) -> Verdict:
        """The limit that one more action would exceed; None if there is none."""
        per_cycle, per_node = self._limits
        per_namespace = self._in_namespace(namespace)
        if node and self._nodes[node] >= per_node:
            return SkipReason.NODE_LIMIT, f"{per_node}{self._of} on {node}"
        if namespace and self._namespaces[namespace] >= per_namespace:
            return SkipReason.NAMESPACE_LIMIT, f"{per_namespace}{self._of} in {namespace}"
        if self._total >= per_cycle:
            return SkipReason.CYCLE_LIMIT, f"{per_cycle}{self._of} in one cycle"
        return None

    def count(self, node: str, namespace: str) -> None:
        """Count one action."""
        self._total += 1
        self._nodes[node] += 1
        self._namespaces[namespace] += 1


class Budget:
    """The limits of one cycle; pods that have ended are counted separately."""

    def __init__(self, cluster_index: ClusterIndex, policy: Policy) -> None:
        self._cluster_index = cluster_index
        self._policy = policy
        limits = self._limits = policy.limits
        self._rest = _Tally(limits.per_cycle, limits.per_node, self._in_namespace)
        self._ended = _Tally(
            limits.ended_per_cycle,
            limits.ended_per_node,
            self._ended_in_namespace,
            " pods that have ended",
        )
        self._policies: Counter[str] = Counter()
        self._crossed: set[str] = set()
        self._owners: Counter[str] = Counter()

    def take(self, entry: Entry) -> Verdict:
        """Count the action, unless it would exceed a limit: then return that limit."""
        node, namespace = entry.finding.object_ref.home, entry.finding.object_ref.namespace
        disrupts = self._disrupts(entry)
        if disrupts and self._owners[entry.owner] >= (most := self._of_owner(entry.owner)):
            return SkipReason.OWNER_LIMIT, f"{most} of its owner's pods"
        crossed = entry.finding.cause is Cause.CROSSED
        if crossed and node in self._crossed:  # replaced together they may cross again
            return SkipReason.ONE_AT_A_TIME, f"on {node}"
        tally = self._ended if is_ended(entry, self._cluster_index) else self._rest
        own = self._own(namespace)
        limit = tally.reached(node, namespace) or self._of_policy(own)
        if limit is not None:
            return limit
        tally.count(node, namespace)
        if own is not None:
            self._policies[own.name] += 1
        if crossed:
            self._crossed.add(node)
        self._owners[entry.owner] += disrupts
        return None

    def _own(self, namespace: str) -> NamespacePolicy | None:
        """The policy of the namespace, if it has one."""
        labels = self._cluster_index.snapshot.namespaces
        return policy_of(self._policy.policies, namespace, labels)

    def _in_namespace(self, namespace: str) -> int:
        """The limit of a namespace: its own, else its policy's, else that of all."""
        limit = self._limits.own(namespace)
        own = self._own(namespace)
        if limit is None and own is not None:
            limit = own.limits.per_namespace
        return self._limits.per_namespace if limit is None else limit

    def _ended_in_namespace(self, namespace: str) -> int:
        """The same for pods that have ended, which a policy can only lower."""
        limit, own = self._limits.ended_per_namespace, self._own(namespace)
        most = None if own is None else own.limits.per_namespace
        return limit if most is None else min(limit, most)

    def _of_policy(self, own: NamespacePolicy | None) -> Verdict:
        most = None if own is None else own.limits.per_cycle
        if own is None or most is None or self._policies[own.name] < most:
            return None
        return SkipReason.POLICY_LIMIT, f"{most} of policy {own.name}"

    def _disrupts(self, entry: Entry) -> bool:
        """Whether the action takes away a replica that may be of use."""
        pod = self._cluster_index.pod_of(entry.finding.object_ref)
        evicts = isinstance(entry.finding.action, Evict)
        return evicts and bool(entry.owner) and pod is not None and not pod.terminal

    def _of_owner(self, owner: str) -> int:
        return max(1, int(self._cluster_index.replicas[owner] * self._limits.per_owner))
