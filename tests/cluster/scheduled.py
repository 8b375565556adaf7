"""What our scheduler has promised to pods of the four systems, read from annotations and limits.

    pod = asking("hami", "a", namespace, gib=4, schedulerName="ours")
    promised("hami", plugin, bound_pod)     # Promise(gpu=1, gib=4)
    require_no_overcommitment(events, ...)  # at every moment

Nothing here uses the product's own reading of annotations: that is what is tried.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tests.cluster.plugin_kinds import (
    BLOCKS_IN_GIB,
    CORES,
    GAIA_CORES,
    GPU_GIB,
    UNIT_MIB,
)
from tests.cluster.plugin_node import PluginNode
from tests.support.bed import objects
from tests.support.bed.client import Object

SYSTEM, GIB = "test/system", "test/gib"
"""Labels of a pod: what it asks of whom."""


class Promise(NamedTuple):
    """The GPU by number, and its memory in GiB."""

    gpu: int
    gib: int


def asking(system: str, name: str, namespace: str, gib: int, **spec: Any) -> Object:
    """A pod that asks for a part of a GPU; no scheduler has seen it."""
    limits = {
        "volcano": {
            "volcano.sh/vgpu-number": 1,
            "volcano.sh/vgpu-memory": gib * 1024 // UNIT_MIB,
            "volcano.sh/vgpu-cores": CORES,
        },
        "hami": {
            "nvidia.com/gpu": 1,
            "nvidia.com/gpumem": gib * 1024,
            "nvidia.com/gpucores": CORES,
        },
        "gpushare": {"aliyun.com/gpu-mem": gib},
        "gaia": {
            "tencent.com/vcuda-core": GAIA_CORES,
            "tencent.com/vcuda-memory": gib * BLOCKS_IN_GIB,
        },
    }[system]
    pod = objects.pod(name, namespace, limits=limits, **spec)
    pod["metadata"]["labels"] = {SYSTEM: system, GIB: str(gib)}
    return pod


def _segment(key: str) -> Callable[[PluginNode, Mapping[str, str]], int]:
    return lambda plugin, annotations: plugin.uuids.index(
        annotations[key].strip(":;").split(",")[0]
    )


_GPU: Mapping[str, Callable[[PluginNode, Mapping[str, str]], int]] = {
    "volcano": _segment("volcano.sh/vgpu-ids-new"),
    "hami": _segment("hami.io/vgpu-devices-allocated"),
    "gpushare": lambda _, annotations: int(annotations["ALIYUN_COM_GPU_MEM_IDX"]),
    "gaia": lambda _, annotations: int(annotations["tencent.com/predicate-gpu-idx-0"]),
}


def promised(plugin: PluginNode, pod: Object) -> Promise:
    """What a bound pod's annotations say."""
    meta = pod["metadata"]
    return Promise(
        _GPU[meta["labels"][SYSTEM]](plugin, meta["annotations"]), int(meta["labels"][GIB])
    )


def holds(pod: Object) -> bool:
    """Whether a pod has a share: it is bound, and not all of its containers are gone."""
    status = pod["status"]
    if "nodeName" not in pod["spec"] or status.get("phase") in ("Failed", "Succeeded"):
        return False
    ended = ["terminated" in one.get("state", {}) for one in status.get("containerStatuses", ())]
    return not (pod["metadata"].get("deletionTimestamp") and ended and all(ended))


def require_no_overcommitment(
    events: Iterable[tuple[str, Object]], plugins: Mapping[str, PluginNode]
) -> int:
    """No GPU is promised beyond its memory after any of the events; the number of events.

    ``plugins`` are by the system.
    """
    pods: dict[str, tuple[str, Promise]] = {}
    given: Counter[tuple[str, int]] = Counter()
    number = 0
    for number, (kind, pod) in enumerate(events, 1):
        uid = pod["metadata"]["uid"]
        system = pod["metadata"]["labels"][SYSTEM]
        if uid in pods:
            before, promise = pods.pop(uid)
            given[before, promise.gpu] -= promise.gib
        if kind == "DELETED" or not holds(pod):
            continue
        plugin = plugins[system]
        assert pod["spec"]["nodeName"] == plugin.node.name
        promise = promised(plugin, pod)
        pods[uid] = system, promise
        given[system, promise.gpu] += promise.gib
        assert given[system, promise.gpu] <= GPU_GIB, (number, pod["metadata"]["name"])
    return number
