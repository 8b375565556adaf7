"""A cluster that works, as dashboards show it: real exporters on simulated nodes, a
reconciler, on each node the page of a device plugin (:mod:`pretended_plugin`), and the pages of two
schedulers (:mod:`pretended_scheduler`), of a controller of KubeShare (:mod:`pretended_kubeshare`)
and of a token daemon (:mod:`pretended_tokens`).

The demo's node and its neighbours, with all that is wrong on them, and nodes on which nothing is.
Two Prometheus servers scrape them, as the two kinds of scrape jobs do. Both have labels of their
own for the exporter's pod: one honours ours where both are, the other renames ours. The pods of the
demo's node have been replaced within the hour: what looks back sees them under both names.
"""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self
from zoneinfo import ZoneInfo

from kubeshare.metrics import TABLES as CONTROLLER_TABLES
from kubeshare.tokens.metrics import TABLES as TOKEN_TABLES
from simulator.apiserver import ApiServer
from simulator.cluster import SimulatedCluster
from simulator.demo import demo
from simulator.demo_cluster import demo_cluster
from tests.grafana.living_node import LivingNode, running, well
from tests.grafana.pretended_kubeshare import JOB as CONTROLLERS
from tests.grafana.pretended_kubeshare import working
from tests.grafana.pretended_plugin import JOB, PretendedPlugin, named, serving, troubled
from tests.grafana.pretended_scheduler import JOB as SCHEDULERS
from tests.grafana.pretended_scheduler import PretendedScheduler, answering
from tests.grafana.pretended_tokens import JOB as TOKENS
from tests.grafana.pretended_tokens import sharing
from tests.grafana.promtool import RULES
from tests.grafana.sick_cluster import RunningReconciler
from tests.support.bed.monitoring import Prometheus
from vgpu.kube.kueue_kinds import CLUSTER_QUEUES, LOCAL_QUEUES
from vgpucli.bill.price_rules import price_rules
from vgpucli.bill.prices import Price, PriceTable

CLUSTER = "north"
EXPORTERS_POD = {"namespace": "monitoring", "pod": "vgpu-exporter-x7k2p", "container": "exporter"}
"""What a PodMonitor writes on every series, unless it honours what is there."""

SUCCESSOR = {**EXPORTERS_POD, "pod": "vgpu-exporter-m9d4t"}
"""The same of the pod that came in its place."""

INTERVAL = "2s"
"""Interval between two scrapes, and between two evaluations of the rules."""

COMPAT = ("volcano", "volcano-scheduler", "hami", "gaia")

WELL = 18
"""Number of nodes on which nothing is wrong, in a cluster that has its own."""

FAR_AWAY = "gpu-node-3"
"""The demo's node that is not ready: no exporter runs there."""


class Found(NamedTuple):
    """Where something is scraped, and whose it is."""

    address: str
    instance: str
    job: str

    def discovered(self, pod: dict[str, str]) -> dict[str, Any]:
        """As service discovery describes it; ``pod`` are the labels of its pod."""
        labels = {"cluster": CLUSTER, "instance": self.instance, "job": self.job, **pod}
        return {"targets": [self.address], "labels": labels}


class Monitored(NamedTuple):
    """The same cluster, scraped in the two ways."""

    honouring: Prometheus
    renaming: Prometheus


_USED = [{"name": "t4", "resources": [{"name": "nvidia.com/gpu", "total": "6", "borrowed": "2"}]}]
_QUOTA = {"name": "t4", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "4"}]}
QUEUES = (
    (
        CLUSTER_QUEUES,
        {
            "apiVersion": CLUSTER_QUEUES.api_version,
            "kind": "ClusterQueue",
            "metadata": {"name": "research"},
            "spec": {"cohortName": "ml", "resourceGroups": [{"flavors": [_QUOTA]}]},
            "status": {"flavorsReservation": _USED},
        },
    ),
    (
        LOCAL_QUEUES,
        {
            "apiVersion": LOCAL_QUEUES.api_version,
            "kind": "LocalQueue",
            "metadata": {"name": "main", "namespace": "research"},
            "spec": {"clusterQueue": "research"},
            "status": {"flavorsReservation": _USED},
        },
    ),
)
"""Queues of Kueue, of which the reconciler has numbers."""


class LivingCluster:
    """``reconciler`` are flags of `vgpu reconcile run`.

    ``well_nodes`` are nodes on which nothing is wrong and whose exporters run: without them the
    cluster has its own, ``WELL`` in number.
    """

    def __init__(
        self,
        folder: Path,
        *reconciler: str,
        compat: tuple[str, ...] = COMPAT,
        well_nodes: Sequence[LivingNode] = (),
    ) -> None:
        self.folder = folder
        self._prices = folder / "vgpu-prices.yaml"
        config = folder / "reconciler.yaml"
        config.write_text("queues: true\n")
        self._flags = (f"--config={config}", *reconciler)
        self._stack = ExitStack()
        self._start = time.time()
        self._story = demo_cluster(self._start)
        sets = [f"--compat={name}" for name in compat]
        _, *others = self._story.nodes
        neighbours = [node for node in others if node.node != FAR_AWAY]
        self._own = [
            LivingNode(folder / "demo", demo(), "--volcano.memory-factor=1024", *sets),
            *(LivingNode(folder / node.node, node) for node in neighbours),
            *(() if well_nodes else well(folder, WELL)),
        ]
        self.nodes = [*self._own, *well_nodes]
        self.servers: Monitored

    def __enter__(self) -> Self:
        models = {gpu.name for node in self.nodes for gpu in node.node.scenario.gpus}
        table = PriceTable("EUR", tuple(Price(model, 2) for model in sorted(models)))
        self._prices.write_text(price_rules(table, ZoneInfo("UTC")))
        with ExitStack() as stack:
            simulated = SimulatedCluster(self._story, self._start)
            for kind, document in QUEUES:
                simulated.store.create(kind, document)
            api = stack.enter_context(ApiServer(simulated.store))
            stack.enter_context(running(self._own))
            reconciler = stack.enter_context(
                RunningReconciler(self.folder / "reconciler", api.kubeconfig(), *self._flags)
            )
            found = [Found(reconciler.target(), "vgpu-reconciler-0", "vgpu-reconciler")]
            for node in self.nodes:
                name = node.node.scenario.node
                seen = troubled if node is self.nodes[-1] else serving
                plugin = stack.enter_context(PretendedPlugin(named(seen(node.sample), name)))
                found.append(Found(f"127.0.0.1:{node.port}", name, "vgpu"))
                found.append(Found(plugin.target, name, JOB))
            for number in range(2):
                scheduler = stack.enter_context(PretendedScheduler(answering))
                found.append(Found(scheduler.target, f"vgpu-scheduler-{number}", SCHEDULERS))
            controller = stack.enter_context(PretendedScheduler(working, CONTROLLER_TABLES))
            found.append(Found(controller.target, "vgpu-kubeshare-controller-0", CONTROLLERS))
            tokens = stack.enter_context(PretendedScheduler(sharing, TOKEN_TABLES))
            found.append(Found(tokens.target, self.nodes[-1].node.scenario.node, TOKENS))
            pods = self.folder / "pods.json"
            write_targets(pods, [each.discovered(EXPORTERS_POD) for each in found])
            self.servers = Monitored(
                stack.enter_context(self._server("honouring", pods, honor_labels=True)),
                stack.enter_context(self._server("renaming", pods, honor_labels=False)),
            )
            self._replace_pods(pods, found)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def move_on(self) -> None:
        """Every node at this second."""
        for node in self.nodes:
            node.move_on()

    def _replace_pods(self, pods: Path, found: list[Found]) -> None:
        """Those of the demo's node, as a DaemonSet does it: the old ones go first."""
        name = self.nodes[0].node.scenario.node
        of_it = f'{{instance="{name}"}}'
        busy = f"vgpu_container_sm_utilization_ratio{of_it}"
        for server in self.servers:
            server.wait_for(f"count(vgpu_gpus) == {len(self.nodes)} and on () {busy}")
        others = [each.discovered(EXPORTERS_POD) for each in found if each.instance != name]
        write_targets(pods, others)
        for server in self.servers:
            server.wait_for(f"absent(up{of_it})")
        write_targets(
            pods, others + [each.discovered(SUCCESSOR) for each in found if each.instance == name]
        )
        names = f"count(count by (pod) (max_over_time(vgpu_gpus{of_it}[1h]))) == 2"
        both = f"count(up{of_it} == 1) == 2"  # the exporter and the plugin
        for server in self.servers:
            server.wait_for(f"{names} and on () {both} and on () {busy}")

    def _server(self, name: str, pods: Path, *, honor_labels: bool) -> Prometheus:
        return Prometheus(
            self.folder / name,
            rules=[*RULES, self._prices],
            evaluation_interval=INTERVAL,
            honor_labels=honor_labels,
            scrape_interval=INTERVAL,
            scrape_timeout=INTERVAL,
            static_configs=[],
            file_sd_configs=[{"files": [str(pods)]}],
        )


def write_targets(file: Path, targets: list[dict[str, Any]]) -> None:
    """At once: whoever follows the file reads no half of it."""
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(targets))
    draft.rename(file)
