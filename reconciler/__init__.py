"""Finds what shared GPUs left failed, stuck or forgotten, explains it, and repairs it.

Where to look, in the order of a cycle:

- ``model``: Snapshot, Finding, Plan, Result: the values that the parts hand on. ``reasons``: every
  rule, cause, skip and outcome, as enums. ``policy``: what the operator allows.
- ``observe/``: what is seen: a cluster listed or followed, a dump, one node. ``books``: the
  ledgers, kept from look to look.
- ``scene``, ``rules/``: what is wrong. One file a rule, one table of them all. Pure.
- ``plan``, ``memory``: what is to be done, in what order, and what is skipped and why. Pure.
  ``judge``: one subject of it once more, just before it is acted on. Pure.
- ``apply/``: plans carried out, told in an audit and to Kubernetes, and undone.
- ``cycle``: all of that once; ``schedule``, ``cron``, ``service``: again and again; ``leader``,
  ``store``: kept in the cluster.
- ``commands/``, ``flags``, ``config``, ``session``: the command line. ``report``, ``report_table``,
  ``forms``, ``metrics``: what it prints and serves.
"""
