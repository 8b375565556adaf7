"""Runs rule unit tests through the real promtool, all cases of a test in one run.

    failures(tmp_path, {"a case": {"input_series": inputs(...), "alert_rule_test": [...]}})

A case has the rules that it asks about, and the records that these read, out of the files that
people load: promtool evaluates its input once a simulated minute.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from grafana import alerts, recording
from tests.support.environment import ROOT, required_tool


def name_of(rule: Mapping[str, Any]) -> str:
    """Of an alert or a record."""
    return rule.get("alert") or rule["record"]


RULES = sorted((ROOT / "grafana" / "rules").glob("*.yaml"))
GROUPS = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
EXPRESSIONS = {name_of(rule): rule["expr"] for group in GROUPS for rule in group["rules"]}
ORDER = [group.name for group in (*recording.GROUPS, *alerts.GROUPS)]

NAME = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?$")
RECORD = re.compile(r"\w+:\w+:\w+")
VERDICT = re.compile(
    r"^Unit Testing: +(\S+)$\n(.*?)(?=^Unit Testing: |\Z)", re.MULTILINE | re.DOTALL
)


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
"""The labels that Kubernetes' service discovery adds to the exporter's own target."""


def renamed(series: dict[str, str]) -> dict[str, str]:
    """As a scrape without ``honor_labels`` stores them: labels that the target has are taken."""
    return {
        with_labels(re.sub(rf"\b({'|'.join(OURS)})=", r"exported_\1=", name), **OURS): values
        for name, values in series.items()
    }


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The finished call; errors are among its output, where they belong."""
    tool = required_tool("promtool", "prometheus")
    command = [tool, *map(str, arguments)]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def failures(folder: Path, cases: Mapping[str, dict[str, Any]], every: str = "1m") -> list[str]:
    """Each case of which promtool's unit test fails, by its name, with promtool's output.

    ``every`` is how often Prometheus evaluates the rules, at most as seldom as it forgets a value.
    """
    names = {}
    for number, (name, case) in enumerate(cases.items()):
        file = folder / f"{number}.test.json"  # which YAML includes
        rules = folder / f"{number}.rules.json"
        rules.write_text(json.dumps({"groups": list(only(asked_about(case)))}))
        unit_test = {
            "rule_files": [rules.name],
            "evaluation_interval": every,
            "group_eval_order": ORDER,
            "tests": [{"interval": "1m", **case}],
        }
        file.write_text(json.dumps(unit_test))
        names[str(file)] = name
    done = promtool("test", "rules", *names)
    verdicts = {file: verdict.strip() for file, verdict in VERDICT.findall(done.stdout)}
    assert verdicts.keys() == names.keys(), done.stdout
    failed = {names[file]: verdict for file, verdict in verdicts.items() if verdict != "SUCCESS"}
    assert bool(failed) == bool(done.returncode), done.stdout
    return [f"{name}: {verdict}" for name, verdict in failed.items()]


def passes(folder: Path, case: dict[str, Any], every: str = "1m") -> None:
    """Assert that promtool's unit test passes."""
    failed = failures(folder, {"it": case}, every)
    assert not failed, failed[0]


def asked_about(case: dict[str, Any]) -> set[str]:
    """The rules that a case asks about, and the records that they read."""
    texts = "\n".join(each["expr"] for each in case.get("promql_expr_test", ()))
    found = {each["alertname"] for each in case.get("alert_rule_test", ())} | read_by(texts)
    while more := read_by("\n".join(EXPRESSIONS[name] for name in found)) - found:
        found |= more
    return found


def read_by(text: str) -> set[str]:
    """The records that are named in expressions."""
    return set(RECORD.findall(text)) & EXPRESSIONS.keys()


def only(names: set[str]) -> Iterator[dict[str, Any]]:
    """The groups with these rules alone."""
    for group in GROUPS:
        if rules := [rule for rule in group["rules"] if name_of(rule) in names]:
            yield {**group, "rules": rules}
