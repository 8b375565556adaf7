"""Real exporters and reconcilers around whom as much as possible is wrong at once.

Nodes: one whose GPUs, containers and shares are sick, one whose driver hangs, and those on
which nothing is wrong. Three reconcilers: one that finds a lot, one that may do nothing of it, and
one that cannot see. Two pages of device plugins (:mod:`pretended_plugin`) and two of schedulers
(:mod:`pretended_scheduler`), those of a controller of KubeShare and of its node component
(:mod:`pretended_kubeshare`), one of a feedback (:mod:`pretended_feedback`), and one of a token
daemon (:mod:`pretended_tokens`). And of each kind a target where nothing answers.
"""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from msgspec import structs

from kubeshare.metrics import NODE_TABLES
from kubeshare.metrics import TABLES as CONTROLLER_TABLES
from kubeshare.tokens.metrics import TABLES as TOKEN_TABLES
from simulator.apiserver import ApiServer
from simulator.cluster import SimulatedCluster
from simulator.demo import demo
from simulator.demo_cluster import demo_cluster
from simulator.scenario import Process, constant
from tests.grafana.living_node import LivingNode, running
from tests.grafana.pretended_feedback import JOB as FEEDBACK
from tests.grafana.pretended_feedback import unready
from tests.grafana.pretended_kubeshare import JOB as CONTROLLERS
from tests.grafana.pretended_kubeshare import NODE_JOB as KUBESHARE_NODES
from tests.grafana.pretended_kubeshare import broken, silent_node
from tests.grafana.pretended_plugin import JOB, PretendedPlugin, blind, sick
from tests.grafana.pretended_scheduler import JOB as SCHEDULERS
from tests.grafana.pretended_scheduler import PretendedScheduler, failing, stuck
from tests.grafana.pretended_tokens import JOB as TOKENS
from tests.grafana.pretended_tokens import starved
from tests.grafana.promtool import RULES
from tests.support import nvml_fake
from tests.support.bed.monitoring import Prometheus
from tests.support.bed.processes import Daemon
from tests.support.environment import ROOT
from tests.support.live import LiveExporter, fake_devices, fake_processes
from vgpu.model.units import GIB
from vgpucli.feedback.metrics import TABLES as FEEDBACK_TABLES

NOBODY = "127.0.0.1:1"
"""Nothing listens there."""

CHAT, WHISPER = 1184201, 1166041  # processes of the demo
HOT_AND_BRAKED = 0x20 | 0x40 | 0x80  # nvmlClocksEventReason*
SICK = {
    "clock_events": HOT_AND_BRAKED,
    "ecc_uncorrected_volatile": 2,
    "remap_pending": 1,
    "remap_failure": 1,
}
UNHEARD = {"events": 0}

UNREADABLE_QUOTA = {"teaching": {"metadata": {"annotations": {"vgpu.dev/quota-gpus": "a few"}}}}
"""Only the reconcilers report it: the schedulers here are pages of :mod:`pretended_scheduler`."""


def sick_story():
    """The demo's node without anybody that `embeddings` waits for, and a large host process."""
    story = demo()
    pods = tuple(
        structs.replace(
            pod,
            containers=tuple(structs.replace(each, processes=()) for each in pod.containers),
        )
        if pod.ref.namespace == "serving"
        else pod
        for pod in story.pods
    )
    host = Process(pid=2207, gpu=0, data=constant(6 * GIB))
    return structs.replace(story, pods=pods, host_processes=(host,), xids=())


class SickNode(LiveExporter):
    """A GPU that is broken in every way, another that is full, and regions that are no regions."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        web = folder / "web.yml"
        web.write_text("{}\n")
        super().__init__(
            folder,
            sick_story(),
            "--sample.interval=500ms",
            "--nvml.expected-gpus=3",
            f"--web.config.file={web}",
        )
        broken, full = fake_devices(self.sample)
        broken.settings.update(SICK)
        full.settings.update(UNHEARD)
        xids = [nvml_fake.Xid(broken.settings["uuid"], xid) for xid in (31, 79, 94, 999)]
        processes = fake_processes(self.sample)
        for process in processes:
            if process.pid == WHISPER:
                process.used = int(3.95 * GIB)  # of 4
        self.write_driver(devices=[broken, full], processes=processes, xids=xids)
        root = Path(self.node.paths.shim_roots[0])
        for number, content in enumerate((b"", b"no region at all")):
            region = root / f"00000000-0000-4000-8000-00000000{number:04d}_main" / "x.cache"
            region.parent.mkdir()
            region.write_bytes(content)
        self._web = web

    def __enter__(self) -> Self:
        super().__enter__()
        self._web.write_text("no: such key\n")
        return self


class HungNode(LiveExporter):
    """Its driver hangs, its API server is away, and its samples take long."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(kubeconfig_of(f"http://{NOBODY}"))
        super().__init__(
            folder,
            structs.replace(demo(), node="gpu-node-2"),
            "--sample.interval=500ms",
            "--sample.timeout=400ms",
            "--collector.api",
            f"--kubeconfig={kubeconfig}",
        )

    def flags(self) -> list[str]:
        """Its pods are those of the API server."""
        return [flag for flag in super().flags() if not flag.startswith("--pods=")]


def kubeconfig_of(server: str) -> str:
    named = {"name": "there"}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{**named, "cluster": {"server": server}}],
            "users": [{**named, "user": {}}],
            "contexts": [{**named, "context": {"cluster": "there", "user": "there"}}],
            "current-context": "there",
        }
    )


class RunningReconciler(Daemon):
    """`vgpu reconcile run`, a cycle a second, that reports its plans only."""

    def __init__(self, folder: Path, kubeconfig: str, *flags: str) -> None:
        folder.mkdir(parents=True)
        (folder / "kubeconfig").write_text(kubeconfig)
        command = [sys.executable, "-m", "vgpu", "reconcile", "run", "--every=1s"]
        where = [f"--kubeconfig={folder / 'kubeconfig'}", "--web.listen-address=127.0.0.1:0"]
        super().__init__(
            "reconciler",
            [*command, *where, *flags],
            folder / "reconciler.log",
            env={"PYTHONPATH": str(ROOT)},
        )

    def target(self) -> str:
        """Where Prometheus finds it."""
        lines = self.wait_until(
            lambda: [line for line in self.log().splitlines() if 'msg="web server ready"' in line],
            "serves",
        )
        return lines[0].rpartition("http://")[2].split("/")[0].strip('"')


class SickCluster:
    """All of it, with Debian's Prometheus in the middle, which has our rules."""

    def __init__(self, folder: Path, well_nodes: Sequence[LivingNode]) -> None:
        self._folder = folder
        self._well_nodes = well_nodes
        self._stack = ExitStack()

    def __enter__(self) -> Prometheus:
        with ExitStack() as stack:
            start = time.time()
            story = demo_cluster(start)
            deviations = {**story.deviations, **UNREADABLE_QUOTA}
            simulated = SimulatedCluster(structs.replace(story, deviations=deviations), start)
            api = stack.enter_context(ApiServer(simulated.store))
            ill, hung = SickNode(self._folder / "sick"), HungNode(self._folder / "hung")
            stack.enter_context(running([ill, hung]))
            nodes = [ill, hung, *self._well_nodes]
            careful = self._folder / "careful.yaml"
            careful.write_text("limits: {breaker: 0, breaker_floor: 0}\n")
            reconcilers = {
                "finds": (api.kubeconfig(), "--leader-elect"),
                "careful": (api.kubeconfig(), "--no-leader-elect", f"--config={careful}"),
                "blind": (kubeconfig_of(f"http://{NOBODY}"), "--leader-elect"),
            }
            jobs = [("vgpu", "north", [f"127.0.0.1:{node.port}" for node in nodes])]
            jobs += [("vgpu", "north", [NOBODY]), ("vgpu-reconciler", "north", [NOBODY])]
            jobs.append((JOB, "north", [NOBODY]))
            for seen in (sick, blind):
                plugin = stack.enter_context(PretendedPlugin(seen(ill.sample)))
                jobs.append((JOB, "north", [plugin.target]))
            jobs.append((SCHEDULERS, "north", [NOBODY]))
            for answers in (failing, stuck):
                scheduler = stack.enter_context(PretendedScheduler(answers))
                jobs.append((SCHEDULERS, "north", [scheduler.target]))
            for job, view, tables in (
                (CONTROLLERS, broken, CONTROLLER_TABLES),
                (KUBESHARE_NODES, silent_node, NODE_TABLES),
                (FEEDBACK, unready, FEEDBACK_TABLES),
                (TOKENS, starved, TOKEN_TABLES),
            ):
                page = stack.enter_context(PretendedScheduler(view, tables))
                jobs.append((job, "north", [NOBODY, page.target]))
            for name, (kubeconfig, *flags) in reconcilers.items():
                folder = self._folder / name
                daemon = stack.enter_context(RunningReconciler(folder, kubeconfig, *flags))
                jobs.append(("vgpu-reconciler", name, [daemon.target()]))
                if name == "finds":  # the teams of the exporters' namespaces
                    jobs.append(("vgpu-reconciler", "north", [daemon.target()]))
            static = [
                {"targets": targets, "labels": {"job": job, "cluster": cluster}}
                for job, cluster, targets in jobs
            ]
            server = stack.enter_context(
                Prometheus(self._folder / "prometheus", rules=RULES, static_configs=static)
            )
            self._begin_to_hang(hung)
            self._stack = stack.pop_all()
            return server

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @staticmethod
    def _begin_to_hang(node: LiveExporter) -> None:
        delay = nvml_fake.Fault("nvmlDeviceGetPowerUsage", delay_ms=150)
        node.write_driver(faults=[delay])
        name = 'vgpu_collector_duration_seconds{collector="nvml"}'
        node.wait_for(lambda series: series.get(name, 0) > 0.25, "a slow pass")
        node.write_driver(faults=[nvml_fake.Fault("nvmlDeviceGetPowerUsage", delay_ms=600_000)])
