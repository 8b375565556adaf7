"""A load for a GPU without any framework: holds memory, and computes for a part of the time.

    CUDA_VISIBLE_DEVICES=GPU-… python load.py --mib 512 --busy 0.3 --phase 0.5

It calls CUDA's driver API (``libcuda.so.1``) and needs the standard library only. When it holds
its memory it prints one line of JSON; it ends when its input ends. Kernels start at whole periods
of the clock plus the phase, so that two loads on one GPU do not overlap.
"""

import argparse
import ctypes
import json
import os
import select
import sys
import time
from typing import Any

PERIOD_SECONDS = 0.1
"""Interval between two kernels, in seconds: a fraction of the driver's sampling time."""

MIB = 1024 * 1024

SPIN = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .u64 %begin, %now, %limit;
    .reg .pred %running;
    ld.param.u64 %limit, [nanoseconds];
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %running, %now, %limit;
    @%running bra again;
    ret;
}
"""
"""A kernel that reads the GPU's clock until its time has passed. The driver compiles it."""


class CudaError(Exception):
    """A call failed; ``name`` is CUDA's name of the error."""

    def __init__(self, call: str, name: str) -> None:
        self.call = call
        self.name = name
        super().__init__(f"{call}: {name}")


class Cuda:
    """One context on the first visible GPU, with the kernel."""

    def __init__(self) -> None:
        """Raises OSError without a driver, CudaError."""
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(SPIN))
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"spin")

    def allocate(self, size: int) -> None:
        """Hold so many bytes of the GPU until the process ends. Raises CudaError."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))

    def spin(self, seconds: float) -> None:
        """Compute for so long. Raises CudaError."""
        nanoseconds = ctypes.c_uint64(int(seconds * 1e9))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(nanoseconds))
        one = ctypes.c_uint(1)
        shape = (one, one, one, one, one, one)
        none = ctypes.c_void_p()
        self._call("cuLaunchKernel", self._kernel, *shape, ctypes.c_uint(0), none, parameters, none)
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(name, (text.value or str(code).encode()).decode())


def ended(seconds: float) -> bool:
    """Whether the input ends within so many seconds."""
    ready, _, _ = select.select([0], [], [], max(0.0, seconds))
    return bool(ready) and not os.read(0, 4096)


def compute(cuda: Cuda, busy: float, phase: float) -> None:
    """Be busy for a part of each period until the input ends. Raises CudaError."""
    while True:
        now = time.time()
        begin = (now // PERIOD_SECONDS + phase) * PERIOD_SECONDS
        if begin <= now:
            begin += PERIOD_SECONDS
        if ended(begin - now):
            return
        cuda.spin(busy * PERIOD_SECONDS)


def main() -> int:
    """Run as a program; 4 if CUDA refuses something."""
    parser = argparse.ArgumentParser(description="A load for a GPU.")
    parser.add_argument("--mib", type=int, default=0, help="memory to hold beside the context")
    parser.add_argument("--busy", type=float, default=0.0, help="part of the time, 0 to 1")
    parser.add_argument("--phase", type=float, default=0.0, help="part of the period before it")
    parser.add_argument("--more-mib", type=int, default=0, help="then try to get so much more")
    options = parser.parse_args()
    ready: dict[str, Any] = {"pid": os.getpid(), "mib": options.mib}
    try:
        cuda = Cuda()
        if options.mib:
            cuda.allocate(options.mib * MIB)
        cuda.spin(0.001)
        if options.more_mib:
            ready["more"] = _name_of_refusal(cuda, options.more_mib)
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        if options.busy:
            compute(cuda, options.busy, options.phase)
        while not ended(3600):
            pass
    except (OSError, CudaError) as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        return 4
    return 0


def _name_of_refusal(cuda: Cuda, mib: int) -> str:
    try:
        cuda.allocate(mib * MIB)
    except CudaError as error:
        return error.name
    return "allocated"


if __name__ == "__main__":
    sys.exit(main())
