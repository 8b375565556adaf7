"""Pods of NVIDIA's own device plugin, whose resource names HAMi uses too. Pure."""

from collections.abc import Callable, Iterable
from typing import Final

from vgpu.kube.objects import Node, Pod
from vgpu.schemes.nvidia.resources import is_only_nvidias
from vgpu.schemes.volcano.key_set import HAMI, VOLCANO

HAMI_MARK: Final = "hami.io/"
"""The prefix of HAMi's annotations."""


def whole_gpus(nodes: Iterable[Node]) -> Callable[[Pod], bool]:
    """Whether a pod's GPUs, replicas or MIG instances are of NVIDIA's own plugin, not HAMi's.

    Both use the name ``nvidia.com/gpu``. HAMi writes annotations on its pods and registers its
    ``nodes``.
    """
    registered = {node.name for node in nodes if HAMI.register in node.annotations}

    def is_whole(pod: Pod) -> bool:
        resources = {name for container in pod.containers for name in container.limits}
        if resources & {*HAMI.implied_by, VOLCANO.number, *VOLCANO.implied_by}:
            return False
        if any(key.startswith(HAMI_MARK) for key in pod.annotations):
            return False
        if HAMI.number not in resources:
            return any(map(is_only_nvidias, resources))
        return pod.node not in registered if pod.node else not registered

    return is_whole
