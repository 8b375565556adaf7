"""Debian's Prometheus on loopback, scraping what a test started."""

import http.client
import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Self
from urllib.parse import quote

from fixtures import required_tool

WAIT_SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """A server that scrapes ``targets`` once a second until the block ends."""

    def __init__(self, folder: Path, *targets: str, **job) -> None:
        self._binary = required_tool("prometheus", "prometheus")
        self._folder = folder
        self._log = folder / "prometheus.log"
        self.port = free_port()
        scrape = {
            "job_name": "vgpu",
            "honor_labels": True,
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "static_configs": [{"targets": list(targets)}],
            **job,
        }
        (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape]}))

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    self._binary,
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(WAIT_SECONDS)

    def _get(self, path: str):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """An instant query's (labels, value)."""
        answer = self._get(f"/api/v1/query?query={quote(promql)}")
        assert answer["status"] == "success", answer
        return [(r["metric"], float(r["value"][1])) for r in answer["data"]["result"]]

    def value(self, promql: str) -> float:
        """The value of a query that has just one."""
        found = self.query(promql)
        assert len(found) == 1, (promql, found)
        return found[0][1]

    def wait_for(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """The first answer that is not empty."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            try:
                if found := self.query(promql):
                    return found
            except (OSError, ValueError):
                pass
            time.sleep(0.1)
        raise AssertionError(f"{promql} never answered:\n{self._log.read_text()[-3000:]}")
