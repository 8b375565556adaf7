"""The words in which a device plugin refuses a start, and by which the reconciler knows them again.

They reach it through the kubelet's message of a container that waits.
"""

from typing import Final

CHECK_FAILED: Final = "PreStartContainer check failed"
"""gpu-manager's, and ours: only a new pod asks again."""

NO_ROOM: Final = "(no_room)"
"""Ours, at the end of a refusal: the GPU that the pod was promised has not enough left."""

CROSSED: Final = "the answer was made for another pod"
"""Ours: without CDI the kubelet has for this pod what was meant for another one."""
