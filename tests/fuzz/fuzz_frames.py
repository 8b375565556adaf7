"""Coverage-guided fuzzing of Gemini's messages: ``fuzz_frames.py -max_total_time=30``.

Whatever the 80 bytes are, the answer is a request or a FrameError, and a request's times are within
the window. Exits non-zero on a finding, which is left in a file ``crash-…``.
"""

import os
import struct
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

with atheris.instrument_imports(include=["kubeshare.tokens.frames"]):
    from kubeshare.tokens import frames

WINDOW = 10_000_000
NAME = struct.pack("<Q", 4) + b"ns/a\0"
SEEDS = (
    NAME + struct.pack("<iidd", 1, 0, 2.5, 40.0),
    NAME + struct.pack("<ii", 2, 1),
    NAME + struct.pack("<iiQi", 3, 2, 1 << 30, 1),
)


def one_input(content):
    message = content[:80].ljust(80, b"\0")
    try:
        request = frames.decode(message)
    except frames.FrameError:
        return
    assert message[8:].startswith(request.name)
    if isinstance(request, frames.QuotaRequest):
        for is_swapped in (False, True):
            times, _ = frames.times(request, WINDOW, is_swapped=is_swapped)
            assert all(
                0 <= each <= WINDOW for each in (times.overuse or 0, times.burst, times.idle)
            )


def main():
    """Fuzz in a child: libFuzzer ends its process without leaving time to remove the files."""
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(SEEDS):
            Path(corpus, str(number)).write_bytes(seed.ljust(80, b"\0"))
        child = os.fork()
        if child == 0:
            atheris.Setup([*sys.argv, "-max_len=80", corpus], one_input)
            atheris.Fuzz()
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
