"""What containers use, from their shares alone."""

from vgpu.ledger.container_usage import ContainerUsage, NodeUsage, ShareUsage
from vgpu.model.names import Source


def usage_of(*shares: ShareUsage) -> NodeUsage:
    """The usage of the containers that have these shares."""
    containers: dict[tuple[str, str], ContainerUsage] = {}
    for share in shares:
        pod, name = share.pod, share.container
        usage = containers.setdefault(
            (pod.uid, name), ContainerUsage(pod, name, share.scheme, Source.PROCESS, shares={})
        )
        usage.shares[share.device] = share
    return NodeUsage(tuple(containers.values()))
