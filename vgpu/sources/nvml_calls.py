"""The answers of a driver call: NVML's return codes, in the groups that matter to us."""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, Protocol

from vgpu.model.reasons import Reason


class Code(IntEnum):
    """``nvmlReturn_t`` of NVIDIA's ``nvml.h``: the codes that are distinguished here."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    VGPU_ECC_NOT_SUPPORTED = 22
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


_NAMES: dict[int, str] = {code.value: code.name for code in Code}

UNSUPPORTED: frozenset[int] = frozenset(
    {
        Code.NOT_SUPPORTED,
        Code.FUNCTION_NOT_FOUND,
        Code.VGPU_ECC_NOT_SUPPORTED,
        Code.ARGUMENT_VERSION_MISMATCH,
        Code.DEPRECATED,
    }
)
"""The device or the driver has no answer, and will have none until it is loaded again."""

LOST: frozenset[int] = frozenset({Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.GPU_NOT_FOUND})
"""This device is gone; the others are not concerned."""

GONE: dict[int, Reason] = {
    Code.UNINITIALIZED: Reason.DRIVER_NOT_LOADED,
    Code.DRIVER_NOT_LOADED: Reason.DRIVER_NOT_LOADED,
    Code.LIBRARY_NOT_FOUND: Reason.LIBRARY_NOT_FOUND,
    Code.LIB_RM_VERSION_MISMATCH: Reason.VERSION_MISMATCH,
}
"""The driver as a whole is gone or was replaced, and why."""


class CallError(Exception):
    """A driver call failed.

    Attributes:
        call: the function's name.
        code: NVML's return code; UNKNOWN where the answer could not be decoded.
        detail: what went wrong, in words.
    """

    def __init__(self, call: str, code: int, detail: str = "") -> None:
        self.call = call
        self.code = code
        self.detail = detail or f"{_NAMES.get(code, 'NVML error')} ({code})"
        super().__init__(f"{call}: {self.detail}")

    def unless_fatal(self) -> str:
        """The message, if only this one reading failed; raises if a device or all is gone."""
        if self.code in LOST or self.code in GONE:
            raise self
        return str(self)


class NvmlDriver(Protocol):
    """The binding, as those who read devices through it see it. Everything raises CallError."""

    def call(self, name: str, *args: Any, read: Callable[[Any], Any] = ...) -> Any:
        """The answer of a function of nvidia-ml-py, as ``read`` takes it."""
        ...

    def processes(self, symbol: str, handle: Any) -> Iterator[tuple[int, ...]]:
        """A process list: tuples that begin with pid, used bytes, GPU and compute instance."""
        ...

    def utilization(self, handle: Any, since: int) -> Iterator[tuple[int, ...]]:
        """Utilisation samples newer than ``since`` µs: tuples that begin with pid, time, SM %."""
        ...

    def event(self, events: Any, milliseconds: int) -> Any:
        """The next event of the event set, as nvidia-ml-py has it; None if none came in time."""
        ...
