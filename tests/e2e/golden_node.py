"""A node made of golden region files: what the real library wrote, under pods of our naming."""

import gzip
import json
from pathlib import Path

from simulator.scenario import Scenario
from tests.support import nvml_fake
from tests.support.environment import GOLDEN_FILES

ERAS = ("v0-2024-01", "v0-2024-04", "v1.1", "v1.1-2026-03", "v1.2")
PODS = {
    f"{era}-{scenario}": f"11111111-0000-4000-8000-{number:04d}{place:08d}"
    for number, era in enumerate(ERAS)
    for place, scenario in enumerate(("idle", "one", "three"))
}
UUIDS = ("GPU-8f2d61a4-0c3b-4be5-9f70-1b6a2e4d7c10", "GPU-c41e7b92-5d8f-4a36-b1e4-90f3ad6c2e57")
EMPTY = Scenario(node="golden", gpus=(), pods=())


def golden(name: str) -> dict:
    return json.loads((GOLDEN_FILES / "shim-regions" / f"{name}.json").read_text())


def container_id(number: int) -> str:
    return f"{number:064x}"


def write_pods(root: Path) -> None:
    """Regions, log folders and links, cgroups and processes of every pod under ``root``."""
    folder = GOLDEN_FILES / "shim-regions"
    proc = root / "proc"
    for number, (name, uid) in enumerate(PODS.items()):
        region = root / "usr/local/vgpu/containers" / f"{uid}_main" / "region.cache"
        region.parent.mkdir(parents=True)
        region.write_bytes(gzip.decompress((folder / f"{name}.cache.gz").read_bytes()))
        pod = name.replace(".", "-")
        (root / "var/log/pods" / f"golden_{pod}_{uid}" / "main").mkdir(parents=True)
        link = root / "var/log/containers" / f"{pod}_golden_main-{container_id(number)}.log"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(root / "var/log/pods" / f"golden_{pod}_{uid}" / "main/0.log")
        slice_ = f"kubepods-pod{uid.replace('-', '_')}.slice"
        scope = f"cri-containerd-{container_id(number)}.scope"
        cgroup = root / "sys/fs/cgroup/kubepods.slice" / slice_ / scope
        cgroup.mkdir(parents=True)
        pids = {p["host_pid"] or 200_000 + p["pid"]: p["pid"] for p in golden(name)["processes"]}
        (cgroup / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        for pid, inside in pids.items():  # the oldest library found no host pids
            (proc / str(pid)).mkdir(exist_ok=True)
            text = f"0::/kubepods.slice/{slice_}/{scope}\n"
            (proc / str(pid) / "cgroup").write_text(text)
            (proc / str(pid) / "status").write_text(f"NSpid:\t{pid}\t{inside}\n")


def host_pids(name: str) -> list[int]:
    return [p["host_pid"] for p in golden(name)["processes"] if p["host_pid"]]


def devices() -> list[nvml_fake.Device]:
    return [
        nvml_fake.Device(uuid, "NVIDIA L40S", bus=f"00000000:{i + 1:02X}:00.0", used=20 * 2**30)
        for i, uuid in enumerate(UUIDS)
    ]


def processes() -> list[nvml_fake.Process]:
    """Every golden process is on the first device, 1 MiB larger than its region accounts."""
    return [
        nvml_fake.Process(UUIDS[0], p["host_pid"], p["used"][0]["total"] + 2**20, sm=10)
        for name in PODS
        for p in golden(name)["processes"]
        if p["host_pid"]
    ]
