"""`vgpu exporter`: flags in, sources opened, sampler and server run until a signal."""

import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping

import click
import msgspec

from exporter.compat import Compat
from exporter.details import Detail
from exporter.families.devices import DETAIL_READINGS
from exporter.flags import ExporterOptions
from exporter.pages import routes
from exporter.sampler import XID_WAIT_SECONDS, MetricsPage, Sampler, SamplerSettings
from vgpu.metrics.render import Format
from vgpu.model.facts import GpuSource
from vgpu.model.reasons import SourceError
from vgpu.program import termination
from vgpu.program.flags import field
from vgpu.program.host import ProgramHost
from vgpu.program.output import say_document
from vgpu.program.process import build_info, process_numbers
from vgpu.program.termination import exit_now
from vgpu.program.web_flags import WebOptions
from vgpu.schemes.registry import registry
from vgpu.sources.collector import Collector
from vgpu.sources.http_access import BadOption
from vgpu.sources.kubelet import KubeletSource
from vgpu.sources.node_sources import NodePaths, NodeSources
from vgpu.sources.observation import Collectors
from vgpu.sources.pods import PodFile

VERIFY_SECONDS = 300.0
"""Minimum time between two verifications of the kubelet's checkpoint, in seconds."""

DESCRIPTORS = 65_536
"""Number of descriptors that the exporter allows itself."""


def node_name(options: ExporterOptions) -> str:
    """The node's name as configured, else the host's."""
    return options.node_name or socket.gethostname()


def nvml_driver(options: ExporterOptions) -> GpuSource:
    """The real driver."""
    from vgpu.sources.nvml import NvmlSource  # noqa: PLC0415  # ctypes and pynvml only if asked

    return NvmlSource(
        pcie_throughput=options.nvml_pcie_throughput,
        # A sample that initialises the driver again waits for this, and then for the driver.
        longest_wait=min(XID_WAIT_SECONDS, options.sample_timeout / 2),
        without=() if Detail.DEVICES in options.metrics_detail else DETAIL_READINGS,
    )


def node_paths(options: ExporterOptions) -> NodePaths:
    """The paths of the node's sources, from the flags."""
    return NodePaths(
        shim_roots=options.shim_root,
        procfs=options.path_procfs,
        cgroupfs=options.path_cgroupfs,
        log_dir=options.kubelet_log_dir,
        checkpoint=options.kubelet_checkpoint,
        pod_resources=options.kubelet_pod_resources,
        dra_state=options.kubelet_dra_state,
        cdi_dirs=options.dra_spec_dir,
        limit_dirs={
            name: getattr(options, field(files.flag), files.folder)
            for name, files in registry().limit_files.items()
        },
        state_dir=options.plugin_state_dir,
        mps_dir=options.limits_mps_dir,
        tokens_url=options.tokens_url,
        tokens_access=options.tokens_access,
    )


def open_collectors(options: ExporterOptions, driver: GpuSource | None) -> Collectors:
    """The collectors that are switched on, over their sources."""
    on = options.collectors
    try:
        # A node without HAMi has none of the usual roots, and that is no failure.
        sources = NodeSources.open(
            node_paths(options),
            on,
            roots_required=bool(options.shim_root),
            bare="bare" in on,
            verify_seconds=VERIFY_SECONDS,
            watch=True,
        )
    except SourceError as error:  # the extra is not installed
        raise click.UsageError(f"--kubelet.pod-resources: {error.detail}") from error
    except ValueError as error:
        raise click.UsageError(f"--tokens.url: {error}") from error
    except BadOption as error:
        raise click.UsageError(str(error)) from error
    collectors = sources.collectors(driver.sample if driver is not None else None)
    if options.pods:
        collectors.pods = Collector("pods", PodFile(options.pods, node_name(options)).sample)
    open_api(options, collectors, sources.kubelet)
    return collectors


def open_api(
    options: ExporterOptions, collectors: Collectors, kubelet: KubeletSource | None
) -> None:
    """Add the collectors that ask the API server, if one of them is on."""
    on = options.collectors & {"api", "dra"}
    if not on:
        return
    from exporter import api  # noqa: PLC0415  # the client library is large

    node = node_name(options)
    try:
        server = api.connect(options.kubeconfig or "")
    except SourceError as error:
        raise click.UsageError(f"--collector.{min(on)}: {error.detail}") from error
    if "api" in on:
        collectors.pods = Collector("api", api.watch(server, node).sample)
    if "dra" in on and kubelet is not None:
        resource_claims = api.resource_claims(server, node, lambda: kubelet.newest)
        collectors.resource_claims = Collector("dra", resource_claims.sample)


def sampler_settings(options: ExporterOptions) -> SamplerSettings:
    """The sampler's settings, from the flags."""
    return SamplerSettings(
        node=node_name(options),
        interval=options.sample_interval,
        timeout=options.sample_timeout,
        compat=options.compat,
        compat_breakdown=options.compat_breakdown,
        details=frozenset(options.metrics_detail),
        gpushare_unit_bytes=options.gpushare_memory_unit,
        volcano_unit_bytes=options.volcano_unit_bytes,
        expected_gpus=options.nvml_expected_gpus,
        build=build_info(),
    )


def make_sampler(
    options: ExporterOptions,
    driver: GpuSource | None,
    own: Callable[[], Mapping[str, float]] | None = None,
) -> Sampler:
    """The sampler of these options; ``driver`` None is a node without the nvml collector."""
    collectors = open_collectors(options, driver)
    return Sampler(sampler_settings(options), collectors, driver, own or process_numbers(None))


def run(
    options: ExporterOptions,
    driver: GpuSource | None,
    announce: Callable[[str, MetricsPage], None] | None = None,
    ignored: Iterable[signal.Signals] = termination.IGNORED,
) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status. Raises CannotServe.

    ``announce`` is called with the first URL and the first page as soon as both exist.
    """
    if options.once:
        termination.ignore(ignored)
        sampler = make_sampler(options, driver)
        say_document(sampler.sample().exposition.body(Format.TEXT).decode())
        sys.stdout.flush()
        return leave(sampler, 0)
    raise_descriptor_limit()
    with ProgramHost(WebOptions.of(msgspec.structs.asdict(options)), ignored) as host:
        sampler = make_sampler(options, driver, host.process_numbers)
        host.start(
            routes(sampler, options.web_telemetry_path, legacy_path=Compat.GAIA in options.compat)
        )
        sampler.start(on_fatal=lambda: host.fail(sampler.fatal or ""))
        if "xid" in options.collectors:
            sampler.watch_xids()
        host.announce()
        if announce is not None:
            page = sampler.wait_until_ready(host.is_ending)
            if page is not None:
                announce(host.urls[0], page)
        host.wait()
    return host.leave(stuck=not sampler.stop())


def raise_descriptor_limit() -> None:
    """Allow this process more descriptors, if it may have them: a watched process takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def leave(sampler: Sampler, status: int) -> int:
    """End the process at once if a call is stuck in the driver: it cannot be cancelled."""
    if not sampler.stop():
        exit_now(status)
    return status
