"""The real exporter names its pods from the kubelet's pod-resources API alone."""

import grpc
import pytest

from simulator.demo import demo
from simulator.scheme_objects import grants
from tests.support.kubelet_server import Kubelet, one_entry_per_device
from tests.support.live import LiveExporter

pytestmark = pytest.mark.slow

SOURCE = 'vgpu_collector_rejected{collector="kubelet",reason="%s"}'


def held():
    names = {pod.ref.uid: pod.ref for pod in demo().pods}
    return [
        (names[g.pod_uid].namespace, names[g.pod_uid].name, g.container, g.resource, g.device_ids)
        for g in grants(demo())
    ]


def names(series):
    return {
        part.partition('"')[2].rstrip('"')
        for name in series
        if name.startswith("vgpu_container_memory_limit_bytes{")
        for part in name.split(",")
        if part.startswith('pod="')
    }


def named(series):
    return {"finetune-0", "notebook-anna-0"} <= names(series)


def reports(series, reason):
    """Whether the kubelet's answer was refused for this reason, and has cost no name."""
    return series.get(SOURCE % reason, 0) > 0 and named(series)


def test_names_come_from_the_socket_and_an_empty_answer_takes_none_away(tmp_path):
    kubelet = Kubelet(tmp_path / "kubelet.sock")
    kubelet.answer = lambda: one_entry_per_device(*held())
    flags = (
        "--sample.interval=200ms",
        f"--kubelet.pod-resources={kubelet.path}",
        f"--kubelet.log-dir={tmp_path / 'none'}",
        "--pods=",
    )
    try:
        with LiveExporter(tmp_path, demo(), *flags) as live:
            live.wait_for(named, "names from the socket")
            kubelet.answer = one_entry_per_device
            live.wait_for(lambda s: reports(s, "empty_after_restart"), "the restart, and the names")
            kubelet.answer = lambda: (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            live.wait_for(lambda s: reports(s, "rate_limited"), "the rate limit, and the names")
            kubelet.answer = lambda: one_entry_per_device(*held())
            live.wait_for(lambda s: named(s) and not reports(s, "rate_limited"), "the end of it")
    finally:
        kubelet.stop()
