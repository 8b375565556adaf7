"""Pods that come to the kubelet in another order than the one in which they were promised.

    with deaf(node.kubelet):
        for pod in (promised_at(kind, first, 1), promised_at(kind, second, 0)):
            client.create(pod)
        let_it_see(kind, plugin, witness)

The original plugins, and ours without CDI, go by the order of the promises.
"""

import copy

from tests.cluster.plugin_kinds import Kind
from tests.cluster.plugin_node import PluginNode
from tests.support.bed.client import Object

BEGINNING = 1_700_000_000

PROMISED_AT = {
    "volcano": ("volcano.sh/vgpu-time", 1),
    "hami": ("hami.io/vgpu-time", 1),
    "gpushare": ("ALIYUN_COM_GPU_MEM_ASSUME_TIME", 10**9),
    "gaia": ("tencent.com/predicate-time", 10**9),
}
"""The annotation by which the original plugin orders its candidates, and its units in a second."""

SIGNS = {
    "volcano": ("volcano.sh/bind-phase", "allocating", "success"),
    "hami": ("hami.io/bind-phase", "allocating", "success"),
    "gpushare": ("ALIYUN_COM_GPU_MEM_ASSIGNED", "false", "true"),
    "gaia": ("tencent.com/gpu-assigned", "false", "true"),
}
"""The annotation by which the plugin marks a pod as served; its value before and after."""


def promised_at(kind: Kind, pod: Object, place: int) -> Object:
    """The pod, promised as the ``place``-th, and before all that are promised now."""
    key, unit = PROMISED_AT[kind.name]
    pod = copy.deepcopy(pod)
    pod["metadata"]["annotations"][key] = str((BEGINNING + place) * unit)
    return pod


def let_it_see(kind: Kind, plugin: PluginNode, witness: Object) -> None:
    """Until the plugin has seen all pods that there are.

    ``witness`` is served already. The plugin writes its annotation again as soon as it sees that it
    is gone, which is after the rest.
    """
    key, waiting, served = SIGNS[kind.name]
    plugin.client.patch(witness, {"metadata": {"annotations": {key: waiting}}})
    plugin.client.wait_for(
        witness,
        lambda pod: pod["metadata"]["annotations"][key] == served,
        "the annotation is written again",
    )
