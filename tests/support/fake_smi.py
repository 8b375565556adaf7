"""A stand-in for ``nvidia-smi``: the fields that the GPU kit asks for, in its form, from any NVML.

It asks by itself (nvidia-ml-py, not our table), as the original does, and prints what the original
prints: MiB, percent, W, MHz, words.
"""

import sys
from pathlib import Path

import pynvml

MIB = 1024 * 1024
STATES = {0: "Disabled", 1: "Enabled"}
ANSWERS = {0: "No", 1: "Yes"}


def clock(kind, ask="nvmlDeviceGetClockInfo"):
    return lambda gpu: getattr(pynvml, ask)(gpu, kind)


def ecc(kind, life):
    return lambda gpu: pynvml.nvmlDeviceGetTotalEccErrors(gpu, kind, life)


def remapped(place, words=None):
    def text(gpu):
        value = pynvml.nvmlDeviceGetRemappedRows(gpu)[place]
        return words[value] if words else value

    return text


def memory(gpu):
    return pynvml.nvmlDeviceGetMemoryInfo(gpu, 0x02000028)


def event(mask):
    def text(gpu):
        active = pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) & mask
        return "Active" if active else "Not Active"

    return text


FIELDS = {
    "uuid": pynvml.nvmlDeviceGetUUID,
    "name": pynvml.nvmlDeviceGetName,
    "serial": pynvml.nvmlDeviceGetSerial,
    "vbios_version": pynvml.nvmlDeviceGetVbiosVersion,
    "pci.bus_id": lambda gpu: pynvml.nvmlDeviceGetPciInfo(gpu).busId,
    "driver_version": lambda _: pynvml.nvmlSystemGetDriverVersion(),
    "memory.total": lambda gpu: memory(gpu).total // MIB,
    "memory.used": lambda gpu: memory(gpu).used // MIB,
    "memory.free": lambda gpu: memory(gpu).free // MIB,
    "memory.reserved": lambda gpu: memory(gpu).reserved // MIB,
    "utilization.gpu": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "utilization.memory": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).memory,
    "temperature.gpu": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, 0),
    "power.draw": lambda gpu: f"{pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000:.2f}",
    "enforced.power.limit": lambda gpu: f"{pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000:.2f}",
    "fan.speed": pynvml.nvmlDeviceGetFanSpeed,
    "pstate": lambda gpu: f"P{pynvml.nvmlDeviceGetPerformanceState(gpu)}",
    "mig.mode.current": lambda gpu: STATES[pynvml.nvmlDeviceGetMigMode(gpu)[0]],
    "clocks.current.graphics": clock(0),
    "clocks.current.sm": clock(1),
    "clocks.current.memory": clock(2),
    "clocks.current.video": clock(3),
    "clocks.max.sm": clock(1, "nvmlDeviceGetMaxClockInfo"),
    "clocks.max.memory": clock(2, "nvmlDeviceGetMaxClockInfo"),
    "clocks_event_reasons.gpu_idle": event(0x1),
    "clocks_event_reasons.sw_power_cap": event(0x4),
    "ecc.errors.corrected.volatile.total": ecc(0, 0),
    "ecc.errors.uncorrected.aggregate.total": ecc(1, 1),
    "retired_pages.pending": lambda gpu: ANSWERS[
        pynvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu)
    ],
    "remapped_rows.correctable": remapped(0),
    "remapped_rows.pending": remapped(2, ANSWERS),
    "pcie.link.gen.current": pynvml.nvmlDeviceGetCurrPcieLinkGeneration,
    "pcie.link.width.current": pynvml.nvmlDeviceGetCurrPcieLinkWidth,
}


def printed(field, gpu):
    try:
        return str(FIELDS[field](gpu))
    except pynvml.NVMLError:
        return "[N/A]"


def main(arguments):
    if arguments == ["--help-query-gpu"]:
        print("List of valid properties to query for the switch --query-gpu:\n")
        for field in FIELDS:
            print(f'"{field}"\nWhat it is.\n')
        return 0
    (query,) = (word.partition("=")[2] for word in arguments if word.startswith("--query-gpu="))
    for field in query.split(","):
        if field not in FIELDS:
            print(f'Field "{field}" is not a valid field to query.')
            return 2
    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        print(", ".join(printed(field, gpu) for field in query.split(",")))
    return 0


def install(folder):
    """Put a program called ``nvidia-smi`` into a folder."""
    program = Path(folder, "nvidia-smi")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$@"\n')
    program.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
