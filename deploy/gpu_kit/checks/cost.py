"""What the exporter costs with some containers, beside a loop that only calls the driver."""

import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from deploy.gpu_kit import exporter
from deploy.gpu_kit.containers import Containers
from deploy.gpu_kit.kit import Kit
from deploy.gpu_kit.loads import LoadPlan
from deploy.gpu_kit.processes import cpu_seconds, module
from deploy.gpu_kit.result import Result, at_most, not_run

OWN_SECONDS: Final = 1.0
"""Maximum CPU time of a minute beyond that of the loop, in seconds."""

SCRAPE_MILLISECONDS: Final = 10.0
"""Maximum median of a scrape, which copies bytes and asks nobody, in milliseconds."""


def check(kit: Kit) -> Iterator[Result]:
    """See the module."""
    pace = kit.pace
    containers = Containers(
        kit.new_folder("node"), kit.answers.gpus, kit.gpu.uuid, pace.containers, kit.cgroups
    )
    with ExitStack() as stack:
        stack.callback(containers.close)
        # Each is busy for a part of the period that no other has.
        width = 0.5 / pace.containers
        plans = [
            LoadPlan(mib=64, busy=width, phase=number / pace.containers)
            for number in range(pace.containers)
        ]
        for number, load in enumerate(stack.enter_context(kit.loads().running(*plans))):
            containers.put(number, load.pid)
        loop = kit.processes.start(
            module("deploy.gpu_kit.nvml_loop", f"--interval={pace.interval}"), kit.log
        )
        stack.callback(kit.processes.end, loop, signal.SIGKILL)
        flags = [
            *containers.flags(),
            f"--sample.interval={pace.interval}s",
        ]
        served = stack.enter_context(exporter.running(kit.processes, kit.log, flags))
        if loop.stdout is not None:
            loop.stdout.readline()
        pids = {"exporter": served.process.pid, "loop": loop.pid}
        begun = {name: cpu_seconds(pid) for name, pid in pids.items()}
        started = time.monotonic()
        scrapes = []
        for _ in range(pace.scrapes):
            scrapes.append(1000 * served.scrape()[1])
            time.sleep(pace.cost / pace.scrapes)
        minutes = (time.monotonic() - started) / 60
        used = {name: (cpu_seconds(pid) - begun[name]) / minutes for name, pid in pids.items()}
    kit.facts["cost"] = {
        "containers": pace.containers,
        "seconds": round(60 * minutes, 1),
        "sample_interval": pace.interval,
        "scrapes": pace.scrapes,
        "exporter_cpu_seconds_per_minute": round(used["exporter"], 3),
        "loop_cpu_seconds_per_minute": round(used["loop"], 3),
        "scrape_p50_milliseconds": round(statistics.median(scrapes), 3),
    }
    own, median = round(used["exporter"] - used["loop"], 3), round(statistics.median(scrapes), 3)
    names = "cost/CPU of a minute beyond the driver's calls", "cost/median of a scrape"
    if pace.figures:
        yield at_most(names[0], OWN_SECONDS, own, "s")
        yield at_most(names[1], SCRAPE_MILLISECONDS, median, "ms")
        return
    for name, figure in zip(names, (own, median), strict=True):
        yield not_run(name, "a quick run measures no figures", figure)
