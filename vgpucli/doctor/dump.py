"""The dump that `vgpu doctor --from` reads. Quick to import: the help has it."""

from typing import Final

DUMPED: Final = (
    "kubectl get nodes,daemonsets,deployments,configmaps,leases,mutatingwebhookconfigurations"
)
"""The command whose output --from reads, without the flags -A and -o."""
