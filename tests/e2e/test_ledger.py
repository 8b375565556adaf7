"""The ledger of a whole exporter: real files, a real driver interface, a real scrape."""

import json
from pathlib import Path

from simulator.demo import A10, L40S, demo
from tests.support.live import LiveExporter


def conflicts(series, type_):
    return series[f'vgpu_allocation_conflicts{{type="{type_}"}}']


def rewrite(exporter, change):
    """Replace the dump of the pods by ``change(its pods by name)``."""
    path = Path(exporter.node.paths.pods_file)
    dump = json.loads(path.read_text())
    change({item["metadata"]["name"]: item for item in dump["items"]})
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(dump))
    draft.rename(path)


def test_the_demos_conflicts_are_counted_and_explained_in_sentences(tmp_path):
    with LiveExporter(tmp_path, demo(), "--volcano.memory-factor=1024") as exporter:
        series = exporter.metrics()
        assert conflicts(series, "overcommitted") == 1
        assert conflicts(series, "process_without_allocation") == 1
        assert conflicts(series, "card_differs") == 0
        assert conflicts(series, "size_differs") == 0
        page = exporter.get("/").body.decode()
    assert "130 % of 100 % cores" in page
    assert "serving/chat-7c9d8b6f5d-x2k4q/vllm" in page


def test_a_wrong_unit_shows_as_sizes_that_differ(tmp_path):
    with LiveExporter(tmp_path, demo(), "--volcano.memory-factor=1") as exporter:
        assert conflicts(exporter.metrics(), "size_differs") == 4


def test_an_annotation_that_names_another_gpu_is_a_conflict_until_it_is_corrected(tmp_path):
    def swap(pods):
        notes = pods["chat-7c9d8b6f5d-x2k4q"]["metadata"]["annotations"]
        key = "hami.io/vgpu-devices-allocated"
        there, here = (A10, L40S) if L40S.uuid in notes[key] else (L40S, A10)
        notes[key] = notes[key].replace(here.uuid, there.uuid)

    with LiveExporter(tmp_path, demo(), "--sample.interval=200ms") as exporter:
        assert conflicts(exporter.metrics(), "card_differs") == 0
        rewrite(exporter, swap)
        exporter.wait_for(lambda series: conflicts(series, "card_differs") == 1, "the conflict")
        page = exporter.get("/").body.decode()
        assert "sources name different devices for one container" in page
        rewrite(exporter, swap)
        exporter.wait_for(lambda series: conflicts(series, "card_differs") == 0, "its end")


def test_volcanos_scheduler_gauges_count_each_share_once(tmp_path):
    flags = ("--compat=volcano-scheduler", "--volcano.memory-factor=1024")
    with LiveExporter(tmp_path, demo(), *flags) as exporter:
        series = exporter.metrics()

    def legacy_value(what, gpu):
        return series[f'volcano_vgpu_device_{what}{{NodeName="gpu-node-1",devID="{gpu.uuid}"}}']

    assert legacy_value("allocated_memory", A10) == 5 + 5 + 3 + 3
    assert legacy_value("allocated_memory", L40S) == 20 + 8 + 5
    assert legacy_value("allocated_cores", A10) == 30 + 40 + 10 + 20
    assert legacy_value("shared_number", L40S) == 3
    assert legacy_value("memory_limit", L40S) == 46068 // 1024
