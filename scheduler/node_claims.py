"""What all replicas have decided for a node: the claims in the annotation of its Lease; pure.

A claim stays for as long as its pod does, so that a replica that has not seen the bound pod yet
counts it all the same. An annotation has at most 256 KiB: about 1,000 claims.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import msgspec

from vgpu.model.allocation import Allocation
from vgpu.model.names import PodRef
from vgpu.model.reasons import Reason, SourceError

PREFIX: Final = "vgpu-node-"
"""The prefix of a Lease's name; the node's name follows."""

_LONGEST_NAME: Final = 253


class NodeClaim(msgspec.Struct, frozen=True):
    """What was decided for a pod.

    Attributes:
        pod: the pod.
        allocations: the containers' shares.
        groups: its groups.
        at: when a replica last confirmed it, in unix seconds by that replica's clock.
        is_held: whether nothing is decided yet, and the shares are held for the pod, for which
            kube-scheduler preempts others.
        priority: the pod's, if ``is_held``.
        units: the pod's extended resources, which its quota counts.
    """

    pod: PodRef
    allocations: tuple[Allocation, ...]
    groups: tuple[str, ...] = ()
    at: float = 0.0
    is_held: bool = False
    priority: int = 0
    units: tuple[tuple[str, int], ...] = ()


Claims = Mapping[str, NodeClaim]
"""Claims by the UID of their pod."""

_CLAIMS: Final = msgspec.json.Decoder(dict[str, NodeClaim])


def lease_name(node: str) -> str:
    """The name of the node's Lease."""
    name = PREFIX + node
    if len(name) <= _LONGEST_NAME:
        return name
    return PREFIX + sha256(node.encode()).hexdigest()


def read_claims(text: str, lease: str) -> dict[str, NodeClaim]:
    """The claims in the annotation; none in "". Raises SourceError MALFORMED."""
    if not text:
        return {}
    try:
        return _CLAIMS.decode(text.encode(errors="replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, f"Lease {lease}", str(error)) from error


def write_claims(claims: Claims) -> str:
    """The annotation."""
    return msgspec.json.encode(claims).decode()
