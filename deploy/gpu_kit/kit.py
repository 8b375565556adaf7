"""What every check gets: the machine, the durations, and the programs that run."""

from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import msgspec

from deploy.gpu_kit.answers import DriverAnswers, GpuAnswers
from deploy.gpu_kit.containers import Cgroups
from deploy.gpu_kit.loads import Loads
from deploy.gpu_kit.processes import Processes

DRIVER_FILE: Final = "driver.json"
"""The kept file of everything that the driver answered while one load ran."""


class Pace(msgspec.Struct, frozen=True):
    """How long things take; figures of a quick run mean nothing and have no verdict.

    Attributes:
        repeat: number of measured calls of each query.
        events: time of the wait for events, in seconds.
        event_slice: time of one such wait, in seconds.
        cost: time for which costs are measured, in seconds.
        interval: the exporter's interval between two samples while costs are measured.
        scrapes: number of measured scrapes.
        containers: number of containers while costs are measured.
        settle: maximum time for a utilisation to become what it is, in seconds.
        readings: number of readings of a utilisation whose median counts.
        figures: whether figures have verdicts.
    """

    repeat: int
    events: float
    event_slice: float
    cost: float
    interval: float
    scrapes: int
    containers: int
    settle: float
    readings: int
    figures: bool


FULL: Final = Pace(
    repeat=200,
    events=60,
    event_slice=2,
    cost=60,
    interval=15,
    scrapes=200,
    containers=8,
    settle=12,
    readings=5,
    figures=True,
)
QUICK: Final = Pace(
    repeat=3,
    events=0.3,
    event_slice=0.1,
    cost=0.5,
    interval=0.2,
    scrapes=5,
    containers=8,
    settle=20,
    readings=1,
    figures=False,
)


class Kit(msgspec.Struct, frozen=True):
    """The machine of a run.

    Attributes:
        pace: see :class:`Pace`.
        answers: what the driver answered at the start.
        cgroups: how processes become those of containers.
        driver_proc: the driver's folder of procfs.
        fake_library: the fake driver's library; None where there is none.
        hami_core: HAMi-core's source; None without a folder.
        folder: for files that nobody keeps; any user may read it.
        log: errors of all programs.
        processes: the programs that run.
        kept: files to keep beside the report, by name.
        facts: of the machine, for the report.
    """

    pace: Pace
    answers: DriverAnswers
    cgroups: Cgroups
    driver_proc: Path
    fake_library: Path | None
    hami_core: Path | None
    folder: Path
    log: Path
    processes: Processes
    kept: dict[str, str] = {}
    facts: dict[str, Any] = {}

    @property
    def gpu(self) -> GpuAnswers:
        """The GPU that loads run on."""
        return self.answers.gpus[0]

    def loads(self) -> Loads:
        """Loads on that GPU."""
        return Loads(self.processes, self.gpu.uuid, self.log)

    def new_folder(self, name: str) -> Path:
        """A new folder that any user may read."""
        path = Path(mkdtemp(prefix=f"{name}-", dir=self.folder))
        path.chmod(0o755)
        return path
