"""The ConfigMaps by which KAI Scheduler passes its GPUs to a container. Pure.

``<prefix>-<index>``, for an init container ``<prefix>-i<index>``, has ``NVIDIA_VISIBLE_DEVICES``,
UUIDs with commas, with CDI each as ``k8s.device-plugin.nvidia.com/gpu=<UUID>``. Where the user's
container sets the variable differently, it is in ``<prefix>-<index>-evar``; old pods have
``RUNAI-VISIBLE-DEVICES``. The prefix is in an annotation of the pod.
(``pkg/binder/common/gpusharingconfigmap/config_map.go``, ``pkg/binder/common/gpu_access.go``.)
"""

import re
from collections.abc import Mapping
from typing import Final

from vgpu.model.names import ContainerKind
from vgpu.model.objects import Pod
from vgpu.schemes.codec import VISIBLE_DEVICES
from vgpu.schemes.kai.keys import CONFIG_MAP
from vgpu.schemes.kai.request import fraction_container
from vgpu.schemes.kubeshare.text import is_uuid

ConfigMaps = Mapping[tuple[str, str], Mapping[str, str]]
"""The data of ConfigMaps by namespace and name."""

_OLD_VISIBLE: Final = "RUNAI-VISIBLE-DEVICES"
_NAME: Final = re.compile(r".+-shared-gpu-i?[0-9]{1,4}(?:-evar)?")
_MOST_GPUS: Final = 64
"""Maximum number of GPUs in a text."""


def is_shared_gpu(name: str) -> bool:
    """Whether a ConfigMap of this name may be one of these."""
    return "-shared-gpu-" in name and _NAME.fullmatch(name) is not None


def config_map_names(pod: Pod) -> tuple[str, ...]:
    """The names of the ConfigMaps of the container that has the GPUs; () if they are unknown."""
    prefix, container = pod.annotations.get(CONFIG_MAP, ""), fraction_container(pod)
    if not prefix or not container:
        return ()
    for kinds, letter in (((ContainerKind.APP,), ""), (_BEFORE, "i")):
        names = [each.name for each in pod.containers if each.kind in kinds]
        if container in names:
            name = f"{prefix}-{letter}{names.index(container)}"
            return name, f"{name}-evar"
    return ()


_BEFORE: Final = (ContainerKind.INIT, ContainerKind.SIDECAR)


def visible_gpus(pod: Pod, config_maps: ConfigMaps) -> tuple[str, ...]:
    """The UUIDs in the ConfigMaps of a pod; () if there are none, or one cannot be read."""
    for name in config_map_names(pod):
        data = config_maps.get((pod.ref.namespace, name), {})
        text = data.get(VISIBLE_DEVICES) or data.get(_OLD_VISIBLE) or ""
        parts = text.split(",", _MOST_GPUS) if text else []
        uuids = tuple(part.strip().rpartition("=")[2] for part in parts)
        if uuids and all(map(is_uuid, uuids)):
            return uuids
    return ()
