"""The exporter as the checks use it: one sample, or a running one, and its page."""

import http.client
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from deploy.gpu_kit.deadline import until
from deploy.gpu_kit.processes import KitError, Processes, module

START_SECONDS: Final = 30.0
"""Maximum time until the exporter serves its first page, in seconds."""

TAKEN: Final = "vgpu_snapshot_timestamp_seconds"

Labels = tuple[tuple[str, str], ...]


class Page(msgspec.Struct, frozen=True):
    """A page of metrics: its text, and its series by name and sorted labels."""

    text: str
    series: Mapping[tuple[str, Labels], float]

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of a metric's series that have these labels."""
        wanted = labels.items()
        return [
            value
            for (series, own), value in self.series.items()
            if series == name and wanted <= dict(own).items()
        ]

    def value(self, name: str, **labels: str) -> float | None:
        """The value of the only such series; None if there is none, or several."""
        found = self.values(name, **labels)
        return found[0] if len(found) == 1 else None

    @property
    def taken(self) -> float:
        """When its sample was taken, in unix seconds; 0 if it does not say so."""
        return self.value(TAKEN) or 0.0


def parse(text: str) -> Page:
    """A page from its text. Raises ValueError if it is no exposition."""
    series = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return Page(text, series)


def command(*flags: str) -> list[str]:
    """The command line."""
    return module("vgpu", "exporter", "--log.level=warn", *flags)


class RunningExporter:
    """An exporter that serves on loopback."""

    def __init__(self, process: subprocess.Popen[str], log: Path, begun: int) -> None:
        self.process = process
        self._log = log
        self._begun = begun
        self._port = 0

    def page(self) -> Page:
        """The page of now. Raises OSError, KitError."""
        return parse(self.scrape()[0])

    def scrape(self, path: str = "/metrics") -> tuple[str, float]:
        """A page's text, and for how many seconds the scrape took. Raises OSError, KitError."""
        connection = http.client.HTTPConnection("127.0.0.1", self._known_port(), timeout=10)
        try:
            started = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            seconds = time.perf_counter() - started
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise KitError(f"{path} of the exporter is answered with status {answer.status}")
        return body.decode(), seconds

    def page_after(self, moment: float, seconds: float) -> Page:
        """The first page whose sample was begun after a moment. Raises KitError."""

        def newer() -> Page | None:
            page = self.page()
            return page if page.taken > moment else None

        page = until(newer, seconds)
        if page is None:
            raise KitError(f"the exporter took no new sample in {seconds:g} s")
        return page

    def wait_ready(self) -> None:
        """Wait for the first sample. Raises KitError."""

        def ready() -> bool:
            if self.process.poll() is not None:
                raise KitError(f"the exporter ended with status {self.process.returncode}")
            try:
                self.scrape("/-/ready")
            except (OSError, KitError):
                return False
            return True

        if not until(ready, START_SECONDS):
            raise KitError(f"the exporter was not ready in {START_SECONDS:g} s")

    def _known_port(self) -> int:
        if not self._port:
            log = self._log.read_bytes()[self._begun :].decode(errors="replace")
            found = re.search(r'msg="web server ready" .*?127\.0\.0\.1:(\d+)', log)
            if found is None:
                raise KitError("the exporter does not serve yet")
            self._port = int(found[1])
        return self._port


@contextmanager
def running(processes: Processes, log: Path, flags: Sequence[str]) -> Iterator[RunningExporter]:
    """A running exporter for the time of a block, ready to be asked. Raises KitError."""
    begun = log.stat().st_size if log.exists() else 0
    line = [*module("vgpu", "exporter"), *flags, "--web.listen-address=127.0.0.1:0"]
    exporter = RunningExporter(processes.start(line, log), log, begun)
    try:
        exporter.wait_ready()
        yield exporter
    finally:
        processes.end(exporter.process, signal.SIGKILL)
