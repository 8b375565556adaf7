"""The mark of a Namespace whose pods exceed its quota, which the reconciler sets; pure.

The value names the exceeded limits without their amounts, so that it changes seldom. An admission
policy refuses further pods with GPUs while the mark is there (:mod:`vgpucli.quota.manifests`).
"""

from collections.abc import Mapping
from typing import Final

from vgpu.quota.check import overruns
from vgpu.quota.limits import NamespaceQuota
from vgpu.quota.resources import Amounts

OVER_QUOTA: Final = "vgpu.dev/over-quota"
"""The annotation of the Namespace."""


def mark(quota: NamespaceQuota, used: Mapping[str, Amounts]) -> str | None:
    """The mark that the Namespace of a quota should have; None if it is within the quota."""
    return ", ".join(overrun.limit.name for overrun in overruns(quota, used)) or None
