"""Clusters whose nodes are the same, and which differ by how many targets report each node.

One page has the series of all clusters as scrapes would have stored them, so that each cluster has
the same values at each moment. The nodes are those of the simulator, sampled once by the real
exporter's sampler; the other programs' pages are made up, as those of :mod:`living_cluster`.
"""

import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from deviceplugin.metrics import TABLES as PLUGIN_TABLES
from exporter.compat import Compat
from exporter.compat.tables import SETS
from exporter.flags import ExporterOptions
from exporter.main import make_sampler
from exporter.pages import routes
from kubeshare.metrics import TABLES as CONTROLLER_TABLES
from kubeshare.tokens.metrics import TABLES as TOKEN_TABLES
from scheduler.metrics import TABLES as SCHEDULER_TABLES
from simulator.demo import demo
from simulator.node import SimulatedNode
from simulator.scenario import Scenario
from tests.grafana.living_node import FIRST, shared_by
from tests.grafana.pretended_kubeshare import JOB as CONTROLLERS
from tests.grafana.pretended_kubeshare import working
from tests.grafana.pretended_plugin import JOB as PLUGINS
from tests.grafana.pretended_plugin import PretendedPlugin, named, serving
from tests.grafana.pretended_scheduler import JOB as SCHEDULERS
from tests.grafana.pretended_scheduler import answering
from tests.grafana.pretended_tokens import JOB as TOKENS
from tests.grafana.pretended_tokens import sharing
from tests.grafana.promtool import OURS, with_labels
from tests.support.fleet_node import fleet_node
from tests.support.waiting import WAIT_SECONDS
from vgpu.metrics.render import Format
from vgpu.model.names import Scheme
from vgpu.schemes.nvidia.grant import NVIDIA
from vgpu.web.message import HttpRequest
from vgpu.web.metrics import LiveMetrics
from vgpucli.this_node import on_node

OLD = OURS
NEW = {**OURS, "pod": "vgpu-m9d4t"}
"""The labels of the exporter's pods, of which one replaces the other."""

T = 5.0
"""The second of the nodes' stories."""

ORIGINALS = set(SETS) - {Compat.HAMI_LEGACY}
"""Compatibility sets that one exporter can serve; HAMi's older one has names of Volcano's."""

RECONCILER = """\
vgpu_reconcile_info{scope="cluster",mode="plan"} 1
vgpu_reconcile_namespace_info{namespace="research",team="vision"} 1
vgpu_reconcile_namespace_info{namespace="serving",team="nlp"} 1
vgpu_reconcile_waiting_pods{namespace="research"} 2
vgpu_reconcile_waiting_gpus{namespace="research"} 2
vgpu_reconcile_waiting_memory_bytes{namespace="research"} 7e9
vgpu_reconcile_waiting_core_ratio{namespace="research"} 0.5
vgpu_reconcile_quota_used{namespace="research",resource="memory"} 8e9
vgpu_reconcile_quota_limit{namespace="research",resource="memory"} 9e9
vgpu_reconcile_findings{rule="stale_lock"} 1
"""


class Scraped(NamedTuple):
    """How one target of a node is scraped."""

    job: str
    suffix: str
    pod: dict[str, str]
    honoured: bool


class Twice(NamedTuple):
    """A cluster of which each node has several targets; ``alone`` has one of each node."""

    name: str
    alone: str
    targets: tuple[Scraped, ...]


def of(
    job: str = "vgpu", suffix: str = "", *, new: bool = False, honoured: bool = False
) -> Scraped:
    return Scraped(job, suffix, NEW if new else OLD, honoured)


RENAMED = Twice("renamed", "", (of(),))
HONOURED = Twice("honoured", "", (of(honoured=True),))
ALONE = (RENAMED, HONOURED)
TWICE = (
    Twice(
        "renamed-twice",
        RENAMED.name,
        (
            of(),
            of(new=True),
            of(suffix=":9394", new=True),
            of("vgpu-exporter", honoured=True),
        ),
    ),
    Twice(
        "honoured-twice",
        HONOURED.name,
        (
            of(honoured=True),
            of(new=True, honoured=True),
            of(suffix=":9394", honoured=True),
            of("vgpu-exporter", honoured=True),
        ),
    ),
)
"""In every way at once: two pods of one target, two instances of one job, and two jobs; in the
first cluster one job honours our labels, and one does not."""


def stories() -> Iterator[Scenario]:
    """The demo's node, and nodes of other sharing systems."""
    yield demo()
    yield shared_by(Scheme.GAIA, fleet_node(2, 2, FIRST))
    for mps in (False, True):
        yield shared_by(NVIDIA, fleet_node(1, 2, FIRST + 1 + mps), mps=mps)


def exporter_page(folder: Path, story: Scenario, compat: Iterable[Compat]) -> tuple[str, str]:
    """The page of a node's exporter, and of its device plugin."""
    node = SimulatedNode(story, folder)
    node.write(T)
    driver = node.driver(lambda: T)
    options = ExporterOptions(
        sample_interval=600.0, sample_timeout=WAIT_SECONDS, compat=frozenset(compat)
    )
    sampler = make_sampler(on_node(options, node), driver)
    try:
        sampler.sample()
        answer = routes(sampler, "/metrics", legacy_path=False)["/metrics"](
            HttpRequest("GET", "/metrics", "", {})
        )
    finally:
        driver.recover()
        sampler.stop()
    xid = f'{{uuid="{story.gpus[0].uuid}",xid="79"}}'
    now = f"vgpu_gpu_xid_last_timestamp_seconds{xid} {time.time()}\n"
    now += f"vgpu_gpu_xid_errors_total{xid} 1\n"
    plugin = PretendedPlugin(named(serving(driver.sample(0.0)), story.node))
    view = plugin.view()
    page = answer.body.decode() + now
    return page, LiveMetrics(PLUGIN_TABLES, lambda: view).body(Format.TEXT, False).decode()


def stored(page: str, target: dict[str, str], *, honoured: bool) -> Iterator[str]:
    """The page's samples with the labels of their target, as a scrape stores them."""
    for line in page.splitlines():
        if not line or line.startswith("#"):
            continue
        series, _, value = line.rpartition(" ")
        if honoured:
            more = {name: text for name, text in target.items() if f'{name}="' not in series}
        else:
            series = re.sub(rf"([{{,])({'|'.join(OURS)})=", r"\1exported_\2=", series)
            more = target
        yield f"{with_labels(series, **more)} {value}"


def clusters(folder: Path) -> str:
    """One page with the series of all clusters."""
    nodes = {
        story.node: exporter_page(folder / story.node, story, compat)
        for story, compat in zip(stories(), (ORIGINALS, (Compat.HAMI_LEGACY,), (), ()), strict=True)
    }
    others = {
        ("vgpu-reconciler", "reconciler-0"): RECONCILER,
        **{
            (job, f"{job}-0"): LiveMetrics(tables, lambda seen=seen: seen(600.0))
            .body(Format.TEXT, False)
            .decode()
            for job, seen, tables in (
                (SCHEDULERS, answering, SCHEDULER_TABLES),
                (CONTROLLERS, working, CONTROLLER_TABLES),
                (TOKENS, sharing, TOKEN_TABLES),
            )
        },
    }
    lines: list[str] = []
    for cluster in (*ALONE, *TWICE):
        honoured = cluster.targets[0].honoured
        for (job, instance), page in others.items():
            target = {"cluster": cluster.name, "job": job, "instance": instance, **OLD}
            lines += stored(page, target, honoured=honoured)
        for node, (page, plugin) in nodes.items():
            target = {"cluster": cluster.name, "job": PLUGINS, "instance": node, **OLD}
            lines += stored(plugin, target, honoured=honoured)
            for each in cluster.targets:
                target = {"cluster": cluster.name, "job": each.job, "instance": node + each.suffix}
                lines += stored("up 1\n" + page, {**target, **each.pod}, honoured=each.honoured)
    return "\n".join(lines) + "\n"
