"""Regions to write and to break."""

import os
import struct
import uuid

from vgpu.model.facts import Region, RegionDevice, RegionProcess, RegionUse
from vgpu.schemes.volcano import hami_core

MIB = 2**20
GPUS = tuple(f"GPU-{uuid.UUID(int=0x8F2D61A4 + index)}" for index in range(16))
PODS = tuple(str(uuid.UUID(int=0xAB0000 + index)) for index in range(300))


def a_use(layout, *, context=300, module=12, data=1024, offset=0, sm_util=37):
    return RegionUse(
        context=context * MIB,
        module=module * MIB,
        data=data * MIB,
        offset=offset,
        total=(context + module + data) * MIB,
        sm_util=None if layout == "p0" else sm_util,
    )


def a_process(layout, *, pid=27, status=1, devices=2, **use):
    return RegionProcess(
        pid=pid,
        host_pid=pid and pid + 100_000,
        status=status,
        used=tuple(a_use(layout, **use) for _ in range(devices)),
    )


def a_region(layout, *, devices=2, processes=None, priority=0):
    version = hami_core.LAYOUTS[layout].version
    if processes is None:
        processes = (a_process(layout, devices=devices), a_process(layout, pid=28, devices=devices))
    return Region(
        layout=layout,
        devices=tuple(RegionDevice(gpu, 3000 * MIB, 30) for gpu in GPUS[:devices]),
        processes=tuple(processes),
        proc_num=len(processes),
        utilization_switch=1,
        recent_kernel=2,
        priority=priority,
        last_kernel_time=1_795_239_554 if version else None,
        major_version=version[0] if version else None,
        minor_version=version[1] if version else None,
    )


def write(path, region):
    """Make a sparse file of the region, as the library would."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666)
    try:
        os.ftruncate(fd, hami_core.LAYOUTS[region.layout].frame.file_size)
        put(fd, hami_core.creation(region, region.layout))
    finally:
        os.close(fd)
    return path


def put(fd, patches):
    for at, data in patches:
        os.pwrite(fd, data, at)


def scribble(path, at, data):
    """Write ``data``, bytes or a little-endian 64-bit number, into an existing file."""
    data = struct.pack("<Q", data % 2**64) if isinstance(data, int) else data
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def folder(root, *, pod=0, container="main"):
    path = root / f"{PODS[pod]}_{container}"
    path.mkdir(parents=True)
    return path


def place(root, region, *, pod=0, container="main", name="5f0d.cache"):
    """A container's folder with its region; the path of the file."""
    return write(folder(root, pod=pod, container=container) / name, region)
