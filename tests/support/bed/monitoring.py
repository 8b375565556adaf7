"""Debian's Prometheus and Alertmanager on loopback, for whatever a test has started.

    with Alertmanager(folder / "am") as alertmanager:
        with Prometheus(folder / "prom", target, rules=[file], alertmanager=alertmanager) as server:
            server.wait_for_alert("SomethingIsWrong")
            alertmanager.wait_for_alert("SomethingIsWrong")

Each keeps its data in its own folder and listens on a port of the kernel's choice, which it reports
in its log. Both end with the block, and with this process however it ends.
"""

import http.client
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

from tests.support.bed.processes import Daemon
from tests.support.environment import required_tool
from tests.support.waiting import WAIT_SECONDS

LISTENING = re.compile(r'msg="Listening on" address=127\.0\.0\.1:(\d+)')

T = TypeVar("T")


class Server:
    """A program that logs the port it was given, and answers ``/-/ready`` with 200 once it serves.

    ``program`` is the name of the binary and of its Debian package.
    """

    program: str
    raised: str  # the state of an alert that is to be acted on

    def __init__(self, folder: Path) -> None:
        self._binary = required_tool(self.program, self.program)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = 0

    def flags(self) -> list[str]:
        """The command line after the program's name."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        log = self.folder / f"{self.program}.log"
        self._daemon = Daemon(self.program, [self._binary, *self.flags()], log)
        try:
            self.port = int(self.until(self._listening, "said its port"))
            self.until(self._ready, "was ready")
        except BaseException:
            self._daemon.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._daemon.stop()

    def _listening(self) -> str:
        listening = LISTENING.search(self._daemon.log())
        return listening[1] if listening else ""

    def _ready(self) -> bool:
        return self._ask("GET", "/-/ready")[0] == 200

    def _ask(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def api(self, path: str, method: str = "GET", body: object = None) -> Any:
        """What the JSON API answers; anything but success is an AssertionError."""
        status, text = self._ask(method, path, body)
        assert status == 200, f"{method} {path}: {status} {text}"
        return json.loads(text)

    def until(self, ask: Callable[[], T], what: str) -> T:
        """The first answer of ``ask`` that is not empty."""
        return self._daemon.wait_until(ask, what, failures=(OSError, http.client.HTTPException))

    def reported_alerts(self) -> list[tuple[str, dict[str, Any]]]:
        """Every (state, alert) it knows."""
        raise NotImplementedError

    def alerts(self, name: str, state: str = "", **labels: str) -> list[dict[str, Any]]:
        """The alerts of that name and labels, in that state or else raised."""
        wanted = {"alertname": name, **labels}.items()
        return [
            alert
            for reported, alert in self.reported_alerts()
            if reported == (state or self.raised) and wanted <= alert["labels"].items()
        ]

    def wait_for_alert(self, name: str, state: str = "", **labels: str) -> dict[str, Any]:
        """The first alert of :meth:`alerts`."""
        what = f"{name} {state or self.raised}"
        return self.until(lambda: self.alerts(name, state, **labels), what)[0]


class Alertmanager(Server):
    """One that notifies nobody: its API shows what arrived and what is silenced."""

    program = "prometheus-alertmanager"
    raised = "active"

    def flags(self) -> list[str]:
        """Alone, without the gossip port."""
        config = self.folder / "alertmanager.yml"
        route = {"receiver": "nobody", "group_wait": "0s", "group_interval": "1s"}
        config.write_text(json.dumps({"route": route, "receivers": [{"name": "nobody"}]}))
        return [
            f"--config.file={config}",
            f"--storage.path={self.folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--cluster.listen-address=",
        ]

    def reported_alerts(self) -> list[tuple[str, dict[str, Any]]]:
        """Its states are active, suppressed and unprocessed."""
        return [(alert["status"]["state"], alert) for alert in self.api("/api/v2/alerts")]

    def silence(self, name: str, **labels: str) -> str:
        """Silence those alerts for an hour; the silence's id."""
        now = datetime.now(UTC)
        matchers = [
            {"name": label, "value": value, "isRegex": False, "isEqual": True}
            for label, value in {"alertname": name, **labels}.items()
        ]
        silence = {
            "matchers": matchers,
            "startsAt": now.isoformat(),
            "endsAt": (now + timedelta(hours=1)).isoformat(),
            "createdBy": "a test",
            "comment": "a test",
        }
        return str(self.api("/api/v2/silences", "POST", silence)["silenceID"])


class Prometheus(Server):
    """A server that scrapes ``targets`` and evaluates ``rules`` every ``evaluation_interval``.

    ``job`` overrides the keys of the one scrape job; ``jobs`` are others, in its place.
    """

    program = "prometheus"
    raised = "firing"

    def __init__(
        self,
        folder: Path,
        *targets: str,
        rules: Iterable[Path] = (),
        alertmanager: Alertmanager | None = None,
        jobs: Iterable[Mapping[str, Any]] = (),
        evaluation_interval: str = "1s",
        **job: Any,
    ) -> None:
        super().__init__(folder)
        scrape = {
            "job_name": "vgpu",
            "honor_labels": True,
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "static_configs": [{"targets": list(targets)}],
            **job,
        }
        targets = [f"127.0.0.1:{alertmanager.port}"] if alertmanager else []
        self._config = {
            "global": {"evaluation_interval": evaluation_interval},
            "scrape_configs": list(jobs) or [scrape],
            "rule_files": [str(file.absolute()) for file in rules],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": targets}]}]},
        }

    def flags(self) -> list[str]:
        """The configuration, as the JSON that YAML includes, and where the data goes."""
        config = self.folder / "prometheus.yml"
        config.write_text(json.dumps(self._config))
        return [
            f"--config.file={config}",
            f"--storage.tsdb.path={self.folder / 'tsdb'}",
            "--web.listen-address=127.0.0.1:0",
        ]

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """An instant query's (labels, value)."""
        answer = self.api(f"/api/v1/query?query={quote(promql)}")
        return [(r["metric"], float(r["value"][1])) for r in answer["data"]["result"]]

    def value(self, promql: str) -> float:
        """The value of a query that has just one, as soon as it has any: a scrape may fail."""
        found = self.wait_for(promql)
        assert len(found) == 1, (promql, found)
        return found[0][1]

    def wait_for(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """The first answer that is not empty."""
        return self.until(lambda: self.query(promql), promql)

    def reported_alerts(self) -> list[tuple[str, dict[str, Any]]]:
        """Its states are pending and firing."""
        return [(alert["state"], alert) for alert in self.api("/api/v1/alerts")["data"]["alerts"]]
