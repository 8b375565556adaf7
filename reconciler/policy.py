"""The operator's policy: which rules may act, on which objects, how fast, and after which age.

A policy by namespace holds for some namespaces: one team's pods are acted on, another's are only
planned for. Pure.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from reconciler.reasons import Rule
from vgpu.inventory.nvidia import SCHEME as NVIDIA
from vgpu.kube.label_selector import LabelSelector
from vgpu.schemes.kai.keys import KAI

NAMESPACE: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"

PLAN_ONLY: Final = "plan"

_Name = Annotated[str, msgspec.Meta(pattern=f"^{NAMESPACE}$")]
_Limit = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class NamespaceLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Maximum numbers of actions in one cycle; None is no limit of its own.

    ``per_cycle`` is of all namespaces of the policy together, ``per_namespace`` of each.
    """

    per_cycle: _Limit | None = None
    per_namespace: _Limit | None = None


class NamespacePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What holds for the pods of some namespaces: those named, selected by labels, or both.

    It never allows more than the mode of the reconciler and of its rules.
    """

    name: _Name
    mode: Literal["plan", "apply"]
    namespaces: tuple[_Name, ...] | None = None
    selector: LabelSelector | None = None
    limits: NamespaceLimits = NamespaceLimits()

    def __post_init__(self) -> None:
        if self.namespaces is None and self.selector is None:
            raise ValueError("needs namespaces or a selector; selector: {} selects all namespaces")

    def names(self, namespace: str) -> bool:
        """Whether its list of namespaces does not exclude this one."""
        return self.namespaces is None or namespace in self.namespaces


Labels = Mapping[str, Mapping[str, str]]
"""The labels of namespaces, by name; those that could not be read are missing."""

UNREAD: Final = NamespacePolicy("unread", PLAN_ONLY, ())
"""The safest policy: of a namespace whose labels decide and could not be read."""


def policy_of(
    policies: Sequence[NamespacePolicy], namespace: str, labels: Labels
) -> NamespacePolicy | None:
    """The first policy that holds for the namespace; None if none does, or for objects of nodes.

    It is :data:`UNREAD` where a policy's selector would have to be asked, and the labels are
    unknown.
    """
    for policy in policies if namespace else ():
        if policy.names(namespace):
            if policy.selector is None:
                return policy
            if namespace not in labels:
                return UNREAD
            if policy.selector.matches(labels[namespace]):
                return policy
    return None


class Mode(StrEnum):
    """How far a rule may go."""

    OFF = "off"  # the rule is not evaluated
    PLAN = "plan"  # the rule's findings are reported
    APPLY = "apply"  # the rule's actions are applied where the reconciler applies plans


REPORTED: Final = frozenset(
    {
        Rule.DOUBLE_BOOKED,
        Rule.RUNNING_WITHOUT_DEVICE,
        Rule.LOST_DEVICE,
        Rule.UNOWNED_PROCESS,
        Rule.OVER_LIMIT,
        Rule.OVER_QUOTA,
    }
)
"""Rules that only report unless they are set to apply: then they evict, running pods too."""

_WITHOUT_ACTION: Final = frozenset(
    {
        Rule.STUCK_TERMINATING,
        Rule.HELD_FOR_NOTHING,
        Rule.IDLE_HOLDER,
        Rule.QUOTA_DRIFT,
        Rule.RESOURCE_CLAIM,
        Rule.KAI,
        Rule.MALFORMED_OBJECT,
    }
)
"""Rules that only report, whatever their mode."""

_OPT_IN: Final = frozenset({Rule.QUOTA_MARK, Rule.RESOURCE_CLAIM})
"""Rules that are off unless they are switched on: they need rights that nothing else needs."""

_ASKED_FOR: Final = REPORTED | _WITHOUT_ACTION | {Rule.KUBESHARE, Rule.TERMINATED}

DEFAULT_MODES: Final[Mapping[Rule, Mode]] = {
    rule: Mode.OFF if rule in _OPT_IN else Mode.PLAN if rule in _ASKED_FOR else Mode.APPLY
    for rule in Rule
}

OBSERVED: Final = (NVIDIA.value, KAI.value)
"""Sharing systems that vgpu only observes, and whose pods rules look at."""

RECREATED: Final = ("ReplicaSet", "ReplicationController", "StatefulSet")
"""Kinds of owners that recreate any pod without another effect."""


class Limits(msgspec.Struct, frozen=True):
    """The maximum number of actions in one cycle; attempts count, not only successes.

    ``per_owner`` is the part of an owner's living replicas that may be evicted, at least one.
    Limits with ``ended`` are for evictions of pods that have ended and can never run again: these
    disrupt nobody, and count for no other limit. ``breaker`` is the part of the living pods that
    share GPUs that may need an action at once; up to ``breaker_floor`` candidates it never trips.
    Tidying actions and repairs of one rule in one namespace count once, and so do a node's folders.
    ``by_namespace`` are limits of single namespaces in place of ``per_namespace``: ``name=number``.
    """

    per_cycle: int = 50
    per_node: int = 5
    per_namespace: int = 10
    per_owner: float = 0.34
    breaker: float = 0.2
    breaker_floor: int = 10
    ended_per_cycle: int = 300
    ended_per_node: int = 300
    ended_per_namespace: int = 300
    by_namespace: tuple[str, ...] = ()

    def own(self, namespace: str) -> int | None:
        """The limit of a namespace that has one of its own."""
        parts = (text.partition("=") for text in self.by_namespace)
        return next((int(most) for name, _, most in parts if name == namespace), None)


class Ages(msgspec.Struct, frozen=True):
    """Minimum age of a problem before an action, in seconds.

    ``failed``: a failure. ``assumed``: a claim that was not served; not below the time-outs of the
    schedulers' locks (300 s), so that they give up before us. ``lock``: a lock whose owner is gone.
    ``handshake``: a node abandoned although its plugin is alive. ``drift``: a disagreement about a
    GPU. ``over_limit``: more memory used than allocated; as long as the alert waits. ``orphan``: an
    object without its owner. ``terminating``: a pod whose deletion is due. ``held``: a share of a
    container that cannot run. ``idle``: a share without a kernel; 0 switches that rule off.
    ``over_quota``: a namespace that exceeds its quota. ``clock_skew`` is added to all of them:
    another machine's clock may differ by this much without an action being too early.
    """

    failed: float = 60.0
    assumed: float = 300.0
    lock: float = 60.0
    handshake: float = 120.0
    drift: float = 60.0
    over_limit: float = 300.0
    orphan: float = 300.0
    terminating: float = 600.0
    held: float = 1800.0
    idle: float = 0.0
    over_quota: float = 600.0
    clock_skew: float = 60.0


class Backoff(msgspec.Struct, frozen=True):
    """After an eviction, an owner's pods on that node are skipped: ``first`` seconds, then
    twice as long each time, up to ``longest``; forgotten when nothing happened for twice that.
    """

    first: float = 120.0
    longest: float = 1800.0


class Policy(msgspec.Struct, frozen=True):
    """The whole policy.

    Attributes:
        modes: by rule; a rule that is not here has its default.
        limits, ages, backoff: see there.
        owners: kinds of controllers whose pods may be evicted, whatever the effect; ``Kind``, or
            ``Kind.group`` where the kind is not Kubernetes' own.
        evict_bare: also pods that no controller recreates.
        evict_running: also running pods, where a rule reports that this helps.
        act_on_schemes: of the systems in :data:`OBSERVED`, those whose living pods may be acted on;
            pods that have ended may be in any case.
        namespaces: only pods in these, if any are named; then no objects of nodes either.
        plan_namespaces: what would be done to pods of these is planned, and not applied.
        policies: of the rest, the first that holds for a pod's namespace counts.
        protected_namespaces: no actions here, except on KubeShare's holder pods.
        priority_ceiling: pods of a higher priority are skipped.
        team_key: the label of a Namespace that has its team, for metrics; it decides nothing.
        queues: whether the queues of all systems are read, for metrics; they decide nothing.
    """

    modes: Mapping[Rule, Mode] = {}
    limits: Limits = Limits()
    ages: Ages = Ages()
    backoff: Backoff = Backoff()
    owners: tuple[str, ...] = RECREATED
    evict_bare: bool = False
    evict_running: bool = False
    act_on_schemes: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    plan_namespaces: tuple[str, ...] = ()
    policies: tuple[NamespacePolicy, ...] = ()
    protected_namespaces: tuple[str, ...] = ("kube-system",)
    priority_ceiling: int = 1_000_000_000
    team_key: str = "team"
    queues: bool = False

    @property
    def reads_quotas(self) -> bool:
        """Whether a rule needs the quotas of namespaces."""
        rules = (Rule.OVER_QUOTA, Rule.QUOTA_MARK, Rule.QUOTA_DRIFT)
        return any(self.mode(rule) is not Mode.OFF for rule in rules)

    @property
    def reads_resource_claims(self) -> bool:
        """Whether ResourceClaims and ResourceSlices are read, for all rules."""
        return self.mode(Rule.RESOURCE_CLAIM) is not Mode.OFF

    @property
    def reads_labels(self) -> bool:
        """Whether a policy selects namespaces by their labels."""
        return any(policy.selector is not None for policy in self.policies)

    def mode(self, rule: Rule) -> Mode:
        """How far the rule may go."""
        return self.modes.get(rule, DEFAULT_MODES[rule])
