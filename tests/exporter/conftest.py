"""A simulated node under test: real files, real sources, the simulated driver."""

import msgspec
import pytest

from exporter.flags import ExporterOptions
from exporter.main import open_collectors, sampler_settings
from exporter.sampler import Sampler
from simulator.demo import demo
from simulator.node import SimulatedNode
from tests.support.waiting import WAIT_SECONDS
from vgpu.program.process import process_numbers
from vgpucli.demo.command import on_node


class Bench:
    """The demo node at second ``t``, its driver, and a sampler over both."""

    def __init__(self, folder, t=5.0, **changes):
        self.t = t
        self.node = SimulatedNode(demo(), folder)
        self.node.write(t)
        self.driver = self.node.driver(lambda: self.t)
        options = on_node(
            ExporterOptions(sample_interval=600.0, sample_timeout=WAIT_SECONDS), self.node
        )
        options = msgspec.structs.replace(options, **changes)
        self.settings = sampler_settings(options)
        self.collectors = open_collectors(options, self.driver)
        self.read_own = process_numbers(None)
        self.restart()

    def restart(self, timer=None, **changes):
        """Another sampler, with changed settings, over the same collectors and their data."""
        settings = msgspec.structs.replace(self.settings, **changes)
        self.sampler = Sampler(settings, self.collectors, self.driver, self.own, timer)

    def own(self):
        return self.read_own()

    def move(self, t):
        self.t = t
        self.node.write(t)

    def share(self, view, pod):
        """The largest share of the pod whose name begins so."""
        found = [s for s in view.usage.shares if s.pod.name.startswith(pod)]
        return max(found, key=lambda s: s.used_bytes or 0)


@pytest.fixture
def make_bench(tmp_path):
    made = []

    def make(**changes):
        made.append(Bench(tmp_path / str(len(made)), **changes))
        return made[-1]

    yield make
    for bench in made:
        bench.driver.recover()
        bench.sampler.stop()


@pytest.fixture
def bench(make_bench):
    return make_bench()
