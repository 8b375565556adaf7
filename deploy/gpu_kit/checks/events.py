"""Whether a wait for events really blocks: a driver that returns at once makes a thread spin."""

from collections.abc import Iterator

import msgspec

from deploy.gpu_kit.event_wait import Waited
from deploy.gpu_kit.kit import Kit
from deploy.gpu_kit.processes import module
from deploy.gpu_kit.result import Result, at_most, equal, holds, not_run

CPU_SECONDS_PER_MINUTE = 0.3
"""Maximum CPU time of a minute of waiting, in seconds."""


def check(kit: Kit) -> Iterator[Result]:
    """See the module."""
    pace = kit.pace
    program = module(
        "deploy.gpu_kit.event_wait", f"--seconds={pace.events}", f"--slice={pace.event_slice}"
    )
    printed = kit.processes.output(program, kit.log, seconds=pace.events + 20)
    waited = msgspec.json.decode(printed, type=Waited)
    kit.facts["events"] = waited
    yield equal("events/GPUs whose events are heard", waited.gpus, waited.heard)
    most = 2 * int(pace.events / pace.event_slice) + 2 + waited.events
    yield holds(
        "events/waits that returned",
        f"at most {most}, one for each event among them",
        waited.waits,
        true=0 < waited.waits <= most,
    )
    name = "events/CPU of a minute"
    per_minute = 60 * waited.cpu_seconds / max(waited.seconds, 0.001)
    if pace.figures:
        yield at_most(name, CPU_SECONDS_PER_MINUTE, round(per_minute, 4), "s")
    else:
        yield not_run(name, "a quick run measures no figures", round(per_minute, 4))
