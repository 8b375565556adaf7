# What vgpu uses of nvidia-ml-py by name; its functions are looked up by their names, as data.

import ctypes

nvmlLib: ctypes.CDLL | None  # noqa: N816  # its name

NVML_P2P_CAPS_INDEX_NVLINK: int
NVML_P2P_STATUS_OK: int

class NVMLError(Exception):
    value: int

class c_nvmlEventData_t(ctypes.Structure): ...  # noqa: N801  # its name
