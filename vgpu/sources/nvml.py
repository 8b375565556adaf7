"""The NVIDIA driver, through nvidia-ml-py, which is imported in this file only.

Promises: one initialisation is kept as long as it works and never leaks; a lost GPU costs itself
and no other; a missing or reloaded driver is found again without a restart. A driver that was
replaced on disk cannot be: the library stays loaded, so SourceError(VERSION_MISMATCH) is final.
"""

import ctypes
import logging
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import combinations
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
import pynvml

from vgpu.model.facts import CallCost, GpuSample, XidCount
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.sources.nvml_calls import GONE, LOST, CallError, Code
from vgpu.sources.nvml_device import GpuReader, GpuReading
from vgpu.sources.nvml_processes import PROCESS, PROCESS_R530, SAMPLE
from vgpu.sources.nvml_queries import DRIVER_INFO, GPU, GPU_HEALTH, GPU_WITH_PCIE_THROUGHPUT
from vgpu.sources.nvml_xids import DOUBLE_BIT_ECC_ERROR, XidWatch

log = logging.getLogger(__name__)

MOST_GPUS = 256
MOST_ENTRIES = 65536  # of a list that the driver fills
LONGEST_PATIENCE = 256  # samples between two attempts to get a lost GPU back
LONGEST_PATIENCE_FOR_HEALTH = 16  # new pods wait for the GPU

# Not an NVMLError, and not there before nvidia-ml-py 12.550.
_MISMATCH: type[Exception] = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)


class _Cost(msgspec.Struct):
    """A CallCost that grows."""

    count: int = 0
    seconds: float = 0.0


class NvmlBinding:
    """nvidia-ml-py without its traps: each failure is a CallError, all calls are counted.

    Three calls go around it: nvidia-ml-py asks twice for each list, sizes the second answer too
    tightly, and knows the process layout of one release only; and it raises for each wait in which
    no event came.
    """

    def __init__(self) -> None:
        self._costs: dict[str, _Cost] = {}
        self._lock = threading.Lock()  # of the costs: XIDs are awaited in another thread
        self._absent: set[tuple[str, int]] = set()
        self._room: dict[str, int] = {}
        self._process_layout = PROCESS

    def initialise(self) -> None:
        """Load the library if need be, and begin a driver generation."""
        self._absent.clear()
        self.call("nvmlInit")
        r530 = self._has("nvmlDeviceGetConfComputeMemSizeInfo") and not self._has(
            "nvmlDeviceGetRunningProcessDetailList"
        )
        self._process_layout = PROCESS_R530 if r530 else PROCESS

    def costs(self) -> Mapping[str, CallCost]:
        """Count and seconds of each call so far."""
        with self._lock:
            return {name: CallCost(cost.count, cost.seconds) for name, cost in self._costs.items()}

    def call(self, name: str, *args: Any, read: Callable[[Any], Any] | None = None) -> Any:
        """The answer of a function of nvidia-ml-py, as ``read`` takes it."""
        request = (name, len(args))  # the same name may stand for several symbols
        function = getattr(pynvml, name, None)
        if function is None or request in self._absent:
            raise CallError(name, Code.FUNCTION_NOT_FOUND)
        try:
            answer = self._timed(name, function, *args)
            return answer if read is None else read(answer)
        except pynvml.NVMLError as error:
            if error.value == Code.FUNCTION_NOT_FOUND:
                self._note_absent(request)
            raise CallError(name, error.value) from error
        except _MISMATCH as error:
            self._note_absent(request)
            raise CallError(name, Code.FUNCTION_NOT_FOUND) from error
        except UnicodeDecodeError as error:  # a dying GPU, or a field read from it
            raise CallError(name, Code.UNKNOWN, "an answer that is not UTF-8") from error

    def processes(self, symbol: str, handle: Any) -> Iterator[tuple[int, ...]]:
        """A process list: tuples that begin with pid, used bytes, GPU and compute instance."""
        return self._filled(
            symbol, self._process_layout, lambda array, count: (handle, count, array)
        )

    def utilization(self, handle: Any, since: int) -> Iterator[tuple[int, ...]]:
        """Utilisation samples newer than ``since`` µs: tuples that begin with pid, time, SM %."""
        newer = ctypes.c_ulonglong(since)
        return self._filled(
            "nvmlDeviceGetProcessUtilization",
            SAMPLE,
            lambda array, count: (handle, array, count, newer),
        )

    def event(self, events: Any, milliseconds: int) -> Any:
        """The next event of the set; None if there is none in time, which is no exception."""
        name = "nvmlEventSetWait"
        wait = getattr(pynvml.nvmlLib, f"{name}_v2", None)
        if wait is None:
            raise CallError(name, Code.FUNCTION_NOT_FOUND)
        event = pynvml.c_nvmlEventData_t()
        code = self._timed(name, wait, events, ctypes.byref(event), ctypes.c_uint(milliseconds))
        if code == Code.TIMEOUT:
            return None
        if code != Code.SUCCESS:
            raise CallError(name, code)
        return event

    def _filled(
        self, symbol: str, layout: struct.Struct, arguments: Callable[[Any, Any], tuple[Any, ...]]
    ) -> Iterator[tuple[int, ...]]:
        """The array that a call fills; called once more with a larger array if it was too small."""
        request = (symbol, 0)
        if request in self._absent:
            raise CallError(symbol, Code.FUNCTION_NOT_FOUND)
        try:
            function = getattr(pynvml.nvmlLib, symbol)
        except AttributeError as error:
            self._note_absent(request)
            raise CallError(symbol, Code.FUNCTION_NOT_FOUND) from error
        code = Code.SUCCESS
        for _ in range(2):
            room = self._room.get(symbol, 64)
            array = ctypes.create_string_buffer(room * layout.size)
            count = ctypes.c_uint(room)
            code = self._timed(symbol, function, *arguments(array, ctypes.byref(count)))
            if code == Code.SUCCESS:
                return layout.iter_unpack(memoryview(array)[: count.value * layout.size])
            if code != Code.INSUFFICIENT_SIZE:
                break
            self._room[symbol] = min(2 * max(count.value, room), MOST_ENTRIES)
        raise CallError(symbol, code)

    def _timed(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        started = perf_counter()
        try:
            return function(*args)
        finally:
            seconds = perf_counter() - started
            with self._lock:
                cost = self._costs.get(name)
                if cost is None:
                    cost = self._costs[name] = _Cost()
                cost.count += 1
                cost.seconds += seconds

    def _has(self, symbol: str) -> bool:
        return hasattr(pynvml.nvmlLib, symbol)

    def _note_absent(self, request: tuple[str, int]) -> None:
        self._absent.add(request)
        log.info("function missing in driver", extra={"function": request[0]})


class _Found(NamedTuple):
    """The GPUs that can be identified, by index; the others' rejections; and how many are counted.

    ``counted`` is of nvmlDeviceGetCount, at most MOST_GPUS; each of these GPUs is in one of the
    two. NVML counts also GPUs whose handle it refuses, since its version 5.319: the
    documentation of nvmlDeviceGetCount_v2.
    """

    gpus: list[GpuReader]
    refused: dict[str, Rejection]
    counted: int


class _Generation:
    """One driver initialisation: the GPUs that it found, and those that it refused."""

    def __init__(self, number: int, found: "_Found") -> None:
        self.number = number
        self.gpus = found.gpus
        self.refused = found.refused
        self.counted = found.counted
        self.samples = 0
        self.ends_at: int | None = None  # the count of samples after which to start again


class NvmlSource:
    """The driver as a :class:`~vgpu.model.facts.GpuSource`.

    A GPU that is lost stays lost to a running initialisation, so the loss of one begins a new
    generation, at once for a fresh loss, then at ever longer intervals.
    """

    def __init__(
        self,
        *,
        slow_every: int = 4,
        pcie_throughput: bool = False,
        health_only: bool = False,
        longest_wait: float | None = None,
        without: Collection[str] = (),
    ) -> None:
        """Make a source that asks what hardly changes at every ``slow_every``-th sample only.

        ``pcie_throughput`` adds two calls for each GPU that hold the driver for 20 ms each.
        ``health_only`` asks for nothing but what there is to share and whether it is well, hears
        double-bit ECC events as well, and looks for a lost GPU more often. ``longest_wait`` is the
        maximum time of a wait for XIDs in seconds, two if it is not set. ``without`` are readings
        that nobody needs.
        """
        self._slow_every = slow_every
        self._tables = (GPU_WITH_PCIE_THROUGHPUT if pcie_throughput else GPU).without(without)
        self._longest_patience = LONGEST_PATIENCE
        self._binding = NvmlBinding()
        self._watch = XidWatch(self._binding, longest=longest_wait)
        if health_only:
            self._tables = GPU_HEALTH
            self._longest_patience = LONGEST_PATIENCE_FOR_HEALTH
            self._watch = XidWatch(self._binding, also=DOUBLE_BIT_ECC_ERROR)
        self._generation: _Generation | None = None
        self._begun = 0
        self._seen: dict[str, int] = {}  # UUID -> index of all GPUs that were ever identified
        self._lost: frozenset[str] = frozenset()
        self._patience = 1

    def sample(self, now: float) -> GpuSample:
        """Read everything once.

        Raises:
            SourceError: LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED or DRIVER_ERROR, which may pass;
                VERSION_MISMATCH, which only a new process can overcome.
        """
        try:
            return self._read(now)
        except CallError as error:
            self._end()
            if error.code == Code.LIB_RM_VERSION_MISMATCH:
                raise _translated(error) from error
        # The driver went away since the last sample: start again, once.
        try:
            return self._read(now)
        except CallError as error:
            self._end()
            raise _translated(error) from error

    def wait_xids(self, timeout: float) -> None:
        """Wait for an XID, for at most ``timeout`` or the longest wait."""
        self._watch.wait(timeout)

    def xids(self) -> tuple[XidCount, ...]:
        """All XIDs since start."""
        return self._watch.counts()

    def xids_watched(self) -> frozenset[str]:
        """The GPUs whose XIDs the event set reports."""
        return self._watch.heard

    def calls(self) -> Mapping[str, CallCost]:
        """Number and duration of the driver calls so far."""
        return self._binding.costs()

    def links(self) -> Mapping[tuple[str, str], int]:
        """The topology of the last sample's GPUs: an ``nvmlGpuTopologyLevel_t`` by two UUIDs.

        The GPU of the lower index comes first. A pair without an answer has no entry.
        Only the sampling thread may call it. Raises SourceError if the driver as a whole is gone.
        """
        return self._pairs("nvmlDeviceGetTopologyCommonAncestor")

    def nvlinks(self) -> Mapping[tuple[str, str], bool]:
        """Whether two of the last sample's GPUs reach each other over NVLink, by pair of UUIDs.

        Links through NVSwitch count, too. Otherwise like :meth:`links`.
        """
        statuses = self._pairs("nvmlDeviceGetP2PStatus", pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        return {pair: status == pynvml.NVML_P2P_STATUS_OK for pair, status in statuses.items()}

    def _pairs(self, function: str, *arguments: int) -> dict[tuple[str, str], int]:
        answers: dict[tuple[str, str], int] = {}
        gpus = self._generation.gpus if self._generation else ()
        for first, second in combinations(gpus, 2):
            try:
                answer: int = self._binding.call(function, first.handle, second.handle, *arguments)
            except CallError as error:
                if error.code in GONE:
                    raise _translated(error) from error
                log.debug("driver call failed", extra={"err": error})
            else:
                answers[first.uuid, second.uuid] = answer
        return answers

    def close(self) -> None:
        """Shut the driver down, once."""
        self._watch.close()
        if self._generation is not None:
            self._end()

    def _read(self, now: float) -> GpuSample:
        generation = self._generation
        if generation is not None and generation.samples == generation.ends_at:
            self._end()
            generation = None
        if generation is None:
            generation = self._generation = self._begin()
        slow = generation.samples % self._slow_every == 0
        generation.samples += 1
        readings: list[GpuReading] = []
        refused = dict(generation.refused)
        for gpu_reader in generation.gpus:
            try:
                readings.append(gpu_reader.read(now, slow=slow))
            except CallError as error:
                if error.code in GONE:
                    raise
                refused[gpu_reader.uuid] = Rejection(gpu_reader.uuid, Reason.GPU_LOST, str(error))
            self._seen[gpu_reader.uuid] = gpu_reader.index  # also of one that was never well
        answered = {reading.gpus[0].uuid for reading in readings}
        lost = tuple(uuid for uuid in self._seen if uuid not in answered)
        for uuid in lost:
            refused.setdefault(uuid, Rejection(uuid, Reason.GPU_LOST, "no longer listed"))
        self._plan_next(generation, frozenset(lost))
        return GpuSample(
            gpus=tuple(gpu for reading in readings for gpu in reading.gpus),
            lost=lost,
            processes=tuple(process for reading in readings for process in reading.processes),
            processes_known=frozenset(
                uuid for reading in readings for uuid in reading.processes_known
            ),
            unplaced=tuple(process for reading in readings for process in reading.unplaced),
            utilization={
                key: ratio for reading in readings for key, ratio in reading.utilization.items()
            },
            utilization_known=frozenset(
                uuid for reading in readings for uuid in reading.utilization_known
            ),
            generation=generation.number,
            counted=generation.counted,
            complete=all(object_name in self._seen for object_name in generation.refused),
            rejections=(
                *refused.values(),
                *(rejection for reading in readings for rejection in reading.rejections),
            ),
        )

    def _plan_next(self, generation: _Generation, lost: frozenset[str]) -> None:
        if not lost <= self._lost:
            generation.ends_at = generation.samples
            self._patience = 1
        elif not lost and not generation.refused:
            self._patience = 1
        elif generation.ends_at is None:
            generation.ends_at = generation.samples + self._patience
            self._patience = min(2 * self._patience, self._longest_patience)
        self._lost = lost

    def _begin(self) -> _Generation:
        try:
            self._binding.initialise()
        except CallError as error:
            raise _translated(error) from error
        try:
            found = self._enumerate()
        except CallError as error:
            self._shut_down()
            raise _translated(error) from error
        self._begun += 1
        self._watch.attach([(gpu.uuid, gpu.handle) for gpu in found.gpus])
        log.info("driver initialised", extra={"times": self._begun, "gpus": found.counted})
        return _Generation(self._begun, found)

    def _enumerate(self) -> _Found:
        """All GPUs that the driver counts."""
        count = min(self._binding.call("nvmlDeviceGetCount"), MOST_GPUS)
        info: dict[str, str] = {}
        for key, (call, read) in DRIVER_INFO.items():
            try:
                info[key] = self._binding.call(call, read=read)
            except CallError as error:
                error.unless_fatal()
        gpus: dict[str, GpuReader] = {}
        refused: dict[str, Rejection] = {}
        for index in range(count):
            object_name = f"GPU at index {index}"
            try:
                handle = self._binding.call("nvmlDeviceGetHandleByIndex", index)
                uuid: str = self._binding.call("nvmlDeviceGetUUID", handle)
            except CallError as error:
                if error.code in GONE:
                    raise
                reason = Reason.GPU_LOST if error.code in LOST else Reason.DRIVER_ERROR
                refused[object_name] = Rejection(object_name, reason, str(error))
                continue
            if uuid in gpus:
                refused[object_name] = Rejection(object_name, Reason.DUPLICATE_UUID, uuid)
                continue
            gpus[uuid] = GpuReader(self._binding, (uuid, index, handle), self._tables, info)
        # A GPU that had this index before, and is at no other now, is the one refused.
        for uuid, index in self._seen.items():
            rejection = refused.get(f"GPU at index {index}")
            if rejection is not None and uuid not in gpus:
                del refused[rejection.object_name]
                refused[uuid] = Rejection(uuid, rejection.reason, rejection.detail)
        return _Found(list(gpus.values()), refused, count)

    def _end(self) -> None:
        self._watch.detach()
        self._shut_down()
        self._generation = None

    def _shut_down(self) -> None:
        try:
            self._binding.call("nvmlShutdown")
        except CallError as error:  # it had forgotten us already
            log.debug("driver call failed", extra={"err": error})


def _translated(error: CallError) -> SourceError:
    reason = Reason.GPU_LOST if error.code in LOST else GONE.get(error.code, Reason.DRIVER_ERROR)
    return SourceError(reason, error.call, error.detail)
