"""The exporter's memory and descriptors stay level: benchmarks/soak.py, in short."""

import pytest
from fixtures import ROOT

SLACK_KIB = 1536
"""What the heap may still settle by after the warm-up; a leak of 2 KiB a sample is more."""


@pytest.fixture
def soak(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import soak

    return soak


@pytest.mark.slow
def test_memory_and_descriptors_stay_level_under_ever_new_pods_files_and_drivers(soak, tmp_path):
    levels = soak.soak(tmp_path, samples=1000, warm_up=1500)
    soak.show(levels)
    assert soak.growth(*levels, SLACK_KIB) == []


@pytest.mark.parametrize(
    ("grown", "told"),
    [
        ({}, []),
        ({"rss": 40_000 + SLACK_KIB}, []),
        ({"rss": 40_001 + SLACK_KIB}, ["memory by 1537 KiB"]),
        ({"descriptors": 9, "threads": 10}, ["descriptors from 8 to 9", "threads from 9 to 10"]),
    ],
)
def test_what_grows_is_told(soak, grown, told):
    before = {"samples": 1, "scrapes": 1, "rss": 40_000, "descriptors": 8, "threads": 9}
    levels = soak.Level(**before), soak.Level(**before | grown)
    assert soak.growth(*levels, SLACK_KIB) == told
