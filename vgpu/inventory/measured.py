"""What exporters measured of pods, in groups; pure.

The API server does not know how much of its share a pod uses: only the exporter of its node does.
"""

from collections.abc import Iterable, Mapping

import msgspec

from vgpu.inventory.pod_usage import PodAccount
from vgpu.quota.resources import MEMORY, Amounts, plus


class MeasuredUse(msgspec.Struct, frozen=True):
    """What a pod uses, by its exporter. A resource that is not measured is missing, never 0.

    Attributes:
        used: ``memory`` in bytes, ``cores`` in thousandths of a GPU's.
        idle: what is allocated and not used of the same resources, never below 0.
    """

    used: Amounts = {}
    idle: Amounts = {}


class GroupUse(msgspec.Struct, frozen=True):
    """What the measured pods of a group use together.

    Attributes:
        pods: number of pods that hold a share and whose memory is measured.
        holding_pods: number of pods that hold a share.
        used, idle: as of :class:`MeasuredUse`; a resource that no pod has is missing.
    """

    pods: int = 0
    holding_pods: int = 0
    used: Amounts = {}
    idle: Amounts = {}


def group_use(accounts: Iterable[PodAccount], measured: Mapping[str, MeasuredUse]) -> GroupUse:
    """The sums of these pods; ``measured`` is by the UID of the pod on its node."""
    accounts = tuple(accounts)
    of_pods = [
        (account, use)
        for account in accounts
        if (use := measured.get(account.pod.kubelet_uid)) is not None
    ]
    return GroupUse(
        sum(account.phase is not None and MEMORY in use.used for account, use in of_pods),
        sum(account.phase is not None for account in accounts),
        plus(*(use.used for _, use in of_pods)),
        plus(*(use.idle for _, use in of_pods)),
    )
