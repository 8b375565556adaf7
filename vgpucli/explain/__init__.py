"""Why a pod, a node or a GPU is in its present state: the steps of its way, with evidence.

The steps are pure. They decide nothing themselves: placements, quotas and reasons are those of the
scheduler extender, findings are those of the reconciler's rules. This package is above both
programs, and only the commands are above it.
"""
