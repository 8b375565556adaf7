"""Writes docs/top.svg and docs/topology.txt: what `vgpu top` and `vgpu topology` show.

    python docs/top_picture.py

The first is a minute of the demo's node, the second a simulated node of eight GPUs. Both are
sampled by the exporter's own sampler; time is the scenario's, so nothing is waited for.
"""

import io
import logging
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from exporter.flags import DEFAULTS  # noqa: E402
from simulator.demo import demo  # noqa: E402
from simulator.node import SimulatedNode  # noqa: E402
from simulator.scenario import Scenario  # noqa: E402
from tests.support.fleet_node import fleet_node  # noqa: E402
from vgpu.metrics.render import Format  # noqa: E402
from vgpu.model.facts import GpuSample  # noqa: E402
from vgpu.model.topology import LinkLevel  # noqa: E402
from vgpucli.this_node import (  # noqa: E402
    LocalSample,
    ThisNode,
    on_node,
)
from vgpucli.top.frame import ScreenState, Size, frame, grown  # noqa: E402
from vgpucli.top.keys import Sort  # noqa: E402
from vgpucli.top.reading import read_page  # noqa: E402
from vgpucli.topology.messages import graph_text  # noqa: E402
from vgpucli.topology.state import by_links, state_of  # noqa: E402

SIZE = Size(126, 22)
SECONDS = 58  # the demo's faults of its second minute are not in the picture


def samples(scenario: Scenario, seconds: int) -> Iterator[LocalSample]:
    """The node at each second from 0 on."""
    with tempfile.TemporaryDirectory(prefix="vgpu-picture-") as folder:
        simulated = SimulatedNode(scenario, folder)
        second = 0.0
        options = msgspec.structs.replace(DEFAULTS, collectors=DEFAULTS.collectors - {"xid"})
        node = ThisNode(
            on_node(options, simulated),
            simulated.driver(lambda: second),
            before=lambda: simulated.write(second),
        )
        for at in range(seconds):
            second = float(at)
            yield node.sample()
        node.leave(0)


def minute() -> ScreenState:
    """What `vgpu top` knows of the demo's node after a minute."""
    state = ScreenState("http://gpu-node-1:9394", clock="03:12:45")
    for sample in samples(demo(), SECONDS):
        reading = read_page(sample.page.exposition.body(Format.TEXT).decode())
        trends = grown(state.trends, reading)
        state = msgspec.structs.replace(state, reading=reading, trends=trends)
    return state


def picture(state: ScreenState) -> str:
    """The screen as SVG, in a font that the reader has."""
    console = Console(
        record=True,
        width=SIZE.columns,
        file=io.StringIO(),
        force_terminal=True,
        color_system="256",
    )
    console.print(frame(state, SIZE, Sort.NAME), no_wrap=True, crop=True)
    drawn = console.export_svg(title="vgpu top", theme=DIMMED_MONOKAI, unique_id="top")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


def drawing() -> str:
    """Eight GPUs in two sockets, two behind each switch; five of them are used."""
    for sample in samples(fleet_node(gpus=8, containers=5), 1):
        gpu = sample.gpu or GpuSample(())
        gpus = [one.uuid for one in gpu.gpus]
        links = {
            (first, second): level(at, other)
            for at, first in enumerate(gpus)
            for other, second in enumerate(gpus)
        }
        view = sample.page.view
        told = state_of(view, gpu, sample.process, sample.kubelet, by_links(links))
    return graph_text(told)


def level(first: int, second: int) -> LinkLevel:
    """What two of the eight have between them."""
    if first // 4 != second // 4:
        return LinkLevel.SYS
    return LinkLevel.PIX if first // 2 == second // 2 else LinkLevel.CPU


def main() -> None:
    """Write both."""
    logging.getLogger().addHandler(logging.NullHandler())
    (HERE / "top.svg").write_text(picture(minute()))
    (HERE / "topology.txt").write_text(drawing())


if __name__ == "__main__":
    main()
