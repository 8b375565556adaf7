"""Applies plans: the only part of the reconciler that changes anything.

========== ===================================================================================
applier    a plan's actions one after the other, while we lead and have time
executor   one action: its object read again, its guards checked, one write, and its outcome
client     the requests to the API server that actions use, and what its refusals mean; pure
removal    removes a shim's folder that no process uses
audit      a line of JSON before and after each action
records    the lines of the audit, the Events of the pod and its owner, outcomes of undoing; pure
restore    undoes actions from the audit, where that is possible
========== ===================================================================================
"""
