"""Writes docs/status-page.png: the page of a running demo in Debian's Chromium.

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

PICTURE = HERE / "status-page.png"
WIDTH = 1100
MAX_BYTES = 150_000
AS_PEOPLE_RUN_IT = ("env", "TMPDIR=/tmp", *COMMAND, LISTEN)
"""The page tells paths below the demo's folder: where a person's demo lies, not where a test's."""


def screenshot() -> bytes:
    """The whole page as the browser's own PNG, in light colours."""
    with tempfile.TemporaryDirectory(prefix="vgpu-screenshot-") as name:
        folder = Path(name)
        with RunningDemo(folder, AS_PEOPLE_RUN_IT) as demo, Chromium(folder) as browser:
            tab = browser.open(demo.url, width=WIDTH, height=800)
            height = tab.value(
                "Math.ceil(document.querySelector('main').getBoundingClientRect().bottom)"
            )
            return tab.screenshot(x=0, y=0, width=WIDTH, height=height)


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
    """Take it, shrink it, write it."""
    picture = with_palette(screenshot())
    if len(picture) > MAX_BYTES:
        print(f"{len(picture)} bytes are more than {MAX_BYTES}", file=sys.stderr)
        return 1
    PICTURE.write_bytes(picture)
    print(f"{PICTURE}: {len(picture)} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
