"""Coverage-guided fuzzing of the region reader: ``fuzz_region.py -max_total_time=60 -seed=1``.

A region file has up to 2 MB, nearly all of it slots that nobody reads. So an input is a list of
patches over a valid file of one of the layouts: to its header, its first slots and its trailer.
The real reader reads the real file; anything but a region or a SourceError is a finding, and
the process then ends with a non-zero status, as libFuzzer does.
"""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

with atheris.instrument_imports(include=["vgpu.schemes.volcano.hami_core", "vgpu.sources.regions"]):
    from vgpu.model.facts import Region
    from vgpu.model.reasons import SourceError
    from vgpu.schemes.volcano import hami_core
    from vgpu.sources import regions

from tests.support.regions import a_process, a_region, write

MAX_PATCHES = 8
MAX_PATCH_BYTES = 24
PROCESSES = 3


class Target:
    """A valid file of one layout, which every input breaks in another way."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.path = folder / f"{layout}.cache"
        processes = [a_process(layout, pid=pid) for pid in range(1, 1 + PROCESSES)]
        write(self.path, a_region(layout, processes=processes))
        self.fd = os.open(self.path, os.O_RDWR)
        frame = hami_core.LAYOUTS[layout].frame
        slots_end = frame.slots + frame.slot_size * PROCESSES
        # What is read, piece by piece, so that a short number chooses an interesting offset.
        self.areas = (
            (0, frame.uuids + hami_core.UUID_BYTES * 3),
            (frame.memory_limits, frame.slots),
            (frame.slots, slots_end),
            (frame.trailer, frame.file_size),
        )

    def check(self, data: atheris.FuzzedDataProvider) -> None:
        """Patch, read, restore."""
        undo = []
        for _ in range(data.ConsumeIntInRange(0, MAX_PATCHES)):
            start, end = self.areas[data.ConsumeIntInRange(0, len(self.areas) - 1)]
            at = data.ConsumeIntInRange(start, end - 1)
            patch = data.ConsumeBytes(data.ConsumeIntInRange(1, MAX_PATCH_BYTES))[: end - at]
            undo.append((at, os.pread(self.fd, len(patch), at)))
            os.pwrite(self.fd, patch, at)
        try:
            with contextlib.suppress(SourceError):
                region = regions.read_region(str(self.path))
                if not isinstance(region, Region):
                    raise TypeError(region)
                self.must_be_plausible(region)
        finally:
            for at, original in reversed(undo):
                os.pwrite(self.fd, original, at)

    @staticmethod
    def must_be_plausible(region: Region) -> None:
        """What no accepted region may say, whatever its bytes are."""
        if not (1 <= len(region.devices) <= 16 and region.proc_num == len(region.processes)):
            raise ValueError(region)
        for process in region.processes:
            for use in process.used:
                counters = (use.context, use.module, use.data, use.offset, use.total)
                known = [counter for counter in counters if counter is not None]
                is_whole = len(known) == len(counters)
                if any(not 0 <= counter <= 2**53 for counter in known) or (
                    is_whole and sum(counters[:3]) > use.total
                ):
                    raise ValueError(use)


def fuzz(folder: Path) -> None:
    """Hand over to libFuzzer, which ends the process when its arguments say that it is enough."""
    regions.PAUSE_SECONDS = 0
    targets = [Target(folder, layout) for layout in hami_core.LAYOUTS]

    def test_one_input(data: bytes) -> None:
        provider = atheris.FuzzedDataProvider(data)
        targets[provider.ConsumeIntInRange(0, len(targets) - 1)].check(provider)

    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()


def main() -> None:
    """Fuzz in a child, because libFuzzer's way to end leaves no time to remove the files."""
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child == 0:
            fuzz(Path(folder))
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
