"""Debian's Chromium, headless, spoken to over its DevTools pipe.

    with Chromium(folder) as browser:
        page = browser.open("http://localhost:9394/", width=390, height=844, mobile=True)
        page.value("document.title")

The protocol (https://chromedevtools.github.io/devtools-protocol/) is JSON, one message up to each
NUL, on descriptors 3 (to the browser) and 4 (from it) under --remote-debugging-pipe: no port, no
websocket. Nothing is read from or written to a profile outside ``folder``.
"""

import base64
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Self

from tests.support.environment import required_tool
from tests.support.waiting import WAIT_SECONDS, wait_until

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # which root cannot have
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


class Chromium:
    """One browser with a fresh profile in ``folder``, until the block ends."""

    def __init__(self, folder: Path) -> None:
        self._binary = required_tool("chromium", "chromium")
        self._folder = folder
        self._log = folder / "chromium.log"
        self._id = 0
        self._rest = b""
        self.events: list[dict] = []

    def __enter__(self) -> Self:
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        # Out of the way of 3 and 4, so that the shell can put them there.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
        script = f'exec "$@" 3<&{ends[0]} 4>&{ends[1]} {ends[0]}<&- {ends[1]}>&-'
        profile = f"--user-data-dir={self._folder / 'profile'}"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", script, "bash", self._binary, *FLAGS, profile, "about:blank"],
                pass_fds=ends,
                stdout=log,
                stderr=log,
                env={**os.environ, "HOME": str(self._folder)},
                start_new_session=True,
            )
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)
        return self

    def __exit__(self, *_: object) -> None:
        """Ask it to close; what does not is killed, with the children it made."""
        try:
            self.send("Browser.close")
            self._process.wait(10)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(WAIT_SECONDS)
        finally:
            os.close(self._to)
            os.close(self._from)

    def send(self, method: str, session: str = "", **params: object) -> dict:
        """A command's result. Events that come before it are kept in ``events``."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        what = f"answered: {method}"

        def answered() -> dict | None:
            message = self.receive(what)
            if message.get("id") == self._id:
                return message
            self.events.append(message)
            return None

        answer = wait_until(answered, what, context=self._said, pause=0)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def receive(self, what: str) -> dict:
        """The next message, while ``what`` is waited for."""

        def whole() -> bool:
            if b"\0" not in self._rest and select.select([self._from], [], [], 0.05)[0]:
                data = os.read(self._from, 1 << 20)
                assert data, f"chromium has ended:\n{self._said()}"
                self._rest += data
            return b"\0" in self._rest

        wait_until(whole, what, context=self._said, pause=0)
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def wait_for(self, method: str, session: str) -> dict:
        """The parameters of the next such event of that tab."""
        what = f"come: {method}"

        def come() -> dict | None:
            for event in self.events:
                if event.get("method") == method and event.get("sessionId") == session:
                    self.events.remove(event)
                    return event
            self.events.append(self.receive(what))
            return None

        return wait_until(come, what, context=self._said, pause=0)["params"]

    def _said(self) -> str:
        """The end of its log."""
        return self._log.read_text()[-3000:]

    def open(self, url: str, **view: object) -> "Tab":
        """A new tab on ``url``, loaded."""
        return Tab(self, url, **view)


class Tab:
    """One page in a window of ``width`` by ``height`` CSS pixels."""

    def __init__(
        self,
        browser: Chromium,
        url: str,
        *,
        width: int,
        height: int,
        mobile: bool = False,
        scheme: str = "light",
        still: bool = True,
    ) -> None:
        """``still``: the page's own refresh is called off, so that it stays what it is."""
        self._browser = browser
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])
        self.send("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")
        if still:
            self.send("Page.stopLoading")

    def send(self, method: str, **params: object) -> dict:
        """A command to this tab."""
        return self._browser.send(method, self._session, **params)

    def wait_for(self, method: str) -> dict:
        """The parameters of the next such event."""
        return self._browser.wait_for(method, self._session)

    def value(self, expression: str):
        """What a JavaScript expression is, as JSON. The page's own policy does not apply to it."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"]["value"]

    def events(self, method: str) -> list[dict]:
        """The parameters of all such events so far."""
        return [
            event["params"]
            for event in self._browser.events
            if event.get("method") == method and event.get("sessionId") == self._session
        ]

    def screenshot(self, **clip: float) -> bytes:
        """A PNG of the window, or of the page where ``clip`` (x, y, width, height) is."""
        more = {"clip": {"scale": 1, **clip}, "captureBeyondViewport": True} if clip else {}
        return base64.b64decode(self.send("Page.captureScreenshot", format="png", **more)["data"])


def pixels(png: bytes) -> list[list[tuple[int, ...]]]:
    """Rows of (red, green, blue) of a PNG as Chromium writes it.

    After RFC 2083, for 8 bits a channel, without palette and interlacing.
    """
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, width, channels = 8, b"", 0, 0
    while at < len(png):
        (size,) = struct.unpack_from(">I", png, at)
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, _, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", data)
            assert (depth, interlaced) == (8, 0)
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            packed += data
        at += 12 + size
    raw, stride = zlib.decompress(packed), width * channels
    rows, above = [], bytes(stride)
    for start in range(0, len(raw), stride + 1):
        line = bytearray(raw[start + 1 : start + 1 + stride])
        for i, value in enumerate(line):
            left = line[i - channels] if i >= channels else 0
            corner = above[i - channels] if i >= channels else 0
            line[i] = (value + _predicted(raw[start], left, above[i], corner)) % 256
        above = bytes(line)
        rows.append([tuple(above[i : i + 3]) for i in range(0, stride, channels)])
    return rows


def _predicted(kind: int, left: int, up: int, corner: int) -> int:
    """What each of the five filters takes off a byte."""
    if kind < 4:
        return (0, left, up, (left + up) // 2)[kind]
    guess = left + up - corner
    return min((left, up, corner), key=lambda one: abs(guess - one))
