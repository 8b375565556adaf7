"""Compiles the fake ``libcuda.so.1``, once per content."""

from pathlib import Path

from tests.support.fake_nvml.build import compiled

SOURCE = Path(__file__).with_name("cuda_fake.c")
SONAME = "libcuda.so.1"


def build() -> Path:
    """The library. A missing compiler fails in CI and skips with one clear line elsewhere."""
    return compiled(SOURCE, SONAME, SONAME)
