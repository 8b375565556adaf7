"""The exporter's page on the real driver, for containers whose use of the GPU is known."""

import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

import vgpu
from deploy.gpu_kit import exporter
from deploy.gpu_kit.answers import DriverAnswers
from deploy.gpu_kit.containers import Containers, pod_name
from deploy.gpu_kit.deadline import Deadline
from deploy.gpu_kit.exporter import Page, RunningExporter
from deploy.gpu_kit.kit import Kit
from deploy.gpu_kit.loads import MIB, Load, LoadPlan
from deploy.gpu_kit.processes import KitError, module
from deploy.gpu_kit.result import Result, Verdict, equal, failed, holds, near, not_run
from vgpu.sources.nvml_device import COMPUTE
from vgpu.sources.nvml_processes import NOT_AVAILABLE

USED: Final = "vgpu_container_memory_used_bytes"
SM: Final = "vgpu_container_sm_utilization_ratio"
GAP: Final = "vgpu_gpu_memory_unattributed_bytes"
DEVICE_USED: Final = "vgpu_gpu_memory_used_bytes"
OUTSIDE: Final = "vgpu_gpu_unattributed_processes"

TOLERANCE: Final = 16 * MIB
"""Of the memory of a load: the driver allocates in pages, and a context may grow a little."""
GAP_TOLERANCE: Final = 64 * MIB
"""Of the attribution gap: the driver's own use of the GPU moves with its contexts."""
SM_TOLERANCE: Final = 0.05

# Pods by number: two that compute, one with an idle share, one that ends, one that is killed.
PLANS: Final = {
    0: LoadPlan(mib=512, busy=0.3),
    1: LoadPlan(mib=256, busy=0.2, phase=0.5),
    3: LoadPlan(mib=128),
    4: LoadPlan(mib=128),
}
IDLE: Final = 2
PODS: Final = 5

NO_CAPABILITIES: Final = ("--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")
"""What the chart's exporter runs without, as far as that can be had without a container."""


class Profile(msgspec.Struct, frozen=True):
    """How the exporter is started with the rights of a profile, without the API server.

    Attributes:
        rights: options of setpriv; without any, root's rights.
        root: whether its user is root.
        flags: the profile's own flags.
        off: its sources that are off.
    """

    rights: tuple[str, ...] = ()
    root: bool = True
    flags: tuple[str, ...] = ()
    off: tuple[str, ...] = ()


PROFILES: Final = {
    "minimal": Profile(
        ("--reuid=65532", "--regid=0", "--clear-groups", *NO_CAPABILITIES),
        root=False,
        flags=(
            "--no-collector.process",
            "--no-collector.limits",
            "--no-collector.plugin",
            "--kubelet.checkpoint=",
        ),
        off=("process", "limits", "plugin", "checkpoint"),
    ),
    "standard": Profile(NO_CAPABILITIES),
    "full": Profile(flags=("--collector.bare",)),
}

SECONDS: Final = 20.0


def check(kit: Kit) -> Iterator[Result]:
    """See the module."""
    loads = kit.loads()
    containers = Containers(
        kit.new_folder("node"), kit.answers.gpus, kit.gpu.uuid, PODS, kit.cgroups
    )
    interval = min(1.0, kit.pace.interval)
    with ExitStack() as stack:
        stack.callback(containers.close)
        plans = (*PLANS.values(), LoadPlan())
        *in_pods, outside = stack.enter_context(loads.running(*plans))
        running = dict(zip(PLANS, in_pods, strict=True))
        for number, load in running.items():
            containers.put(number, load.pid)
        containers.put_outside(outside.pid)
        profiles = _Profiles(kit, containers)
        live = [*containers.flags(), f"--sample.interval={interval}s"]
        served = stack.enter_context(exporter.running(kit.processes, kit.log, live))
        yield from profiles.results()
        overhead = _overhead(kit, outside)
        kit.facts["context_overhead_mib"] = round(overhead / MIB, 1)
        page = served.page_after(time.time(), SECONDS)
        yield from _memory(kit, page, running, overhead)
        if once := profiles.pages.get("standard"):
            yield from _memory(kit, once, running, overhead, "with --once, ")
        yield from _gap(kit, page, overhead)
        yield from _utilization(kit, served, running)
        loads.finish(running[3])
        loads.kill(running[4])
        page = served.page_after(time.time(), SECONDS)
        for number, how in ((3, "ended"), (4, "was killed")):
            seen = _of(kit, page, USED, number)
            yield equal(f"exporter/memory of a process that {how}, in the next sample", 0, seen)
        yield holds(
            "exporter/two containers on one GPU",
            "both are there with their own memory",
            [_of(kit, page, USED, number) for number in (0, 1)],
            true=_of(kit, page, USED, 0) != _of(kit, page, USED, 1),
        )


def _of(kit: Kit, page: Page, name: str, number: int) -> float | None:
    return page.value(name, pod=pod_name(number), uuid=kit.gpu.uuid)


def _overhead(kit: Kit, load: Load) -> int:
    """Memory of a context that has allocated nothing, as the driver counts it. Raises KitError."""
    program = module("deploy.gpu_kit.driver_answers")
    printed = kit.processes.output(program, kit.log, seconds=SECONDS)
    answers = msgspec.json.decode(printed, type=DriverAnswers)
    for gpu in answers.gpus:
        for pid, used, *_ in gpu.entries(COMPUTE) if gpu.uuid == kit.gpu.uuid else ():
            if pid == load.pid and used == NOT_AVAILABLE:
                raise KitError("the driver does not report the memory of a process")
            if pid == load.pid:
                return used
    raise KitError(f"the driver lists no process {load.pid}: its pids are not those of this /proc")


def _memory(
    kit: Kit, page: Page, running: dict[int, Load], overhead: int, how: str = ""
) -> Iterator[Result]:
    for number, load in running.items():
        expected = load.mib * MIB + overhead
        title = f"exporter/{how}memory of container {number}"
        yield near(title, expected, _of(kit, page, USED, number), TOLERANCE, "bytes")
    yield equal(f"exporter/{how}memory of an idle share", 0, _of(kit, page, USED, IDLE))


def _gap(kit: Kit, page: Page, overhead: int) -> Iterator[Result]:
    used = page.value(DEVICE_USED, uuid=kit.gpu.uuid)
    attributed = sum(page.values(USED, uuid=kit.gpu.uuid))
    gap = page.value(GAP, uuid=kit.gpu.uuid)
    expected = (used or 0) - attributed
    yield near("exporter/attribution gap", expected, gap, MIB, "bytes")
    before = kit.gpu.readings().get("memory_used_bytes", 0) + overhead
    title = "exporter/attribution gap beside what was in use before and one context"
    yield near(title, before, gap, GAP_TOLERANCE, "bytes")
    others = {entry[0] for entry in kit.gpu.entries(COMPUTE)}
    seen = page.value(OUTSIDE, uuid=kit.gpu.uuid)
    yield equal("exporter/processes in no container", 1 + len(others), seen)


def _utilization(kit: Kit, served: RunningExporter, running: dict[int, Load]) -> Iterator[Result]:
    """The median of some samples, as soon as it has settled."""
    deadline = Deadline(kit.pace.settle)
    busy = {number: load.busy for number, load in running.items() if load.busy}
    while True:
        pages = _pages(served, kit.pace.readings)
        results = [
            near(
                f"exporter/SM utilisation of container {number}",
                expected,
                _median(kit, pages, number),
                SM_TOLERANCE,
                "ratio",
            )
            for number, expected in busy.items()
        ]
        settled = all(result.verdict is Verdict.PASSED for result in results)
        if settled or not deadline.left():
            yield from results
            return


def _pages(served: RunningExporter, count: int) -> list[Page]:
    pages: list[Page] = []
    for _ in range(count):
        moment = pages[-1].taken if pages else time.time()
        pages.append(served.page_after(moment, SECONDS))
    return pages


def _median(kit: Kit, pages: Sequence[Page], number: int) -> float | None:
    values = [value for page in pages if (value := _of(kit, page, SM, number)) is not None]
    return statistics.median(values) if values else None


class _Profiles:
    """One sample with the rights of each profile; the programs run side by side."""

    def __init__(self, kit: Kit, containers: Containers) -> None:
        self._kit = kit
        self.pages: dict[str, Page] = {}
        self._started: dict[str, tuple[subprocess.Popen[str], Path]] = {}
        for name, profile in PROFILES.items():
            if not _may_run(profile):
                continue
            log = Path(kit.folder, f"{name}.log")
            line = exporter.command(*containers.flags(profile.off), *profile.flags, "--once")
            rights = ("setpriv", *profile.rights, "--") if profile.rights else ()
            self._started[name] = kit.processes.start([*rights, *line], log), log

    def results(self) -> Iterator[Result]:
        """The page of each is an exposition, and has what its rights allow."""
        for name in PROFILES:
            title = f"exporter/page of profile {name}"
            if name not in self._started:
                yield not_run(title, "setpriv is not installed, or others may not read this folder")
                continue
            process, log = self._started[name]
            text, _ = process.communicate(timeout=SECONDS)
            self._kit.processes.end(process, signal.SIGKILL)
            if process.returncode or not text:
                last = log.read_text(errors="replace").strip().splitlines()
                yield failed(title, last[-1] if last else f"status {process.returncode}")
                continue
            self._kit.kept[f"page-{name}.prom"] = text
            page = self.pages[name] = exporter.parse(text)
            seen = {
                "GPUs": bool(page.values(DEVICE_USED)),
                "memory of containers": bool(page.values(USED)),
            }
            yield equal(title, {"GPUs": True, "memory of containers": name != "minimal"}, seen)


def _may_run(profile: Profile) -> bool:
    """Whether its rights can be had here: root's group has to reach our files."""
    if profile.rights and shutil.which("setpriv") is None:
        return False
    used = (vgpu.__file__, sys.executable, sys.prefix, sys.base_prefix)
    folders = {folder for path in used for folder in Path(path).resolve().parents}
    return profile.root or all(folder.stat().st_mode & 0o011 for folder in folders)
