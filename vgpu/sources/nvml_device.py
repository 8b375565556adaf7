"""Reads one GPU, with its MIG instances and processes, one driver call at a time.

Promises: a reading that fails costs that reading and no other; what a device does not support is
asked once; a GPU that is gone is never half read, it raises CallError.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from vgpu.model.facts import Gpu, GpuProcess
from vgpu.model.reasons import Reason, Rejection
from vgpu.sources.nvml_calls import UNSUPPORTED, CallError, Code, NvmlDriver
from vgpu.sources.nvml_processes import InvalidListError, Merged, merge, newest
from vgpu.sources.nvml_queries import (
    INSTANCE,
    MEMORY_TOTAL,
    MIG_MODE,
    Number,
    Query,
    Tables,
    implausible,
    measured,
)

COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"
GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses_v3"
MPS_CLIENTS = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
PROCESS_LISTS = (
    COMPUTE,
    GRAPHICS,
    MPS_CLIENTS,
)
MOST_INSTANCES = 64  # no GPU has had more than 7
CLOCK_SLACK_SECONDS = 60
RARE_EVERY = 10
"""Number of slow samples between two readings of what never changes while the driver runs."""

Readings = dict[tuple[str, ...], Number]

Trouble = tuple[Reason, str]
"""Why a reading is missing: the driver's error, or a number that cannot be, in words."""


class GpuReading(msgspec.Struct, frozen=True):
    """One pass over one GPU; the fields are those of GpuSample."""

    gpus: tuple[Gpu, ...]
    processes: tuple[GpuProcess, ...]
    processes_known: tuple[str, ...]
    unplaced: tuple[GpuProcess, ...]
    utilization: Mapping[tuple[int, str], float]
    utilization_known: tuple[str, ...]
    rejections: tuple[Rejection, ...]


class DeviceReader:
    """The readings of a GPU or MIG instance, while its handle is valid."""

    def __init__(
        self,
        driver: NvmlDriver,
        identity: tuple[str, int, Any],
        tables: Tables,
        info: Mapping[str, str],
        parent: str = "",
    ) -> None:
        """Take (uuid, index, handle), the queries, and the info that is known already."""
        self.uuid, self.index, self.handle = identity
        self.info = dict(info)
        self.errors: list[Trouble] = []
        self._driver = driver
        self._parent = parent
        self._tables = tables
        self._slow_readings: Readings = {}
        self._rare_readings: Readings = {}
        self._slow_errors: list[Trouble] = []
        self._rare_errors: list[Trouble] = []
        self._reset()

    def _reset(self) -> None:
        """Ask for everything again: what is supported may have changed."""
        self._fast = list(self._tables.fast)
        self._slow = list(self._tables.slow)
        self._rare = list(self._tables.rare)
        self._slow_samples = 0
        self._unknown = dict(self._tables.info)

    def gpu(self, *, slow: bool) -> Gpu:
        """The device with its readings; with ``slow`` also those that hardly change."""
        self.errors = []
        readings = self._ask(self._fast, self.errors)
        if slow:
            self._slow_errors = []
            self._slow_readings = self._ask(self._slow, self._slow_errors)
            self.identify(self._slow_errors)
            if self._slow_samples % RARE_EVERY == 0 or self._rare_errors:
                self._rare_errors = []
                self._rare_readings = self._ask(self._rare, self._rare_errors)
            self._slow_samples += 1
        self.errors += self._slow_errors
        self.errors += self._rare_errors
        readings.update(self._slow_readings)
        readings.update(self._rare_readings)
        return Gpu(self.uuid, self.index, self.info, readings, self._parent)

    def _ask(self, queries: list[Query], errors: list[Trouble]) -> Readings:
        """The answers, with ``queries`` cut down to those that are supported."""
        readings: Readings = {}
        supported: list[Query] = []
        for first in queries:
            query: Query | None = first
            while query is not None:
                try:
                    answer = self._answer(query)
                except CallError as error:
                    if error.code in UNSUPPORTED:
                        query = query.otherwise
                        continue
                    errors.append((Reason.DRIVER_ERROR, error.unless_fatal()))
                else:
                    values: Readings = {}
                    for key, read in query.parts.items():
                        value = read(answer)
                        if value is not None:
                            values[key] = value
                    values = measured(values)
                    for key, text in implausible(values).items():
                        errors.append((Reason.IMPLAUSIBLE, text))
                        del values[key]
                    readings.update(values)
                supported.append(query)
                break
        queries[:] = supported
        return readings

    def _answer(self, query: Query) -> Any:
        if query.each is None:
            return self._driver.call(query.call, self.handle, *query.args)
        answers: list[Any] = []
        for value in query.each:
            try:
                answers.append(self._driver.call(query.call, self.handle, *query.args, value))
            except CallError as error:
                if answers and (error.code in UNSUPPORTED or error.code == Code.INVALID_ARGUMENT):
                    break
                raise
        return answers

    def identify(self, errors: list[Trouble]) -> None:
        """Read what is not known yet of the device's identity."""
        for key, (call, read) in tuple(self._unknown.items()):
            try:
                text = self._driver.call(call, self.handle, read=read)
            except CallError as error:
                if error.code not in UNSUPPORTED:
                    errors.append((Reason.DRIVER_ERROR, error.unless_fatal()))
                    continue
            else:
                self.info = {**self.info, key: text} if text else self.info
            del self._unknown[key]


class GpuReader(DeviceReader):
    """A GPU with its MIG instances and processes."""

    _mig = False

    def _reset(self) -> None:
        super()._reset()
        self._lists = list(PROCESS_LISTS) if self._tables.processes else []
        self._has_utilization = self._tables.processes
        self._since = 0
        self._instances: dict[str, DeviceReader] = {}

    def read(self, now: float, *, slow: bool) -> GpuReading:
        """Read all. Raises CallError if the GPU, or the driver as a whole, is gone."""
        gpu = self.gpu(slow=slow)
        mig = bool(gpu.readings.get(MIG_MODE, self._mig))  # as before, if the question failed
        if mig != self._mig:
            self._mig = mig
            self._reset()
        instances = self._enumerate(slow=slow) if mig else ()
        parts = tuple(instance.gpu(slow=False) for instance in instances or ())
        for instance in instances or ():
            self.errors += instance.errors
        rejections: list[Rejection] = []
        merged: Merged | None = None
        if instances is not None:
            try:
                merged = self._processes(parts if mig else None, gpu.readings.get(MEMORY_TOTAL))
            except InvalidListError as error:
                rejections.append(Rejection(self.uuid, Reason.PROCESS_LIST_INVALID, str(error)))
        rejections += (
            Rejection(self.uuid, Reason.PROCESS_LIST_INVALID, text)
            for text in (merged.errors if merged else ())
        )
        utilization = None if mig else self._utilization(now)  # MIG: not supported, see nvml.h
        for reason in dict.fromkeys(reason for reason, _ in self.errors):
            texts = (text for of, text in self.errors if of is reason)
            rejections.append(Rejection(self.uuid, reason, "; ".join(texts)))
        known = tuple(part.uuid for part in parts) if mig else (self.uuid,)
        return GpuReading(
            gpus=(gpu, *parts),
            processes=merged.processes if merged else (),
            processes_known=known if merged else (),
            unplaced=merged.unplaced if merged else (),
            utilization={(pid, self.uuid): ratio for pid, ratio in (utilization or {}).items()},
            utilization_known=() if utilization is None else (self.uuid,),
            rejections=tuple(rejections),
        )

    def _ask(self, queries: list[Query], errors: list[Trouble]) -> Readings:
        """As of any device. Raises CallError, too, if the handle is of no GPU any more.

        A GPU that was removed and inserted again has a new handle.
        """
        before = len(errors)
        readings = super()._ask(queries, errors)
        if not readings and len(errors) > before:
            try:
                self._driver.call("nvmlDeviceGetUUID", self.handle)
            except CallError as error:
                if error.code == Code.INVALID_ARGUMENT:
                    raise
                errors.append((Reason.DRIVER_ERROR, error.unless_fatal()))
        return readings

    def _enumerate(self, *, slow: bool) -> tuple[DeviceReader, ...] | None:
        """The GPU's MIG instances now, in their order; None if they are unknown.

        Handles are asked for each time: instances come and go without a new driver generation.
        """
        before, self._instances = {} if slow else self._instances, {}
        try:
            most: int = self._driver.call("nvmlDeviceGetMaxMigDeviceCount", self.handle)
            for index in range(min(most, MOST_INSTANCES)):
                try:
                    handle = self._driver.call(
                        "nvmlDeviceGetMigDeviceHandleByIndex", self.handle, index
                    )
                except CallError as error:
                    if error.code == Code.NOT_FOUND:
                        continue
                    raise
                uuid: str = self._driver.call("nvmlDeviceGetUUID", handle)
                instance = before.get(uuid)
                if instance is None:
                    identity = (uuid, index, handle)
                    instance = DeviceReader(self._driver, identity, INSTANCE, self.info, self.uuid)
                    instance.identify(self.errors)
                instance.handle = handle
                self._instances[uuid] = instance
        except CallError as error:
            self.errors.append((Reason.DRIVER_ERROR, error.unless_fatal()))
            return None
        return tuple(self._instances.values())

    def _processes(self, parts: Sequence[Gpu] | None, total: Number | None) -> Merged | None:
        """The processes on the GPU, or with MIG on its ``parts``; None if they are unknown."""
        lists: list[tuple[bool, Iterable[tuple[int, ...]]]] = []
        complete = True
        clients: set[int] = set()
        for symbol in tuple(self._lists):
            try:
                entries = [*self._driver.processes(symbol, self.handle)]
                lists.append((symbol == GRAPHICS, entries))
                if symbol == MPS_CLIENTS:
                    clients.update(pid for pid, *_ in entries)
            except CallError as error:
                if error.code in UNSUPPORTED:
                    self._lists.remove(symbol)
                else:
                    self.errors.append((Reason.DRIVER_ERROR, error.unless_fatal()))
                    complete = False
        if not complete or COMPUTE not in self._lists:
            return None
        places = None if parts is None else {_instance_ids(part): part.uuid for part in parts}
        return merge(lists, self.uuid, places, total, clients)

    def _utilization(self, now: float) -> dict[int, float] | None:
        """SM utilisation by pid since the last time; None if it is unknown."""
        if not self._has_utilization:
            return None
        until = int((now + CLOCK_SLACK_SECONDS) * 1_000_000)
        since = self._since if self._since <= until else 0  # the clock was set back
        try:
            samples = self._driver.utilization(self.handle, since)
        except CallError as error:
            if error.code == Code.NOT_FOUND:  # all were idle
                return {}
            if error.code in UNSUPPORTED:
                self._has_utilization = False
            else:
                self.errors.append((Reason.DRIVER_ERROR, error.unless_fatal()))
            return None
        latest, self._since = newest(samples, since, until)
        return latest


def _instance_ids(part: Gpu) -> tuple[int, int]:
    """GPU and compute instance as in process lists; -1 is none."""
    gpu_instance = part.info.get("gpu_instance_id", "-1")
    return int(gpu_instance), int(part.info.get("compute_instance_id", "-1"))
