"""The exporter's memory and descriptors stay level: benchmarks/soak.py, in short."""

import pytest

from tests.support.environment import ROOT

# glibc's heap takes an hour's samples to settle if it may. With one arena that returns freed
# memory at once, memory that is still held after a minute is memory that the exporter holds.
PROMPT_HEAP = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}


@pytest.fixture
def soak(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import soak

    return soak


@pytest.mark.thorough("soak")
def test_memory_and_descriptors_stay_level_under_ever_new_pods_files_and_drivers(
    soak, tmp_path, monkeypatch
):
    for name, value in PROMPT_HEAP.items():
        monkeypatch.setenv(name, value)
    levels = soak.soak(tmp_path, samples=1200, warm_up=1200)
    soak.show(levels)
    assert soak.growth(levels) == []


@pytest.mark.parametrize(
    ("memory", "descriptors", "growing"),
    [
        ((40_000, 40_000, 40_000, 40_000), (8, 9, 9, 8), []),
        ((40_000, 41_800, 42_100, 42_300), (8, 8, 8, 8), []),  # a step, and then it settles
        ((40_000, 40_300, 40_600, 40_900), (8, 8, 8, 8), ["memory by 300, 300, 300 KiB"]),
        ((40_000, 42_600, 42_600, 42_600), (8, 8, 8, 8), ["memory by 2600, 0, 0 KiB"]),
        ((40_000, 40_000, 40_000, 40_000), (8, 8, 9, 9), ["descriptors from 8 to 9"]),
    ],
)
def test_growth_is_reported(soak, memory, descriptors, growing):
    levels = [
        soak.ProcessLevel(samples=1, scrapes=1, rss=rss, descriptors=fds, threads=9)
        for rss, fds in zip(memory, descriptors, strict=True)
    ]
    assert soak.growth(levels) == growing
