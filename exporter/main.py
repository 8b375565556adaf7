"""`vgpu exporter`: flags in, sources opened, sampler and server run until a signal."""

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import click

from exporter.compat import Compat
from exporter.flags import ExporterOptions, all_flags, options_from
from exporter.pages import routes
from exporter.sampler import MetricsPage, Sampler, SamplerSettings
from vgpu.cli import version_option
from vgpu.facts import GpuSource
from vgpu.metrics.render import Format
from vgpu.program import logs, signals
from vgpu.program.process import build_info, own_numbers
from vgpu.reasons import SourceError
from vgpu.sources.collector import Collector
from vgpu.sources.living import living_pods
from vgpu.sources.observation import Collectors
from vgpu.sources.pods import PodFile
from vgpu.web.config import WebConfigError, WebConfigFile
from vgpu.web.server import ListenError, WebServer

log = logging.getLogger(__name__)

EXIT_FAILURE = 1


def node_name(options: ExporterOptions) -> str:
    """The node's name as configured, else the host's."""
    return options.node_name or socket.gethostname()


def nvml_driver(options: ExporterOptions) -> GpuSource:
    """The real driver."""
    from vgpu.sources.nvml import NvmlSource  # noqa: PLC0415  # ctypes and pynvml only if asked

    return NvmlSource(pcie_throughput=options.nvml_pcie_throughput)


def open_collectors(options: ExporterOptions, driver: GpuSource | None) -> Collectors:
    """The collectors that are switched on, over their sources."""
    on, opened = options.collectors, Collectors()
    living = living_pods(options.path_cgroupfs, options.kubelet_log_dir)
    if driver is not None:
        opened.nvml = Collector("nvml", driver.sample)
    if "shim" in on:
        from vgpu.sources.shim import DEFAULT_ROOTS, ShimSource  # noqa: PLC0415

        # A node without HAMi has none of the default roots, and that is no failure.
        roots = options.shim_root or DEFAULT_ROOTS
        shim = ShimSource(roots, required=bool(options.shim_root), living=living)
        opened.shim = Collector("shim", lambda _: shim.sample())
    if "kubelet" in on:
        from vgpu.sources.kubelet import KubeletSource  # noqa: PLC0415

        try:
            kubelet = KubeletSource(
                log_dir=options.kubelet_log_dir,
                checkpoint=options.kubelet_checkpoint,
                pod_resources=options.kubelet_pod_resources,
            )
        except SourceError as error:  # the extra is not installed
            raise click.UsageError(f"--kubelet.pod-resources: {error.detail}") from error
        opened.kubelet = Collector("kubelet", kubelet.sample)
    if "limits" in on:
        from vgpu.sources.limits import LimitSource  # noqa: PLC0415

        limits = LimitSource(options.limits_gaia_dir, options.limits_kubeshare_dir, living=living)
        opened.limits = Collector("limits", lambda _: limits.sample())
    if "plugin" in on:
        from vgpu.sources.own_checkpoint import OwnCheckpointSource  # noqa: PLC0415

        own = OwnCheckpointSource(options.plugin_state_dir, options.path_procfs)
        opened.own = Collector("plugin", own.sample)
    opened.pods = open_pods(options)
    if "process" in on:
        from vgpu.sources.runtime import ProcessSource  # noqa: PLC0415

        process = ProcessSource(options.path_procfs, options.path_cgroupfs, bare="bare" in on)
        opened.process = Collector("process", process.sample)
    return opened


def open_pods(options: ExporterOptions) -> Collector[Any] | None:
    """The source of pods: the API server, or a dump; None without one."""
    node = node_name(options)
    if "api" in options.collectors:
        from exporter.api import watch  # noqa: PLC0415  # the client library is large

        try:
            followed = watch(options.kubeconfig or "", node)
        except SourceError as error:
            raise click.UsageError(f"--collector.api: {error.detail}") from error
        return Collector("api", followed.sample)
    if options.pods:
        return Collector("pods", PodFile(options.pods, node).sample)
    return None


def make_sampler(
    options: ExporterOptions, driver: GpuSource | None, config: WebConfigFile | None = None
) -> Sampler:
    """The sampler of these options; ``driver`` None is a node without the nvml collector."""
    settings = SamplerSettings(
        node=node_name(options),
        interval=options.sample_interval,
        timeout=options.sample_timeout,
        compat=options.compat,
        compat_breakdown=options.compat_breakdown,
        gpushare_unit_bytes=options.gpushare_memory_unit,
        volcano_unit_bytes=options.volcano_unit_bytes,
        expected_gpus=options.nvml_expected_gpus,
        build=build_info(),
    )
    return Sampler(settings, open_collectors(options, driver), driver, own_numbers(config))


def run(
    options: ExporterOptions,
    driver: GpuSource | None,
    announce: Callable[[str, MetricsPage], None] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; the exit status.

    ``announce`` is told the first URL and the first page as soon as both are there.
    """
    if options.once:
        sampler = make_sampler(options, driver)
        sys.stdout.buffer.write(sampler.sample().exposition.body(Format.TEXT))
        sys.stdout.flush()
        return leave(sampler, 0)
    signals.block_ending()
    try:
        config = WebConfigFile(options.web_config_file) if options.web_config_file else None
        sampler = make_sampler(options, driver, config)
        server = WebServer(
            routes(sampler, options.web_telemetry_path, legacy_path=Compat.GAIA in options.compat),
            options.web_listen_address,
            config,
            max_requests=options.web_max_requests,
            max_connections=options.web_max_connections,
            max_per_address=options.web_max_connections_per_address,
        )
        server.start()
    except (WebConfigError, ListenError) as error:
        log.error("cannot serve: %s", error)  # noqa: TRY400  # the message is for the operator
        return EXIT_FAILURE
    sampler.start(on_fatal=lambda: os.kill(os.getpid(), signal.SIGTERM))
    if "xid" in options.collectors:
        sampler.watch_xids()
    log.info("serving", extra={"addresses": ",".join(server.urls)})
    if announce is not None:
        page = sampler.wait_until_ready(signals.is_ending)
        if page is not None:
            announce(server.urls[0], page)
    received = signals.wait()
    log.info("stopping", extra={"reason": sampler.fatal or received.name})
    server.stop()
    return leave(sampler, EXIT_FAILURE if sampler.fatal else 0)


def leave(sampler: Sampler, status: int) -> int:
    """End at once if a call is stuck in the driver: nothing else would bring it back."""
    if not sampler.stop():
        sys.stdout.flush()
        logging.shutdown()
        os._exit(status)
    return status


EPILOG = """\
\b
Examples:
  vgpu exporter --collector.api --node-name "$NODE_NAME"
  vgpu exporter --compat volcano --compat volcano-scheduler --volcano.memory-factor 1
  vgpu exporter --once | grep vgpu_collector_success
"""


@click.command("exporter", epilog=EPILOG, context_settings={"max_content_width": 100})
@all_flags
@version_option
@click.pass_context
def command(ctx: click.Context, /, **_: Any) -> None:
    """Serve this node's GPU metrics to Prometheus.

    Every flag is also an environment variable: --web.listen-address is
    VGPU_WEB_LISTEN_ADDRESS; a repeatable one takes a space-separated list.
    """
    options = options_from(ctx)
    logs.configure(options.log_level, options.log_format)
    signals.ignore()
    ctx.exit(run(options, nvml_driver(options) if "nvml" in options.collectors else None))
