"""What `vgpu doctor` checks: what is installed, and which settings, versions and rights are wrong.

The checks are pure: facts about a cluster or a node in, findings out. Texts of findings have names
of objects, versions and the values of known flags, and nothing else of what was read.
"""

from typing import Final

DUMPED: Final = (
    "kubectl get nodes,daemonsets,deployments,configmaps,leases,mutatingwebhookconfigurations"
)
"""The command whose output --from reads, without the flags -A and -o."""
