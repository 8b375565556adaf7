"""Findings in, plan out: the allowed actions, their order, and their number. Pure.

The reasons to skip an object are checked in this order: the object itself, the rule's own reason,
whether a new pod would fail, too, its age, its owner's back-off, the rule's mode
(:mod:`.eligibility`); then, for all objects together, the circuit breaker and the limits
(:mod:`.budget`).

For findings F, with A the actions of the plan, S the entries that it skips, R those that it only
reports, W the entries that are left before breaker and limits, and ``obj`` the objects of
findings or entries:

- Each object appears once: ``obj(F) = obj(A) ⊎ obj(S) ⊎ obj(R)``, a disjoint union.
- An action has no reason to be skipped, and a skipped entry has one:
  ``∀ a ∈ A: skip_reason(a) = None``, ``∀ s ∈ S: s.skip ≠ None``.
- The order of the findings does not count: ``plan(π(F)) = plan(F)`` for each permutation π.
- The breaker stops everything or nothing: ``A ⊆ W``, and
  ``|troubles(W)| > max(floor, ⌊breaker · living⌋) ⇒ A = ∅``.
- No limit is exceeded. For each node n, namespace s and owner o, and separately for pods that have
  ended and for all other actions: ``|A| ≤ per_cycle``, ``|A_n| ≤ per_node``,
  ``|A_s| ≤ per_namespace``; and of the pods that are still of use,
  ``|evicted_o| ≤ max(1, ⌊per_owner · replicas_o⌋)``.
"""

from reconciler.plan.eligibility import skip_reason, with_guards
from reconciler.plan.making import find, make_plan, resolve, run_rule

__all__ = [
    "find",
    "make_plan",
    "resolve",
    "run_rule",
    "skip_reason",
    "with_guards",
]
