"""The truth about Debian's Prometheus and Alertmanager as the tests run them."""

import json
import subprocess

import pytest

from simulator.demo import demo
from tests.support.bed.monitoring import Alertmanager, Prometheus
from tests.support.environment import required_tool
from tests.support.live import LiveExporter

pytestmark = pytest.mark.slow


@pytest.fixture
def alertmanager(tmp_path):
    with Alertmanager(tmp_path / "alertmanager") as running:
        yield running


@pytest.fixture
def rules(tmp_path):
    """Two alerts that the simulated node raises, and one that it does not."""
    file = tmp_path / "rules.yml"
    expressions = {
        "CardsAreShared": "vgpu_gpus > 0",
        "NoCards": "vgpu_gpus == 0",
        "OneSickTarget": "up == 0",
    }
    alerts = [{"alert": name, "expr": expr} for name, expr in expressions.items()]
    file.write_text(json.dumps({"groups": [{"name": "truth", "rules": alerts}]}))
    promtool = required_tool("promtool", "prometheus")
    subprocess.run([promtool, "check", "rules", file], check=True, capture_output=True)
    return file


@pytest.fixture
def exporter(tmp_path):
    with LiveExporter(tmp_path / "live", demo(), "--sample.interval=200ms") as live:
        yield live


@pytest.fixture
def prometheus(tmp_path, exporter, alertmanager, rules):
    target = f"127.0.0.1:{exporter.port}"
    with Prometheus(
        tmp_path / "prometheus", target, rules=[rules], alertmanager=alertmanager
    ) as running:
        yield running


def test_an_alert_that_fires_arrives_and_can_be_silenced(prometheus, alertmanager, exporter):
    fired = prometheus.wait_for_alert("CardsAreShared")
    assert float(fired["value"]) == len(demo().gpus)
    arrived = alertmanager.wait_for_alert("CardsAreShared")
    assert arrived["labels"] == fired["labels"]
    assert not prometheus.alerts("NoCards")
    prometheus.until(lambda: not prometheus.alerts("OneSickTarget"), "no sick target")

    silence = alertmanager.silence("CardsAreShared")
    silenced = alertmanager.wait_for_alert("CardsAreShared", "suppressed")
    assert silenced["status"]["silencedBy"] == [silence]
    assert not alertmanager.alerts("CardsAreShared")

    exporter.stop()
    instance = f"127.0.0.1:{exporter.port}"
    alertmanager.wait_for_alert("OneSickTarget", instance=instance)


def test_two_servers_run_side_by_side(tmp_path, prometheus):
    with Prometheus(tmp_path / "second") as second:
        assert second.port != prometheus.port
        assert second.query("up") == []
        prometheus.wait_for("up == 1")


def test_the_log_names_a_broken_rule_file(tmp_path):
    rules = tmp_path / "rules.yml"
    rules.write_text("groups: 1\n")
    with pytest.raises(AssertionError, match="unmarshal"), Prometheus(tmp_path, rules=[rules]):
        pass
