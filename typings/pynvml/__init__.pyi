# What vgpu uses of nvidia-ml-py by name; its functions are looked up by their names, as data.

import ctypes

nvmlLib: ctypes.CDLL | None  # noqa: N816  # its name

class NVMLError(Exception):
    value: int
