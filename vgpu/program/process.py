"""The values that a program reads of itself for the tables of :mod:`vgpu.metrics.own`."""

import os
import platform
from collections.abc import Callable, Mapping

from prometheus_client import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from vgpu import __version__
from vgpu.web.config import WebConfigFile


def build_info() -> Mapping[str, str]:
    """Version and platform, for the build_info metrics and the log."""
    return {
        "version": __version__,
        "revision": os.environ.get("VGPU_REVISION", ""),
        "python_version": platform.python_version(),
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }


def own_numbers(config: WebConfigFile | None) -> Callable[[], Mapping[str, float]]:
    """A reader of the numbers about this process, by the name of their family."""
    source = ProcessCollector(registry=CollectorRegistry())

    def read() -> Mapping[str, float]:
        numbers = {s.name: s.value for metric in source.collect() for s in metric.samples}
        if config is not None:
            numbers["vgpu_web_config_last_reload_successful"] = int(config.last_reload_ok)
            numbers["vgpu_web_config_reload_failures_total"] = config.reload_failures
        return numbers

    return read
