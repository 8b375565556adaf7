"""KAI Scheduler's keys and names. Pure.

Source: kai-scheduler/KAI-Scheduler, ``pkg/common/constants/constants.go`` and
``pkg/binder/binding/resourcereservation/resource_reservation.go`` (v0.17; v0.4 to v0.16 where a
name differs).
"""

from typing import Final

from vgpu.model.names import Scheme

KAI: Final = Scheme.named("kai")
"""The scheme of KAI's shares."""

FRACTION: Final = "gpu-fraction"
"""The annotation with a part of each GPU's memory, above 0 and below 1."""

MEMORY: Final = "gpu-memory"
"""The annotation with MiB of each GPU, in place of a part."""

DEVICES: Final = "gpu-fraction-num-devices"
"""The annotation with the number of GPUs."""

CONTAINER: Final = "gpu-fraction-container-name"
"""The annotation with the container that gets the GPUs, since v0.10."""

FRACTIONS: Final = (FRACTION, MEMORY)
"""Annotations by which users ask for a part of a GPU."""

GPU_GROUP: Final = "runai-gpu-group"
"""The label with a pod's GPU group; with ``/<group>`` behind it, of each of several."""

RECEIVED: Final = "received-resource-type"
"""The annotation with what a pod has received, ``Fraction`` or ``Regular``."""

CONFIG_MAP: Final = "runai/shared-gpu-configmap"
"""The annotation with the beginning of the names of a pod's ConfigMaps."""

RESERVED_GPU: Final = "run.ai/reserve_for_gpu_index"
"""The annotation with the UUID of the GPU that a reservation pod has; it is no index."""

RESERVATION: Final = ("app", "kai-resource-reservation")
"""The label of reservation pods, in one of :data:`RESERVATION_NAMESPACES`."""

RESERVATION_NAMESPACES: Final = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces of the reservation pods; the second is that of releases before v0.6."""

KAI_NAMESPACE: Final = "kai-scheduler"
"""The namespace of KAI's own programs."""

RESERVATION_NAME: Final = "gpu-reservation-"
"""The beginning of their names in all releases."""

MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
"""The label of nodes with the memory of a GPU in MiB, by GPU feature discovery."""
