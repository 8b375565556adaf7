"""Runs rule unit tests through the real promtool."""

import json
import re
import subprocess
from pathlib import Path

from grafana import alerts, recording
from tests.support.environment import ROOT, required_tool

RULES = sorted((ROOT / "grafana" / "rules").glob("*.yaml"))

NAME = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?$")


def with_labels(series: str, **labels: str) -> str:
    """The series with more labels."""
    name, inner = NAME.match(series).groups()
    more = [f'{key}="{value}"' for key, value in labels.items()]
    return f"{name}{{{','.join(filter(None, [inner, *more]))}}}"


def inputs(series: dict[str, str], **labels: str) -> list[dict[str, str]]:
    """Input series, each with the labels of its target."""
    return [
        {"series": with_labels(name, **labels), "values": values} for name, values in series.items()
    ]


OURS = {"namespace": "kube-system", "pod": "vgpu-x7k2p", "container": "exporter"}
"""What Kubernetes' service discovery says of the exporter itself."""


def renamed(series: dict[str, str]) -> dict[str, str]:
    """As a scrape without ``honor_labels`` stores them: labels that the target has are taken."""
    return {
        with_labels(re.sub(rf"\b({'|'.join(OURS)})=", r"exported_\1=", name), **OURS): values
        for name, values in series.items()
    }


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The finished call."""
    tool = required_tool("promtool", "prometheus")
    return subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, check=False)


def passes(folder: Path, *tests: dict) -> None:
    """Assert that promtool's unit tests pass; one `interval` for all of them."""
    file = folder / "tests.json"  # which YAML includes
    told = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": "1m",
        "group_eval_order": [group.name for group in (*recording.GROUPS, *alerts.GROUPS)],
        "tests": [{"interval": "1m", **test} for test in tests],
    }
    file.write_text(json.dumps(told))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
