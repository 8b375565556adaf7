"""Finds what shared GPUs left failed, stuck or forgotten, explains it, and repairs it.

The parts, in the order of a cycle:

- ``model``: the values Snapshot, Finding, Plan, ActionResult. ``reasons``: every rule, cause, skip
  reason and outcome, as enums. ``policy``: what the operator allows.
- ``observe/``: snapshots of a cluster (listed or watched), of a dump, of one node.
  ``ledger_cache``: the ledgers, kept from cycle to cycle.
- ``cluster_index``, ``rules/``: find the problems. One function for each rule, one table. Pure.
- ``plan/``: the actions, their order, and the reasons of skipped objects; ``reconciler_state``: the
  state between cycles. ``judge``: judges one object of a plan again, just before its action. Pure.
- ``apply/``: applies plans, records them in an audit and as Events, and undoes them.
- ``cycle``: one cycle; ``schedule``, ``service``: the loop; ``state_store``: keeps the state in
  the cluster. ``owners/``: whose pods may be evicted.
- ``commands/``, ``config/``, ``session``: the command line. ``report/``, ``metrics``: its output.
"""

DISTRIBUTION = "vgpu"
