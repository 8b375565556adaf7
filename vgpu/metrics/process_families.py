"""The metrics of every program about itself: its build, its process, its web config file.

Each table is over a view with ``build`` and ``own``, such as :class:`ProcessView`;
:mod:`vgpu.program.process` reads them.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from vgpu.kube.node_key import NODE_KEY, OWN_NODE_VALUE
from vgpu.metrics.family import Family, FamilyTable, MetricType


class ProcessView(msgspec.Struct, frozen=True):
    """What a program reports of itself: its build, and numbers by the name of their family."""

    build: Mapping[str, str]
    own: Mapping[str, float]


def process_family(
    name: str, help_: str, kind: MetricType = MetricType.GAUGE, unit: str = ""
) -> Family:
    """A family whose number is that of its name in the view's ``own``."""
    return Family(name, kind, help_, lambda view: view.own.get(name), unit=unit)


_BUILD_LABELS: Final = ("version", "revision", "python_version")

BUILD_INFO: Final = Family(
    "vgpu_build_info",
    MetricType.GAUGE,
    "Always 1; what is running.",
    lambda view: {tuple(view.build.get(name, "") for name in _BUILD_LABELS): 1},
    _BUILD_LABELS,
)

BUILD: Final = FamilyTable(
    title="The build",
    rows=lambda view: (view,),
    labels=(),
    key=lambda _: (),
    families=(BUILD_INFO,),
)

WEB: Final = FamilyTable(
    title="The web config file",
    note="Only with --web.config.file.",
    rows=lambda view: (view,),
    labels=(),
    key=lambda _: (),
    families=(
        process_family(
            "vgpu_web_config_last_reload_successful",
            "1 if the file as it is now is in force, 0 if it is broken and an older one is.",
        ),
        process_family(
            "vgpu_web_config_reload_failures_total",
            "Attempts to read a broken file.",
            MetricType.COUNTER,
        ),
    ),
)

NODE_TOKEN: Final = FamilyTable(
    title="The token",
    note="Only with --require-node-token.",
    rows=lambda view: (view,),
    labels=(),
    key=lambda _: (),
    families=(
        process_family(
            "vgpu_node_token_valid",
            f"1 if the token names this node ({NODE_KEY}), 0 if not: a policy refuses all"
            f" writes. {OWN_NODE_VALUE}: false in the chart switches its rule off.",
        ),
    ),
)

PROCESS: Final = FamilyTable(
    title="The process",
    note="As every Prometheus client has them.",
    rows=lambda view: (view,),
    labels=(),
    key=lambda _: (),
    families=(
        process_family(
            "process_cpu_seconds_total",
            "CPU time used (CLOCK_PROCESS_CPUTIME_ID).",
            MetricType.COUNTER,
            "seconds",
        ),
        process_family("process_open_fds", "Open file descriptors (/proc/self/fd)."),
        process_family("process_max_fds", "The most file descriptors allowed (RLIMIT_NOFILE)."),
        process_family(
            "process_virtual_memory_bytes", "Virtual memory (/proc/self/stat).", unit="bytes"
        ),
        process_family(
            "process_resident_memory_bytes", "Resident memory (/proc/self/stat).", unit="bytes"
        ),
        process_family(
            "process_start_time_seconds",
            "When the process started, in unix time (/proc/self/stat).",
            unit="seconds",
        ),
    ),
)


def process_tables(view: Callable[[], ProcessView]) -> tuple[FamilyTable, ...]:
    """All tables of a program about itself, beside tables over a view that does not have that."""
    return tuple(
        msgspec.structs.replace(table, rows=lambda _: (view(),))
        for table in (BUILD, WEB, NODE_TOKEN, PROCESS)
    )
