"""Devices that the kubelet's IDs name themselves: what a row reads without a request. Pure.

The IDs of most sharing systems only count. Where they name the device, the kubelet's data alone
shows who holds it.
"""

from collections.abc import Mapping

import msgspec

from vgpu.model.allocation import Share
from vgpu.model.names import Scheme, Sharing


class OwnGrant(msgspec.Struct, frozen=True):
    """What the kubelet allocated of one resource to one container.

    Attributes:
        resource: the extended resource.
        device_ids: the kubelet's IDs.
        env: the environment of the plugin's answer.
        answered: whether the answer was read; pod-resources has none.
        registered: the schemes whose plugins have registered GPUs on the Node object; None if the
            object was not read.
    """

    resource: str
    device_ids: tuple[str, ...]
    env: Mapping[str, str] = {}
    answered: bool = False
    registered: frozenset[Scheme] | None = None


class OwnDevices(msgspec.Struct, frozen=True):
    """The devices of a grant, one share for each ID, and how they are shared."""

    scheme: Scheme
    shares: tuple[Share, ...]
    sharing: Sharing
