"""Nodes with real exporters, for a cluster of them: each goes on as its story has it."""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

from msgspec import structs

from simulator.scenario import Scenario, SimulatedContainer
from tests.support import nvml_fake
from tests.support.fleet_node import fleet_node, of_nvidias_plugin
from tests.support.live import LiveExporter
from vgpu.model.allocation import Share
from vgpu.model.names import Scheme
from vgpu.model.units import GIB
from vgpu.schemes.nvidia.grant import NVIDIA

KINDS = (
    (8, 24, Scheme.VOLCANO, False),
    (4, 10, Scheme.GPUSHARE, False),
    (2, 4, Scheme.GAIA, False),
    (4, 6, Scheme.KUBESHARE, False),
    (2, 6, NVIDIA, True),
    (2, 6, NVIDIA, False),
    (2, 0, Scheme.NONE, False),
)
"""GPUs, containers and the sharing system of nodes on which nothing is wrong, and whether NVIDIA's
own plugin shares by MPS there.
"""

FIRST = 6
"""The number of the first of them: the story of the cluster has those up to five."""


class LivingNode(LiveExporter):
    """A node that goes on: each :meth:`move_on` makes it as its story has it by now."""

    def __init__(
        self, folder: Path, scenario: Scenario, *flags: str, interval: str = "500ms"
    ) -> None:
        folder.mkdir()
        super().__init__(folder, scenario, f"--sample.interval={interval}", *flags)
        logs = Path(self.node.paths.log_dir)
        for path in (*map(Path, self.node.paths.shim_roots), logs, logs.with_name("containers")):
            path.mkdir(parents=True, exist_ok=True)  # they are there where nobody is, too
        self._xids: list[nvml_fake.Xid] = []

    def move_on(self) -> None:
        """Its files and its driver at this second."""
        t = time.time() - self.node.start
        self.node.write(t)
        self.sample = self.node.driver(lambda: t).sample(0.0)
        story = self.node.scenario
        due = [xid for xid in story.xids if xid.at <= t][len(self._xids) :]
        self._xids += [nvml_fake.Xid(story.gpus[xid.gpu].uuid, xid.xid) for xid in due]
        self.write_driver(xids=self._xids)


def well(folder: Path, count: int = len(KINDS)) -> list[LivingNode]:
    """Nodes on which nothing is wrong, one of each kind in turn; little happens on them."""
    kinds = enumerate(islice(cycle(KINDS), count), FIRST)
    stories = {
        number: shared_by(scheme, fleet_node(gpus, pods, number), mps=mps)
        for number, (gpus, pods, scheme, mps) in kinds
    }
    return [
        LivingNode(folder / f"well-{number}", story, interval="2s")
        for number, story in stories.items()
    ]


def shared_by(scheme: Scheme, node: Scenario, *, mps: bool = False) -> Scenario:
    """The same node with another sharing system. Only Volcano's and HAMi's keeps regions.

    ``mps`` is whether NVIDIA's own plugin shares by MPS, and not by time-slicing.
    """
    if scheme is NVIDIA:
        return of_nvidias_plugin(node, mps=mps)

    def taken(container: SimulatedContainer) -> SimulatedContainer:
        if scheme is Scheme.VOLCANO:
            return container
        shares = tuple(in_gib(share) for share in container.shares)
        return structs.replace(container, scheme=scheme, shares=shares, shim=None)

    pods = tuple(
        structs.replace(pod, containers=tuple(map(taken, pod.containers))) for pod in node.pods
    )
    return structs.replace(node, pods=pods)


def in_gib(share: Share) -> Share:
    """What every system can say."""
    return structs.replace(share, memory_bytes=share.memory_bytes // GIB * GIB)


@contextmanager
def running(nodes: Iterable[LiveExporter]) -> Iterator[None]:
    """Their exporters, started and ended together: one after the other would take long."""
    together = list(nodes)
    with ThreadPoolExecutor(len(together)) as pool:
        try:
            list(pool.map(lambda node: node.__enter__(), together))
            yield
        finally:
            list(pool.map(LiveExporter.stop, together))
