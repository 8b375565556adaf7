"""Pods of NVIDIA's own device plugin, whose resource names HAMi uses too. Pure."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

from vgpu.model.objects import Node, Pod
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.nvidia.resources import is_only_nvidias
from vgpu.schemes.volcano.key_set import HAMI, SPLIT_COUNT, VOLCANO
from vgpu.schemes.volcano.node import registrations

HAMI_MARK: Final = "hami.io/"
"""The prefix of HAMi's annotations."""


def advertises_others(node: Node) -> bool:
    """Whether ``nvidia.com/gpu`` of a node that HAMi registers is another plugin's.

    HAMi advertises each GPU as often as it registers it (``count``, by default 10 times). Its
    resource may be renamed (``--resource-name``), mostly so that NVIDIA's own plugin can advertise
    ``nvidia.com/gpu`` beside it: then the node has another number of it. A number of 0 is that of
    a plugin that does not run, and a register that cannot be read is no evidence.
    """
    units = node.capacity.get(HAMI.number)
    if not units:
        return False
    try:
        gpus = registrations(node, HAMI)
    except ClaimError:
        return False
    return bool(gpus) and units != sum(gpu.slots or SPLIT_COUNT for gpu in gpus)


def whole_gpus(nodes: Iterable[Node]) -> Callable[[Pod], bool]:
    """Whether a pod's GPUs, replicas or MIG instances are of NVIDIA's own plugin, not HAMi's.

    Both use the name ``nvidia.com/gpu``. HAMi writes annotations on its pods and registers its
    ``nodes``.
    """
    registered = {node.name: node for node in nodes if HAMI.register in node.annotations}

    @cache
    def is_hamis(name: str) -> bool:
        return name in registered and not advertises_others(registered[name])

    def is_whole(pod: Pod) -> bool:
        resources = {name for container in pod.containers for name in container.limits}
        if resources & {*HAMI.implied_by, VOLCANO.number, *VOLCANO.implied_by}:
            return False
        if any(key.startswith(HAMI_MARK) for key in pod.annotations):
            return False
        if HAMI.number not in resources:
            return any(map(is_only_nvidias, resources))
        return not (is_hamis(pod.node) if pod.node else any(map(is_hamis, registered)))

    return is_whole
