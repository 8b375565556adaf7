"""Gives a node's GPUs to pods, as a device plugin of the kubelet that knows for whom it answers.

Where to look, in the order in which a container comes by:

- ``model``, ``allocation state``, ``reasons``: assignments, tenants and bindings; the books; every
  refusal. ``role``, ``ports``, ``steps``: what the parts are to one another. Pure.
- ``roles/``: what is different for each scheme. ``gaia/``: what gpu-manager's library needs.
- ``lists``, ``offers``, ``server``, ``registration``, ``keeper``, ``registrar``: the kubelet's
  side.
- ``allocator``, ``candidates``, ``guesses``: what Allocate and PreStartContainer answer.
- ``assignments``, ``answers``: the kubelet's checkpoint and our answers in it. ``binding``,
  ``gate``: what follows from them, pure; ``binder``: the thread that does it.
- ``cdi``, ``late_files``, ``checkpoint``, ``shim_files``: what is written on the node.
- ``recovery``, ``takeover``, ``contradictions``, ``leaving``: who holds what at the start, what
  cannot be, who has left, pure; ``looking``, ``recovering``, ``migration``: the evidence for it.
- ``health``, ``health_case``, ``health_rules``: which GPUs are well, pure; ``health_watch``.
- ``pods``, ``lock_owners``, ``telling``, ``to_tell``, ``events``, ``tidings``: the API server,
  asked and told.
- ``flags``, ``main``, ``plugin``, ``building``, ``service``: the program. ``metrics``, ``pages``.
"""
