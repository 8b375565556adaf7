"""A cluster that works, as dashboards show it: real exporters on simulated nodes, a reconciler,
and on each node the page of a device plugin (:mod:`pretended_plugin`).

The demo's node, with all that is wrong on it, and two of many cards. Two Prometheus servers scrape
them, as the two kinds of scrape jobs do: one honours our labels, the other has labels of its own
for the exporter's pod, and renames ours.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

import nvml_fake
from bed.monitoring import Prometheus
from live import LiveExporter
from pretended_plugin import JOB, PretendedPlugin, troubled, well
from promtool import RULES
from sick_cluster import RunningReconciler

from vgpu.simulator.apiserver import ApiServer
from vgpu.simulator.cluster import SimulatedCluster
from vgpu.simulator.demo import demo
from vgpu.simulator.fleet import fleet_node
from vgpu.simulator.neighbourhood import neighbourhood
from vgpu.simulator.scenario import Scenario

CLUSTER = "north"
EXPORTERS_POD = {"namespace": "monitoring", "pod": "vgpu-exporter-x7k2p", "container": "exporter"}
"""What a PodMonitor without honorLabels writes on every series."""

COMPAT = ("volcano", "volcano-scheduler", "hami", "gaia")


class LivingNode(LiveExporter):
    """A node that goes on: each :meth:`move_on` makes it as its story has it by now."""

    def __init__(self, folder: Path, scenario: Scenario, *flags: str) -> None:
        folder.mkdir()
        super().__init__(folder, scenario, "--sample.interval=500ms", *flags)
        self._xids: list[nvml_fake.Xid] = []

    def move_on(self) -> None:
        """Its files and its driver at this second."""
        t = time.time() - self.node.start
        self.node.write(t)
        self.sample = self.node.driver(lambda: t).sample(0.0)
        story = self.node.scenario
        due = [xid for xid in story.xids if xid.at <= t][len(self._xids) :]
        self._xids += [nvml_fake.Xid(story.cards[xid.card].uuid, xid.xid) for xid in due]
        self.write_driver(xids=self._xids)


class Monitored(NamedTuple):
    """The same cluster, scraped in the two ways."""

    honouring: Prometheus
    renaming: Prometheus


class LivingCluster:
    """``reconciler`` are flags of `vgpu reconcile run`, ``nodes`` its many-carded nodes."""

    def __init__(self, folder: Path, *reconciler: str, compat: tuple[str, ...] = COMPAT) -> None:
        self._folder = folder
        self._flags = reconciler
        self._stack = ExitStack()
        sets = [f"--compat={name}" for name in compat]
        self.nodes = [
            LivingNode(folder / "demo", demo(), "--volcano.memory-factor=1024", *sets),
            LivingNode(folder / "large", fleet_node(cards=4, containers=10, index=4)),
            LivingNode(folder / "half", fleet_node(cards=4, containers=3, index=5)),
        ]
        self.servers: Monitored

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            start = time.time()
            simulated = SimulatedCluster(neighbourhood(start), start)
            api = stack.enter_context(ApiServer(simulated.store))
            for node in self.nodes:
                stack.enter_context(node)
            reconciler = stack.enter_context(
                RunningReconciler(self._folder / "reconciler", api.kubeconfig(), *self._flags)
            )
            targets = [
                (f"127.0.0.1:{node.port}", node.node.scenario.node, "vgpu") for node in self.nodes
            ]
            for node, seen in zip(self.nodes, (well, well, troubled), strict=True):
                plugin = stack.enter_context(PretendedPlugin(seen(node.sample)))
                targets.append((plugin.target, node.node.scenario.node, JOB))
            targets.append((reconciler.target(), "vgpu-reconciler-0", "vgpu-reconciler"))
            self.servers = Monitored(
                stack.enter_context(self._server("honouring", targets, {}, honor_labels=True)),
                stack.enter_context(
                    self._server("renaming", targets, EXPORTERS_POD, honor_labels=False)
                ),
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def move_on(self) -> None:
        """Every node at this second."""
        for node in self.nodes:
            node.move_on()

    def _server(self, name, targets, labels, **job) -> Prometheus:
        static = [
            {
                "targets": [address],
                "labels": {"cluster": CLUSTER, "instance": instance, "job": of_job, **labels},
            }
            for address, instance, of_job in targets
        ]
        return Prometheus(self._folder / name, rules=RULES, static_configs=static, **job)
