"""What the originals' schedulers count of pods that ours has bound, by annotations and limits.

    BOOKS["gpushare"](pods, [GpuSize("0", 64), GpuSize("1", 64)])   # Counter of units by GPU

gpushare's extender, gpu-admission and HAMi's scheduler cannot be built here (see ``originals``), so
this is written from what is known of them, defects included. Nothing here uses the product's own
reading of annotations: that is what is tried. A pod is a document of the API server.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from tests.support.bed.client import Object

GAIA: Final = "tencent.com/"
WHOLE_CORES: Final = 100
"""gpu-manager's cores of a GPU; a container that requests as many has the GPU alone."""


UNITS_IN_GIB: Final = {"gpushare": 1, "gaia": 4, "hami": 1024}


class GpuSize(NamedTuple):
    """A GPU by the name in annotations, and its memory in the system's units."""

    name: str
    units: int


UnitCounter = Callable[[Iterable[Object], Sequence[GpuSize]], Counter[str]]
"""The units of memory in use by GPU; ``pods`` are those that are bound to the node."""


def gpushares_extender(pods: Iterable[Object], gpus: Sequence[GpuSize]) -> Counter[str]:
    """By the sum that a pod's annotation has, on the one GPU that another names.

    A pod that is being deleted holds nothing any more.
    """
    used_units: Counter[str] = Counter()
    for pod in pods:
        annotations = _annotations(pod)
        units = int(annotations.get("ALIYUN_COM_GPU_MEM_POD", 0))
        index = int(annotations.get("ALIYUN_COM_GPU_MEM_IDX", -1))
        leaves = "deletionTimestamp" in pod["metadata"]
        if units > 0 and 0 <= index < len(gpus) and not _has_ended(pod) and not leaves:
            used_units[gpus[index].name] += units
    return used_units


def gpu_admission(pods: Iterable[Object], gpus: Sequence[GpuSize]) -> Counter[str]:
    """By a container's limits, on the GPUs that the annotation of its place names.

    What would be more than a GPU has is not counted at all.
    """
    used_units: Counter[str] = Counter()
    for pod in filter(lambda pod: not _has_ended(pod), pods):
        for place, container in enumerate(pod["spec"]["containers"]):
            named = _annotations(pod).get(f"{GAIA}predicate-gpu-idx-{place}", "")
            limits = container.get("resources", {}).get("limits", {})
            is_whole = int(limits.get(f"{GAIA}vcuda-core", 0)) >= WHOLE_CORES
            for gpu in (gpus[int(each)] for each in named.split(",") if each):
                units = gpu.units if is_whole else int(limits.get(f"{GAIA}vcuda-memory", 0))
                if used_units[gpu.name] + units <= gpu.units:
                    used_units[gpu.name] += units
    return used_units


def hami_2_9(pods: Iterable[Object], _: Sequence[GpuSize]) -> Counter[str]:
    """By the annotation alone: all containers of a pod together, init containers too."""
    used_units: Counter[str] = Counter()
    for pod in filter(lambda pod: not _has_ended(pod), pods):
        for segment in _segments(pod):
            used_units.update(segment)
    return used_units


def hami_2_10(pods: Iterable[Object], _: Sequence[GpuSize]) -> Counter[str]:
    """As many segments as there are init containers are theirs, of which the largest counts.

    Empty segments are dropped before. So where an init container asks for nothing, an app container
    is taken for one.
    """
    used_units: Counter[str] = Counter()
    for pod in filter(lambda pod: not _has_ended(pod), pods):
        segments = _segments(pod)
        inits = len(pod["spec"].get("initContainers", ()))
        apps: Counter[str] = Counter()
        for segment in segments[inits:]:
            apps.update(segment)
        for name in set(chain(*segments)):
            largest = max((segment[name] for segment in segments[:inits]), default=0)
            used_units[name] += max(largest, apps[name])
    return used_units


BOOKS: Final[Mapping[str, UnitCounter]] = {
    "gpushare": gpushares_extender,
    "gaia": gpu_admission,
    "hami": hami_2_9,
}
"""By the system, without Volcano: its own scheduler is built."""


def _segments(pod: Object) -> list[Counter[str]]:
    """MiB by GPU of each container that has a GPU."""
    segments = _annotations(pod).get("hami.io/vgpu-devices-allocated", "").split(";")
    read = []
    for segment in filter(None, segments):
        amounts: Counter[str] = Counter()
        for entry in filter(None, segment.split(":")):
            uuid, _, memory, _ = entry.split(",")
            amounts[uuid] += int(memory)
        read.append(amounts)
    return read


def _annotations(pod: Object) -> Mapping[str, str]:
    return pod["metadata"].get("annotations", {})


def _has_ended(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
