"""Plans carried out: the only part of the reconciler that changes anything.

========== ===================================================================================
applier    a plan's actions one after the other, while we lead and have time
acts       one action: its object re-read, one write, and the truth about what came of it
guards     what must still be so before a lock or a holder pod may go
hands      the small part of the API server's client that is used for it
writes     one write, and the look at it where its answer is lost
refusals   what the API server's refusals mean; pure
removal    a shim's folder that nobody uses
audit      told before and after each action, as JSON lines
events     told to Kubernetes, on the pod and its owner; pure
announcing written there, beside the actions
restore    undone from the audit, where that can be
========== ===================================================================================
"""
