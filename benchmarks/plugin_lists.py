"""The costs of long lists of device IDs for the device plugin: advertising, and the checkpoint.

    python benchmarks/plugin_lists.py [--runs 10]

The times are CPU times of this process, best and median of the runs; budgets are compared with the
best. The node has 8 GPUs in about 60,000 units of memory, nearly the most that the kubelet takes.
Memory is the growth of the resident set at its peak while the list is built, with the finished
list.

The checkpoint is of the same node, full: 240 containers, all IDs allocated, 6 MB. The plugin reads
the assignments of its binding resource from it, after every Allocate of any plugin on the node.
The other measurement is the reader that verifies the checksum, which runs at the plugin's start.

There is no peer to compare with: the originals build lists in Go and do not read the checkpoint.
"""

import argparse
import base64
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.budgets import Budgets  # noqa: E402
from deviceplugin.kubelet.container_devices import read_assignments  # noqa: E402
from deviceplugin.kubelet.device_lists import AdvertisedList, TooLong, offered  # noqa: E402
from deviceplugin.kubelet.responses import answer  # noqa: E402
from vgpu.model.allocation import Device  # noqa: E402
from vgpu.model.reasons import Reason, SourceError  # noqa: E402
from vgpu.model.units import GIB, MIB  # noqa: E402
from vgpu.schemes.codec import NO_DEVICES, VISIBLE_DEVICES, ContainerEdits  # noqa: E402
from vgpu.schemes.volcano.codec import Volcano  # noqa: E402
from vgpu.sources.kubelet_checkpoint import parse_checkpoint  # noqa: E402

LIST_BUDGET_MS, REFUSAL_BUDGET_MS, ASSIGNMENTS_BUDGET_MS = 500, 2000, 50
LIST_BUDGET_MIB = 16

GPUS, CONTAINERS = 8, 240
FACTOR = 11  # MiB
NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
GPU_BYTES = 80 * GIB


def gpu(number, memory_bytes):
    uuid = f"GPU-{number:08x}-0000-4000-8000-{number:012x}"
    return Device(uuid, number, memory_bytes, slots=CONTAINERS // GPUS)


def full_checkpoint(codec, gpus):
    """The checkpoint that the kubelet writes when every ID is allocated."""
    edits = ContainerEdits({VISIBLE_DEVICES: NO_DEVICES})
    numbers, units = (list(codec.device_ids(name, gpus)) for name in (NUMBER, MEMORY))
    units_each = len(units) // CONTAINERS
    entries = []
    for at in range(CONTAINERS):
        response = answer(f"{at:024x}", edits, cdi=True).SerializeToString()
        of_resources = (
            (NUMBER, numbers[at : at + 1], base64.b64encode(response).decode()),
            (MEMORY, units[at * units_each : (at + 1) * units_each], ""),
        )
        entries += [
            {
                "PodUID": f"{at:08x}-1111-4222-8333-000000000000",
                "ContainerName": "main",
                "ResourceName": name,
                "DeviceIDs": {"-1": ids},
                "AllocResp": text,
            }
            for name, ids, text in of_resources
        ]
    data = {"PodDeviceEntries": entries, "RegisteredDevices": {NUMBER: numbers, MEMORY: units}}
    return json.dumps({"Data": data, "Checksum": 0}, separators=(",", ":")).encode()


def verified(content):
    """Read the checkpoint with its checksum, which is wrong: that is found at the end."""
    try:
        parse_checkpoint(content)
    except SourceError as error:
        return error.reason


def cpu_seconds(work, runs):
    """CPU seconds of each run, and the last result."""
    taken = []
    for _ in range(runs):
        started = time.process_time()
        result = work()
        taken.append(time.process_time() - started)
    return taken, result


class ListsReport:
    """The lines of the table."""

    def __init__(self):
        self.budgets = Budgets()
        print(f"{'':<58} {'best':>12} {'median':>12}")

    def line(self, what, taken, most=None):
        best, median = min(taken) * 1000, statistics.median(taken) * 1000
        held = "" if most is None else f"   {self.budgets.hold(what, best, most, 'ms')}"
        print(f"{what:<58} {best:>9.1f} ms {median:>9.1f} ms{held}")


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()

    report = ListsReport()
    codec = Volcano(memory_factor=FACTOR)
    gpus = tuple(gpu(number, GPU_BYTES) for number in range(GPUS))
    before = peak_mib()
    taken, listed = cpu_seconds(lambda: offered(codec, MEMORY, gpus), options.runs)
    grown = peak_mib() - before
    assert isinstance(listed, AdvertisedList), listed
    what = f"list: {listed.healthy:,} IDs, {len(listed.message) / MIB:.1f} MiB, encoded"
    report.line(what, taken, LIST_BUDGET_MS)
    held = report.budgets.hold("list, memory", grown, LIST_BUDGET_MIB, "MiB")
    print(f"{'list: memory at the peak':<58} {grown:>8.1f} MiB {'':>12}   {held}")

    large = tuple(gpu(number, 140 * GIB) for number in range(GPUS))
    taken, refused = cpu_seconds(lambda: offered(Volcano(memory_factor=1), MEMORY, large), 3)
    assert isinstance(refused, TooLong), refused
    report.line(f"list: {refused.count:,} IDs refused", taken, REFUSAL_BUDGET_MS)

    content = full_checkpoint(codec, gpus)
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        taken, found = cpu_seconds(lambda: read_assignments(file.name, NUMBER), options.runs)
    assert len(found) == CONTAINERS, len(found)
    what = f"checkpoint: {len(content) / 1e6:.1f} MB, {len(found)} assignments of one resource"
    report.line(what, taken, ASSIGNMENTS_BUDGET_MS)
    taken, reason = cpu_seconds(lambda: verified(content), 3)
    assert reason is Reason.CHECKSUM_MISMATCH, reason
    report.line("checkpoint: the same, all of it verified", taken)
    return report.budgets.status()


if __name__ == "__main__":
    sys.exit(main())
