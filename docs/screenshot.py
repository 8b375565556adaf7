"""Writes docs/status-page.png, the page of a running demo in Debian's Chromium, and of it
docs/gpu-shares.png, its first GPU.

    python docs/screenshot.py

The picture is made small for the repository: of a page with few colours, as this one, a palette of
256 shows every plane as it is and rounds only the edges of letters.
"""

import struct
import sys
import tempfile
import zlib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from tests.e2e.chromium import Chromium, pixels  # noqa: E402
from tests.e2e.running_demo import COMMAND, LISTEN, RunningDemo  # noqa: E402

PICTURES = {"status-page.png": "main", "gpu-shares.png": "section:nth-of-type(2)"}
"""The element of the page that each picture shows, by the file's name."""

WIDTH = 1100
MAX_BYTES = 150_000
AS_PEOPLE_RUN_IT = ("env", "TMPDIR=/tmp", *COMMAND, LISTEN)
"""The page tells paths below the demo's folder: where a person's demo lies, not where a test's."""


def screenshots() -> dict[str, bytes]:
    """The browser's own PNG of each element, in light colours."""
    with tempfile.TemporaryDirectory(prefix="vgpu-screenshot-") as name:
        folder = Path(name)
        with RunningDemo(folder, AS_PEOPLE_RUN_IT) as demo, Chromium(folder) as browser:
            tab = browser.open(demo.url, width=WIDTH, height=800)
            pictures = {}
            for file, element in PICTURES.items():
                top, bottom = tab.value(
                    f"(r => [Math.floor(r.top), Math.ceil(r.bottom)])"
                    f"(document.querySelector({element!r}).getBoundingClientRect())"
                )
                top = 0 if element == "main" else top
                pictures[file] = tab.screenshot(x=0, y=top, width=WIDTH, height=bottom - top)
            return pictures


def with_palette(png: bytes) -> bytes:
    """The same picture in 256 colours: near ones become the most frequent of them."""
    rows = pixels(png)
    frequent = Counter(colour for row in rows for colour in row).most_common()
    for bits in range(9):
        nearest: dict[tuple[int, ...], tuple[int, ...]] = {}
        for colour, _ in frequent:
            nearest.setdefault(tuple(part >> bits for part in colour), colour)
        if len(nearest) <= 256:
            break
    palette = {colour: number for number, colour in enumerate(nearest.values())}
    number = {
        colour: palette[nearest[tuple(part >> bits for part in colour)]] for colour, _ in frequent
    }
    lines = b"".join(b"\0" + bytes(number[colour] for colour in row) for row in rows)
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", b"".join(map(bytes, palette))),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def main() -> int:
    """Take them, shrink them, write them."""
    pictures = {file: with_palette(png) for file, png in screenshots().items()}
    for file, picture in pictures.items():
        if len(picture) > MAX_BYTES:
            print(f"{file}: {len(picture)} bytes are more than {MAX_BYTES}", file=sys.stderr)
            return 1
    for file, picture in pictures.items():
        (HERE / file).write_bytes(picture)
        print(f"{HERE / file}: {len(picture)} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
