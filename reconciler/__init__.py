"""Finds what shared GPUs left failed, stuck or forgotten, explains it, and repairs it.

Where to look, in the order of a cycle:

- ``model``: Snapshot, Finding, Plan, Result: the values that the parts hand on. ``reasons``: every
  rule, cause, skip and outcome, as enums. ``policy``: what the operator allows.
- ``observe/``: what is seen: a cluster listed or followed, a dump, one node. ``ledger_cache``: the
  ledgers, kept from cycle to cycle.
- ``cluster_index``, ``rules/``: what is wrong. One file a rule, one table of them all. Pure.
- ``plan/``: what is to be done, in what order, and what is skipped and why; ``reconciler_state``:
  what is remembered between cycles. ``judge``: one object of a plan once more, just before it is
  acted on. Pure.
- ``apply/``: plans carried out, told in an audit and to Kubernetes, and undone.
- ``cycle``: all of that once; ``schedule``, ``service``: again and again;
  ``state_store``: kept in the cluster. ``owners/``: whose pods may be evicted.
- ``commands/``, ``config/``, ``session``: the command line. ``report/``, ``metrics``: what it
  prints and serves.
"""
