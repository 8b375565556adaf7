"""Applies plans: the only part of the reconciler that changes anything.

========== ===================================================================================
applier    a plan's actions one after the other, while we lead and have time
executor   one action: its object read again, one write, and its outcome
guards     checks before a lock is removed or a holder pod is evicted
client     the part of the API server's client that actions use
writes     one write, and the check of its outcome where its answer is lost
refusals   what the API server's refusals mean; pure
removal    removes a shim's folder that no process uses
audit      a line of JSON before and after each action
events     Kubernetes Events of the pod and its owner; pure
restore    undoes actions from the audit, where that is possible
========== ===================================================================================
"""
