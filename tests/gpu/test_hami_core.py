"""The check of HAMi-core: its build, and a library that limits a load and writes a region.

The library is a stand-in of these tests; HAMi-core itself is not here.
"""

import os
import shutil

import msgspec
import pytest

from deploy.gpu_kit.checks import hami_core
from deploy.gpu_kit.result import Verdict
from tests.support.environment import required_tool
from tests.support.fake_cuda.build import build as build_cuda
from tests.support.nvml_fake import uuid
from vgpu.model.facts import Region, RegionDevice, RegionProcess, RegionUse
from vgpu.schemes.volcano.hami_core import LAYOUTS, creation

MIB = 1024 * 1024
MARK = 0x7ABCDEF1
"""Stands for the pid in the region that the library copies."""

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int allocate(unsigned long long *, size_t);
typedef void *find(void *, const char *);
static allocate *driver;
static size_t used;

static int limited(unsigned long long *address, size_t size) {
    size_t limit = strtoul(getenv("CUDA_DEVICE_MEMORY_LIMIT_0"), NULL, 10) << 20;
    if (used + size > limit) return 2;
    used += size;
    return driver(address, size);
}

void *dlsym(void *handle, const char *name) {
    static find *next;
    if (!next) next = (find *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *found = next(handle, name);
    if (strcmp(name, "cuMemAlloc_v2")) return found;
    driver = (allocate *)found;
    return (void *)limited;
}

__attribute__((constructor)) static void write_region(void) {
    FILE *from = fopen(getenv("TEMPLATE"), "rb"), *to;
    if (!from || !(to = fopen(getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"), "wb"))) return;
    int word, mark = MARK, pid = getpid();
    for (size_t size; (size = fread(&word, 1, sizeof word, from));)
        fwrite(size == sizeof word && word == mark ? &pid : &word, 1, size, to);
    fclose(from);
    fclose(to);
}
"""


@pytest.fixture(autouse=True)
def nvcc(programs):
    """A machine with a CUDA toolkit, as far as the check looks."""
    (programs / "nvcc").symlink_to(shutil.which("true"))
    return programs / "nvcc"


def template(file):
    """A region of the newest layout for a load of the check, with the mark in place of its pid."""
    use = RegionUse(300 * MIB, 0, 256 * MIB, 0, 556 * MIB, 0)
    region = Region(
        layout="v1.2",
        devices=(RegionDevice(uuid(0), hami_core.LIMIT_MIB * MIB, 0),),
        processes=(RegionProcess(MARK, MARK, 1, (use,)),),
        proc_num=1,
        utilization_switch=0,
        recent_kernel=0,
        priority=1,
        last_kernel_time=0,
        major_version=1,
        minor_version=2,
    )
    with file.open("wb", buffering=0) as out:
        out.truncate(LAYOUTS["v1.2"].frame.file_size)
        for offset, data in creation(region, "v1.2"):
            os.pwrite(out.fileno(), data, offset)


def test_a_library_that_limits_and_writes_its_region_passes(kit, tmp_path, monkeypatch):
    required_tool("gcc", "gcc libc6-dev")
    template(tmp_path / "template")
    monkeypatch.setenv("TEMPLATE", str(tmp_path / "template"))
    (kit.hami_core / "library.c").write_text(LIBRARY)
    recipe = f"gcc -shared -fPIC -DMARK={MARK} -o build/libvgpu.so library.c"
    (kit.hami_core / "Makefile").write_text(f"all:\n\tmkdir -p build\n\t{recipe}\n")
    results = {result.name: result for result in hami_core.check(kit)}
    assert {
        name: each for name, each in results.items() if each.verdict is not Verdict.PASSED
    } == {}
    assert results["hami-core/allocation beyond the limit"].seen == "CUDA_ERROR_OUT_OF_MEMORY"
    assert results["hami-core/memory that it accounts"].seen == 556 * MIB
    assert results.keys() >= {"hami-core/host pid in the region", "hami-core/limit in the region"}
    assert kit.facts["hami_core_layout"] == "v1.2"


def test_a_library_that_limits_nothing_fails(kit):
    (kit.hami_core / "libvgpu.so").symlink_to(build_cuda())  # any library without effect
    results = {result.name: result for result in hami_core.check(kit)}
    assert results["hami-core/allocation beyond the limit"].verdict is Verdict.FAILED
    assert results["hami-core/allocation beyond the limit"].seen == "allocated"
    assert results["hami-core/region"].verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("makefile", "reason"),
    [
        ("all:\n\t@true\n", "has built no libvgpu.so"),
        ("all:\n\t@echo no compiler >&2; exit 1\n", "ended with status 2"),
    ],
)
def test_what_cannot_be_built_is_not_run(kit, makefile, reason):
    (kit.hami_core / "Makefile").write_text(makefile)
    (result,) = hami_core.check(kit)
    assert result.verdict is Verdict.NOT_RUN
    assert reason in result.reason


def test_without_nvcc_nothing_is_built(kit, programs, nvcc, monkeypatch):
    nvcc.unlink()
    monkeypatch.setenv("PATH", str(programs))
    (result,) = hami_core.check(kit)
    assert (result.verdict, result.reason) == (Verdict.NOT_RUN, "nvcc is not installed")


def test_without_a_folder_it_is_not_run(kit):
    (result,) = hami_core.check(msgspec.structs.replace(kit, hami_core=None))
    assert (result.verdict, "HAMI_CORE" in result.reason) == (Verdict.NOT_RUN, True)
