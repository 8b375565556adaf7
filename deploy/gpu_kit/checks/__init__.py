"""The checks, as a table: the most important first, since a run has six minutes."""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from deploy.gpu_kit.checks import (
    cost,
    device_plugin,
    events,
    exporter_page,
    fake_driver,
    hami_core,
    pids,
    queries,
)
from deploy.gpu_kit.kit import Kit
from deploy.gpu_kit.result import Result


class Check(msgspec.Struct, frozen=True):
    """A row: its name, what runs it, and the maximum time that it may take, in seconds."""

    name: str
    run: Callable[[Kit], Iterator[Result]]
    seconds: float


CHECKS: Final = (
    Check("pids", pids.check, 30),
    Check("queries", queries.check, 40),
    Check("fake", fake_driver.check, 15),
    Check("exporter", exporter_page.check, 75),
    Check("device-plugin", device_plugin.check, 30),
    Check("hami-core", hami_core.check, 60),
    Check("events", events.check, 70),
    Check("cost", cost.check, 95),
)
"""Together they may take longer than a run; the last ones are then not run."""
