"""Debian's Prometheus scrapes the real exporter, and PromQL answers with the golden values."""

import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from simulator.demo import demo
from tests.e2e import golden_node
from tests.e2e.golden_node import PODS, UUIDS, golden
from tests.support.bed.monitoring import Prometheus
from tests.support.environment import required_tool
from tests.support.live import LiveExporter, parse

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exporter(tmp_path_factory):
    live = LiveExporter(
        tmp_path_factory.mktemp("golden"),
        golden_node.EMPTY,
        "--sample.interval=500ms",
        "--metrics.detail=all",
    )
    golden_node.write_pods(live.node.folder)
    live.write_driver(devices=golden_node.devices(), processes=golden_node.processes())
    with live:
        yield live


@pytest.fixture(scope="module")
def prometheus(exporter, tmp_path_factory):
    with Prometheus(tmp_path_factory.mktemp("prom"), f"127.0.0.1:{exporter.port}") as server:
        server.wait_for('vgpu_container_memory_used_bytes{pod="v1-2-three"}')
        yield server


def test_up_is_1(prometheus):
    assert prometheus.wait_for("up == 1")


DEVICES = [(name, i) for name in PODS for i, _ in enumerate(golden(name)["devices"])]


@pytest.mark.parametrize(("name", "position"), DEVICES)
def test_promql_answers_with_the_golden_values(prometheus, name, position):
    region = golden(name)
    device = region["devices"][position]
    uses = [p["used"][position] for p in region["processes"]]
    who = f'{{pod="{name.replace(".", "-")}",container="main",uuid="{device["uuid"]}"}}'

    def value(family):
        return prometheus.value(family + who)

    assert value("vgpu_container_memory_limit_bytes") == device["memory_limit_bytes"]
    assert value("vgpu_container_core_limit_ratio") == device["core_limit_percent"] / 100
    total = sum(use["total"] for use in uses)
    assert value("vgpu_container_memory_accounted_bytes") == total
    kinds = {
        labels["kind"]: number
        for labels, number in prometheus.wait_for(
            "vgpu_container_memory_accounted_kind_bytes" + who
        )
    }
    assert {k: kinds[k] for k in ("context", "module", "data")} == {
        k: sum(use[k] for use in uses) for k in ("context", "module", "data")
    }
    assert sum(kinds.values()) == total
    assert value("vgpu_container_memory_phantom_bytes") == 0
    if name.startswith("v0-2024-01"):  # the oldest layout has no utilisation
        assert not prometheus.query("vgpu_container_accounted_sm_utilization_ratio" + who)
    else:
        busy = sum(use["sm_util"] for use in uses)
        assert value("vgpu_container_accounted_sm_utilization_ratio") == busy / 100


@pytest.mark.parametrize("name", [name for name in PODS if golden_node.host_pids(name)])
def test_the_drivers_truth_is_joined_by_host_pid(prometheus, name):
    pids = golden_node.host_pids(name)
    total = sum(p["used"][0]["total"] for p in golden(name)["processes"]) + len(pids) * 2**20
    who = f'{{pod="{name.replace(".", "-")}",uuid="{UUIDS[0]}"}}'
    assert prometheus.value("vgpu_container_memory_used_bytes" + who) == total
    assert prometheus.value("vgpu_container_processes" + who) == len(pids)
    assert prometheus.value("vgpu_container_sm_utilization_ratio" + who) == pytest.approx(
        len(pids) * 0.1
    )


def test_the_gap_closes_the_sum(prometheus):
    used, attributed, gap = (
        prometheus.value(f'vgpu_gpu_memory_{kind}_bytes{{uuid="{UUIDS[0]}"}}')
        for kind in ("used", "attributed", "unattributed")
    )
    assert used == attributed + gap
    containers = f'sum(vgpu_container_memory_used_bytes{{uuid="{UUIDS[0]}"}})'
    assert prometheus.value(containers) == attributed


def test_the_documented_joins_answer(prometheus):
    model = "vgpu_container_memory_used_bytes * on (uuid) group_left (model) vgpu_gpu_info"
    assert {labels["model"] for labels, _ in prometheus.wait_for(model)} == {"NVIDIA L40S"}
    scheme = (
        "vgpu_container_memory_used_bytes / vgpu_container_memory_limit_bytes"
        " * on (namespace, pod, container, pod_uid) group_left (scheme) vgpu_container_info"
    )
    assert {labels["scheme"] for labels, _ in prometheus.wait_for(scheme)} == {"volcano"}


def test_layouts_are_reported_by_name(prometheus):
    infos = prometheus.wait_for("vgpu_container_info")
    layouts = {labels["pod"].rpartition("-")[0]: labels["layout"] for labels, _ in infos}
    assert len(infos) == len(PODS)
    assert layouts == {
        "v0-2024-01": "p0",
        "v0-2024-04": "v0",
        "v1-1": "v1.1",
        "v1-1-2026-03": "v1.1c",
        "v1-2": "v1.2",
    }


def test_the_volcano_names_hold_the_golden_values_too(prometheus):
    region = golden("v1.1-three")
    total = sum(p["used"][1]["total"] for p in region["processes"])
    who = '{podname="v1-1-three",podnamespace="golden",ctrname="main",vdeviceid="1",zone="vGPU"}'
    assert prometheus.value("vGPU_device_memory_usage_in_bytes" + who) == total
    assert prometheus.value("Device_memory_desc_of_container" + who) == total


@pytest.mark.parametrize("compat", ["volcano", "hami-legacy", "hami", "gaia", "none"])
def test_every_page_passes_promtool_and_both_of_prometheus_clients_parsers(tmp_path, compat):
    promtool = required_tool("promtool", "prometheus")
    live = LiveExporter(tmp_path, demo(), f"--compat={compat}")
    text = live.once()
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    complaints = [line for line in checked.stderr.splitlines() if " vgpu_" in f" {line}"]
    assert complaints == []
    if compat == "none":
        assert checked.returncode == 0, checked.stderr
    else:
        assert checked.returncode in (0, 3), checked.stderr  # 3: style of foreign names
    series = parse(text)
    assert len(series) == sum(not line.startswith("#") for line in text.splitlines())


def test_openmetrics_has_the_same_samples_as_text(exporter):
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    response = exporter.get("/metrics", accept)
    assert response.headers["Content-Type"].startswith(
        "application/openmetrics-text; version=1.0.0"
    )
    names = {s.name for f in openmetrics(response.body.decode()) for s in f.samples}
    plain = exporter.get("/metrics")
    assert plain.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert names == {series.partition("{")[0] for series in parse(plain.body.decode())}
