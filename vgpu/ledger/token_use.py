"""The token daemon's pods, each with the container that has its share of the GPU. Pure."""

from collections.abc import Iterable

import msgspec

from vgpu.ledger.container_usage import ShareUsage
from vgpu.model.facts import TokenSample, TokenTenant
from vgpu.model.names import Scheme


class TokenUse(msgspec.Struct, frozen=True, gc=False):
    """A pod that shares the time of a GPU by tokens; all its containers have one token.

    ``container`` is the only one that has a share of the GPU, "" if several have.
    """

    pod_uid: str
    container: str
    tenant: TokenTenant


def token_uses(sample: TokenSample, shares: Iterable[ShareUsage]) -> tuple[TokenUse, ...]:
    """The pods of the token daemon that have a share of its GPU by KubeShare.

    The daemon knows pods by their names. Two pods of one name, of which one replaces the other,
    cannot be distinguished, and have none.
    """
    holders: dict[tuple[str, str, str], list[ShareUsage]] = {}
    for share in shares:
        if share.scheme is Scheme.KUBESHARE and share.pod.name:
            place = share.device, share.pod.namespace, share.pod.name
            holders.setdefault(place, []).append(share)
    uses: list[TokenUse] = []
    for tenant in sample.tenants:
        own = holders.get((tenant.device, tenant.namespace, tenant.pod), [])
        if len({share.pod.uid for share in own}) == 1:
            container = own[0].container if len(own) == 1 else ""
            uses.append(TokenUse(own[0].pod.uid, container, tenant))
    return tuple(uses)
