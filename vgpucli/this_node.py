"""This node, sampled without a running exporter, by the exporter's own sampler.

The exporter's flags and environment variables have the node's paths and names, so that they work
for both programs; ``--simulate`` uses an embedded simulated node in their place.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import click
import msgspec

from exporter.compat import Compat
from exporter.flags import DEFAULTS, ExporterOptions
from exporter.main import leave, node_name, open_collectors
from exporter.sampler import MetricsPage, Sampler, SamplerSettings
from simulator.demo import demo
from simulator.node import SimulatedNode
from vgpu.model.facts import GpuSample, GpuSource, KubeletSample, ProcessSample
from vgpu.model.units import GIB
from vgpu.program.flags import field, is_typed
from vgpu.program.process import build_info
from vgpu.sources.collector import Collector
from vgpu.sources.observation import Collectors
from vgpucli.node_flags import FLAGS, NODE_FLAGS

Links = Mapping[tuple[str, str], int]
"""The links that :meth:`vgpu.sources.nvml.NvmlSource.links` returns."""

NvLinks = Mapping[tuple[str, str], bool]
"""The pairs that :meth:`vgpu.sources.nvml.NvmlSource.nvlinks` returns."""

_Answer = TypeVar("_Answer")


class LocalSample(msgspec.Struct, frozen=True):
    """One sample: the page with its view, and its sources; None is off, failed or stale."""

    page: MetricsPage
    gpu: GpuSample | None
    process: ProcessSample | None
    kubelet: KubeletSample | None


class ThisNode:
    """Samples the node on request, for one thread."""

    def __init__(
        self,
        options: ExporterOptions,
        driver: GpuSource,
        links: Callable[[], Links] = dict,
        nvlinks: Callable[[], NvLinks] = dict,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """``links``, ``nvlinks`` return the driver's links; ``before`` runs before a sample."""
        self.name = node_name(options)
        self._options = options
        self._before = before
        self._collectors: Collectors = open_collectors(options, driver)
        self._links = Collector("links", lambda _: links())
        self._nvlinks = Collector("nvlinks", lambda _: nvlinks())
        settings = SamplerSettings(
            node=self.name,
            interval=options.sample_interval,
            timeout=options.sample_timeout,
            compat=(Compat.NONE,),
            gpushare_unit_bytes=options.gpushare_memory_unit,
            volcano_unit_bytes=options.volcano_unit_bytes,
            build=build_info(),
        )
        self._sampler = Sampler(settings, self._collectors, driver, dict)

    def sample(self) -> LocalSample:
        """Sample now. Takes at most twice ``--sample.timeout``, even if the driver hangs."""
        self._before()
        begun = time.monotonic()
        page = self._sampler.sample()
        collectors = self._collectors
        return LocalSample(
            page,
            collectors.nvml.data(begun) if collectors.nvml else None,
            collectors.process.data(begun) if collectors.process else None,
            collectors.kubelet.data(begun) if collectors.kubelet else None,
        )

    def links(self) -> Links:
        """The links of the last sample's GPUs, without those that the driver does not report."""
        return self._asked(self._links) or {}

    def nvlinks(self) -> NvLinks:
        """Whether two GPUs reach each other over NVLink, likewise."""
        return self._asked(self._nvlinks) or {}

    def _asked(self, collector: Collector[_Answer]) -> _Answer | None:
        begun = time.monotonic()
        collector.begin(None)
        collector.finish(begun + self._options.sample_timeout)
        return collector.data(begun)

    def leave(self, status: int) -> int:
        """Release the driver; returns the exit status. Ends the process if a call hangs."""
        return leave(self._sampler, status)


def on_node(options: ExporterOptions, node: SimulatedNode, tokens_url: str = "") -> ExporterOptions:
    """The options with every path pointing into the simulated node, and its token daemon."""
    paths = node.paths
    if tokens_url:
        collectors = options.collectors | {"tokens"}
        options = msgspec.structs.replace(options, collectors=collectors, tokens_url=tokens_url)
    return msgspec.structs.replace(
        options,
        node_name=node.scenario.node,
        shim_root=paths.shim_roots,
        kubelet_log_dir=paths.log_dir,
        kubelet_checkpoint=paths.checkpoint,
        pods=paths.pods_file,
        limits_gaia_dir=paths.gaia_dir,
        limits_kubeshare_dir=paths.kubeshare_dir,
        limits_mps_dir=paths.mps_dir,
        plugin_state_dir=paths.state_dir,
        path_procfs=paths.procfs,
        path_cgroupfs=paths.cgroupfs,
        gpushare_memory_unit=options.gpushare_memory_unit or GIB,
        volcano_memory_factor=options.volcano_memory_factor or 1024,
    )


@contextmanager
def this_node(ctx: click.Context, interval: float = DEFAULTS.sample_interval) -> Iterator[ThisNode]:
    """The node that the flags of ``ctx`` describe; ``interval`` seconds are between two samples."""
    flags = {field(name): ctx.params[field(name)] for name in FLAGS}
    options = ExporterOptions(
        **flags, sample_interval=interval, collectors=DEFAULTS.collectors - {"xid"}
    )
    if ctx.params["simulate"]:
        taken = [name for name in NODE_FLAGS if is_typed(ctx, field(name))]
        if taken:
            raise click.UsageError(f"{', '.join(taken)}: --simulate brings its own node", ctx)
        with tempfile.TemporaryDirectory(prefix="vgpu-node-") as folder:
            simulated = SimulatedNode(demo(), folder)
            yield ThisNode(
                on_node(options, simulated),
                simulated.driver(),
                before=lambda: simulated.write(time.time() - simulated.start),
            )
        return
    from vgpu.sources.nvml import NvmlSource  # noqa: PLC0415  # ctypes and pynvml only if asked

    driver = NvmlSource()
    yield ThisNode(options, driver, driver.links, driver.nvlinks)
