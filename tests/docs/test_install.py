"""The page about installation: a whole line or a whole file there can be used as it is."""

import json
import re
import shlex
import subprocess

import yaml
from jsonschema import Draft7Validator

from deploy.generate import CHART
from grafana.severities import BY_DEFAULT
from tests.support.doc_pages import BLOCK, values_files
from tests.support.environment import ROOT, required_tool
from vgpu import __version__

PAGE = (ROOT / "docs" / "install.md").read_text()
UNIT = (ROOT / "deploy" / "systemd" / "vgpu-exporter.service").read_text()


def section(title):
    return re.search(rf"^## {title}\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)[1]


def lines_of(title):
    blocks = BLOCK.findall(section(title))
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("# ")]


def test_without_an_image_each_way_is_one_line():
    no_registry, one_machine = lines_of("Without an image")
    assert no_registry == (
        f"make image && ctr -n k8s.io images import dist/vgpu-{__version__}-local-image.tar"
    )
    assert shlex.split(one_machine)[2:5] == ["pipx", "install", "."]


def test_pipx_installs_what_the_systemd_unit_starts():
    _, one_machine = lines_of("Without an image")
    folder = re.search(r"PIPX_BIN_DIR=(\S+)", one_machine)[1]
    assert f"ExecStart={folder}/vgpu exporter" in UNIT
    assert "install -m 644 deploy/systemd/vgpu-exporter.service /etc/systemd/system/" in one_machine
    assert one_machine.endswith("systemctl enable --now vgpu-exporter")


def test_each_values_file_is_whole_and_valid():
    files = values_files(PAGE)
    assert len(files) == 6
    validator = Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    for values in files:
        assert not list(validator.iter_errors(values))
        assert values["image"]["repository"]
        assert values.keys() >= {"gpuNodes", "monitoring", "rules", "dashboards"}


def test_the_number_of_alerts_that_wake_somebody_is_that_of_the_table():
    chinese = (ROOT / "docs" / "zh" / "install.md").read_text()
    numbers = re.findall(r"\[(\d+) of the default|; (\d+) alerts page or warn", PAGE)
    numbers += re.findall(r"默认的 (\d+) 条|；(\d+) 条告警会呼叫", chinese)
    assert [int(a or b) for a, b in numbers] == [len(BY_DEFAULT)] * 4


# ---------------------------------------------------------------- Prometheus without the Operator

PROMETHEUS = (ROOT / "docs" / "prometheus.md").read_text()
CONFIG_TEXT = re.findall(r"^```yaml\n(.*?)^```", PROMETHEUS, re.MULTILINE | re.DOTALL)[0]
CONFIG = yaml.safe_load(CONFIG_TEXT)
(SCRAPE,) = CONFIG["scrape_configs"]
MONITORS = list(
    yaml.safe_load_all((ROOT / "deploy" / "manifests" / "podmonitors.yaml").read_text())
)
POD = "__meta_kubernetes_pod"


def relabelled(labels, rules):
    """The labels of a target after the rules, as Prometheus applies them; None if it is dropped."""
    for rule in rules:
        text = ";".join(labels.get(name, "") for name in rule["source_labels"])
        found = re.fullmatch(str(rule.get("regex", "(.*)")), text)
        if rule.get("action") == "keep":
            if not found:
                return None
        elif found:
            template = re.sub(r"\$(\d)", r"\\\1", rule.get("replacement", "$1"))
            value = found.expand(template)
            labels = {**labels, rule["target_label"]: value}
    return labels


def target(component, port):
    """A port of a pod, as Prometheus discovers it."""
    return {
        "job": "vgpu",
        "__address__": "10.0.0.1",
        "__scheme__": "http",
        f"{POD}_label_app_kubernetes_io_name": "vgpu",
        f"{POD}_label_app_kubernetes_io_component": component,
        f"{POD}_container_port_name": port,
        f"{POD}_ip": "10.0.0.1",
        f"{POD}_node_name": "node-1",
        f"{POD}_name": "pod",
        "__meta_kubernetes_namespace": "vgpu-system",
    }


def test_the_scrape_config_has_the_jobs_and_instances_of_the_operators_monitors():
    found, wanted = set(), set()
    for monitor in MONITORS:
        (components,) = (each["values"] for each in monitor["spec"]["selector"]["matchExpressions"])
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        for component in components:
            before = target(component, endpoint.get("port", ""))
            for result, rules in (
                (found, SCRAPE["relabel_configs"]),
                (wanted, renamed(endpoint["relabelings"])),
            ):
                labels = relabelled(before, rules)
                address, instance = labels["__address__"], labels.get("instance")
                result.add((component, endpoint.get("port"), labels["job"], address, instance))
    assert found == wanted


def renamed(relabelings):
    """Rules of a PodMonitor as those of Prometheus."""
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    for rule in relabelings:
        yield {"source_labels": []} | {names.get(key, key): value for key, value in rule.items()}


def test_other_ports_and_pods_are_no_targets():
    assert relabelled(target("exporter", "probes"), SCRAPE["relabel_configs"]) is None
    other = target("exporter", "metrics") | {f"{POD}_label_app_kubernetes_io_name": "other"}
    assert relabelled(other, SCRAPE["relabel_configs"]) is None


def test_only_the_scheduler_is_asked_by_https():
    schemes = {
        component: relabelled(target(component, port), SCRAPE["relabel_configs"])["__scheme__"]
        for component, port in (("exporter", "metrics"), ("scheduler", "scheduler"))
    }
    assert schemes == {"exporter": "http", "scheduler": "https"}


def test_promtool_accepts_the_file(tmp_path):
    """Without the discovery, which Debian's Prometheus is built without."""
    file = tmp_path / "prometheus.yml"
    discovered = {key: SCRAPE[key] for key in SCRAPE if key != "kubernetes_sd_configs"}
    file.write_text(yaml.safe_dump(CONFIG | {"scrape_configs": [discovered]}))
    promtool = required_tool("promtool", "prometheus")
    command = [promtool, "check", "config", "--syntax-only", str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    names = [f"/etc/prometheus/vgpu/{path.name}" for path in (ROOT / "grafana/rules").glob("*")]
    assert sorted(CONFIG["rule_files"]) == sorted(names)
