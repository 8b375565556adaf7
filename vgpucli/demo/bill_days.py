"""Closed days that are made up, for `vgpu bill` where nothing was measured. Pure.

Their first lines name the generator and its seed, and a bill of them has a note with both. The same
seed makes the same files.
"""

from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from vgpucli.bill.day_file import FORMAT
from vgpucli.bill.days import bounds
from vgpucli.bill.model import SECOND, ClosedDay, DayHead, GpuDay, GpuKey, ShareDay, ShareKey
from vgpucli.bill.timeline import STEP

SEED: Final = 51

MODELS: Final = ("NVIDIA A100-SXM4-80GB", "NVIDIA L40S")
TEAMS: Final = ("research", "vision", "speech", "")
"""The last one is that of namespaces without a team."""

GPUS_OF_A_NODE: Final = 8
PODS_OF_A_GPU: Final = 5

PRICES: Final = f"""\
currency: EUR
issuer: vgpu demo
prices:
  - {{model: {MODELS[0]}, per_gpu_hour: "2.10"}}
  - {{model: {MODELS[1]}, per_gpu_hour: "1.05"}}
"""
"""A price table for them."""


class MadeUp(NamedTuple):
    """What is made up: pods, of which five share a GPU, and the seed of all that is chosen."""

    pods: int
    seed: int = SEED

    @property
    def generator(self) -> str:
        """What the first line of a file has."""
        return f"vgpucli/demo/bill_days.py, seed {self.seed}, {self.pods} pods"

    def day(self, day: str) -> ClosedDay:
        """A day of UTC. Each pod is on the same GPU on each day, for another part of it."""
        random = Random(f"{self.seed} {day}")  # noqa: S311  # nothing secret
        begin, end = bounds(day, ZoneInfo("UTC"))
        head = DayHead(FORMAT, day, "UTC", begin, end, STEP, generator=self.generator)
        gpus: list[GpuDay] = []
        shares: list[ShareDay] = []
        for index in range(-(-self.pods // PODS_OF_A_GPU)):
            gpu = self._gpu(random, head, index)
            gpus.append(gpu)
            of_gpu = range(index * PODS_OF_A_GPU, min(self.pods, (index + 1) * PODS_OF_A_GPU))
            shares += self._shares(random, gpu, of_gpu)
        return ClosedDay(head, (*gpus,), (*shares,))

    def _gpu(self, random: Random, head: DayHead, index: int) -> GpuDay:
        node, number = divmod(index, GPUS_OF_A_NODE)
        uuid = f"GPU-{index:08x}-0000-4000-8000-{self.seed:012x}"
        key = GpuKey(head.day, "", f"gpu-node-{node + 1}", uuid)
        hole = random.choice((0, 0, 0, 1, 20)) * STEP * SECOND
        total = (head.end - head.start) * SECOND
        model = MODELS[number % len(MODELS)]
        return GpuDay(key, model, total, hole, first=head.start, last=head.end)

    def _shares(self, random: Random, gpu: GpuDay, pods: range) -> Iterator[ShareDay]:
        """Their sum is at most the measured time, since each has at most its part of it."""
        measured = gpu.total - gpu.not_measured
        for pod in pods:
            held = round(measured / PODS_OF_A_GPU * random.choice((0.25, 0.5, 1.0)))
            used = round(held * random.random())
            team = TEAMS[pod % len(TEAMS)]
            namespace = f"{team or 'sandbox'}-{pod // len(TEAMS) % 3}"
            name = ShareKey(namespace, f"job-{pod}-0", f"uid-{pod}", "main", f"Job/job-{pod}", team)
            bound = 2 * STEP * SECOND + gpu.not_measured
            yield ShareDay(gpu.key, name, used, held - used, bound=bound)
