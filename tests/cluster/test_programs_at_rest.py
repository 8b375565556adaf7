"""All programs that write, at one API server: when all is as it should be, none writes again.

The parts of the programs run in this process, as the accounts that the chart gives them. There is
no kubelet and no controller of Kubernetes, so that nothing else changes an object. The API server
counts the requests. Programs make one round after another, with their clocks ahead where they wait
between two writes.
"""

import json
import time
from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from deviceplugin.adapters.gaia import GaiaAdapter
from deviceplugin.apiserver.writes import EventReason
from kubeshare.bodies import HolderOptions
from kubeshare.controller import ControllerOptions
from kubeshare.labelled_pods import POD_SCHEDULED
from kubeshare.main import ControllerProgram
from kubeshare.node_component import NodeComponent, NodeOptions
from kubeshare.placement import KubeShareAlgorithm
from reconciler.apply.applier import Applier
from reconciler.config.settings import parse
from reconciler.cycle import Cycles
from reconciler.observe.cluster import ListingObserver
from reconciler.session import NoAudit
from reconciler.state_store import CONFIG_MAP, ConfigMapStateStore
from scheduler.flags import SchedulerOptions
from scheduler.main import Scheduler
from tests.cluster.accounts import HOME, account
from tests.cluster.counted_writes import counted_writes, rights_to_write
from tests.cluster.extending import make_node, remove_nodes, request
from tests.cluster.kubesharing import CRD, labelled_pod, reason_of, share_pod
from tests.cluster.placing import limits
from tests.cluster.reconciling import (
    AT_ONCE,
    forget_state,
    is_evicted,
    make_default_account,
    staged,
)
from tests.cluster.scheduler_bed import bind_body
from tests.cluster.test_plugin_status_manager import (
    GPUSHARE,
    HAMI_LOCK,
    HAMI_ROLE,
    VOLCANO,
    Plugin,
)
from tests.kube.test_merge_patches import POD_STATUSES
from tests.kubelet.test_checkpoint import checkpoint, entry
from tests.reconciler import samples
from tests.support.bed import crds, objects, product
from tests.support.bed.client import Refused
from tests.support.waiting import wait_until
from vgpu.apiserver.client import CLAIMS, ApiClient
from vgpu.inventory import Units
from vgpu.model.allocation import Device
from vgpu.model.units import GIB
from vgpu.placement.dialects import PlacementPolicies
from vgpu.quota.check import OVER_QUOTA
from vgpu.schemes.gaia.node import MODEL_LABEL
from vgpu.schemes.kubeshare.node import GPU_INFO, HOLDER_NAMESPACE, ROLE
from vgpu.schemes.volcano.row import PUBLISHED_FACTOR
from vgpu.web.message import plain
from vgpu.web.server import WebServer

RULES = {
    "rules": {
        "over_quota": {"mode": "off"},
        "quota_drift": {"mode": "off"},
        "quota_mark": {"mode": "apply"},
    }
}
ROUNDS = 10
STEP_SECONDS = 40.0
"""How much clocks go ahead in a round, in seconds: more than any interval between two writes."""

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
GPU = "GPU-rest-0"
RUNS = {"status": {key: each for key, each in POD_STATUSES["runs"].items() if key != "qosClass"}}
"""What a kubelet writes of a pod that runs; the API server knows the class."""


class KubeShare:
    """The controllers and the node component; the test is the kubelet and binds holder pods."""

    node = "rest-kubeshare"

    def __init__(self, api, namespace, folder, connect):
        self.client, self.namespace = api.client, namespace
        crds.load(api.client, CRD)
        path = "/apis/kubeshare.nthu/v1/sharepods"
        wait_until(lambda: api.client.get(path), "SharePods are served", failures=(Refused,))
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        api.client.patch(make_node(api, self.node, {"nvidia.com/gpu": 1}), ready, "status")
        options = ControllerOptions(
            KubeShareAlgorithm.PAPER, HolderOptions(product.REFERENCE), labelled_pods=True
        )
        server = connect("kubeshare-controller")
        self.program = ControllerProgram(server, options, lambda: True)
        self.checkpoint = folder / "checkpoint"
        self.checkpoint.write_bytes(checkpoint())
        where = NodeOptions(self.node, str(self.checkpoint), str(folder / "kubeshare"), "", "")
        server, gpus = connect("kubeshare-node", self.node), [Device(GPU, memory_bytes=16 * GIB)]
        self.component = NodeComponent(server, server, where, lambda: gpus)
        self.program.start()
        for informer in self.component._informers:
            informer.start()
        for name, gib in (("runs", 1), ("big", 99)):
            api.client.create(share_pod(name, namespace, 300, gib))
            api.client.create(labelled_pod(f"labelled-{name}", namespace, 300, gib))

    def facts(self):
        """Play the kubelet, and let the component look; what is as it should be."""
        pods = self.client.list(f"/api/v1/namespaces/{self.namespace}/pods")
        holders = self.client.list(
            f"/api/v1/namespaces/{HOLDER_NAMESPACE}/pods",
            labelSelector=f"{ROLE},kubeshare/nodeName={self.node}",
        )
        for pod in holders:
            if not pod["spec"].get("nodeName"):
                target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
                about = {"name": pod["metadata"]["name"], "namespace": HOLDER_NAMESPACE}
                binding = {"apiVersion": "v1", "kind": "Binding", "metadata": about}
                path = self.client.path(pod, "binding")
                self.client.raw("POST", path, binding | {"target": target})
        for pod in (*holders, *pods):
            if pod["spec"].get("nodeName") == self.node and pod["status"]["phase"] == "Pending":
                self.client.patch(pod, RUNS, "status")
        held = (entry(PodUID=pod["metadata"]["uid"], DeviceIDs={"-1": [GPU]}) for pod in holders)
        self.checkpoint.write_bytes(checkpoint(*held))
        self.component.round()
        path = f"/apis/kubeshare.nthu/v1/namespaces/{self.namespace}/sharepods"
        found = {each["metadata"]["name"]: each for each in self.client.list(path)}
        pods = {pod["metadata"]["name"]: pod for pod in pods}
        node = self.client.get(f"/api/v1/nodes/{self.node}")
        return {
            "GPUs": GPU_INFO in node["metadata"].get("annotations", {}),
            "ready": reason_of(found["runs"], "Ready") == "PodReady",
            "waits": reason_of(found["big"], "Scheduled") == "Unschedulable",
            "labels": objects.ready(pods["labelled-runs"]),
            "waits with labels": reason_of(pods["labelled-big"], POD_SCHEDULED) == "Unschedulable",
        }

    def rest(self):
        """Only the rounds of the test follow."""
        self.program._controllers.stop()

    def round(self):
        """All that the loops do when all objects are queued."""
        controllers = self.program._controllers
        for key in tuple(controllers._cluster.share_pods):
            controllers._place(key)
            controllers._sync(key)
        for gpu in controllers._cluster.virtual_gpus():
            controllers._sync(gpu.name)
        self.component.round()

    def close(self):
        self.program.stop()
        for informer in self.component._informers:
            informer.close()


class DevicePlugins:
    """The status managers of four device plugins, each on a node of its own."""

    hami, gpushare, gaia, _ = nodes = ("rest-hami", "rest-gpushare", "rest-gaia", "rest-volcano")
    unhealthy = f"/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-{gpushare}"

    def __init__(self, api, namespace, folder, connect):
        self.client, self.namespace = api.client, namespace
        self.plugins = {}
        for node, adapter in zip(
            self.nodes, (HAMI_ROLE, GPUSHARE, GaiaAdapter(), VOLCANO), strict=True
        ):
            make_node(api, node, {"nvidia.com/gpu": 20} if adapter is HAMI_ROLE else {})
            user = connect.account(f"device-plugin-{adapter.scheme.value}", node)
            self.plugins[node] = Plugin(user.kubeconfig, adapter, node).__enter__()
        for node, change in (
            (self.gpushare, {"healthy": False}),
            (self.gaia, {"model": "Tesla V100 SXM2"}),
        ):
            plugin = self.plugins[node]
            plugin.devices = (replace(plugin.devices[0], **change), plugin.devices[1])
            plugin.status_manager.wake()

    def serve(self, pod):
        """The kubelet starts a pod of HAMi, for which the scheduler has locked the node."""
        plugin = self.plugins[self.hami]
        plugin.bind(pod)
        ref = plugin.pods.state().objects[pod["metadata"]["uid"]].ref
        plugin.status_manager.record_event(ref, EventReason.CONFLICT, "two sources differ")
        self.client.patch(pod, RUNS, "status")

    def facts(self):
        hami, gpushare, gaia, volcano = (
            self.client.get(f"/api/v1/nodes/{node}") for node in self.nodes
        )
        return {
            "register": HAMI_ROLE.codec.key_set.register in hami["metadata"].get("annotations", {}),
            "capacity": gpushare["status"]["capacity"].get("aliyun.com/gpu-count") == "2",
            "unhealthy": self.client.find(self.unhealthy) is not None,
            "factor": PUBLISHED_FACTOR in volcano["metadata"].get("annotations", {}),
            "model": MODEL_LABEL in gaia["metadata"].get("labels", {}),
        }

    def rest(self):
        for plugin in self.plugins.values():
            plugin.status_manager.stop()
            plugin.status_manager._stopping.clear()

    def round(self):
        for plugin in self.plugins.values():
            plugin.ahead += STEP_SECONDS
            plugin.status_manager.round()

    def close(self):
        for plugin in self.plugins.values():
            plugin.__exit__()
        if self.client.find(self.unhealthy):
            self.client.delete(self.unhealthy)


class SchedulerAtRest:
    """The extender of several replicas, with locks for an original plugin."""

    def __init__(self, api, namespace, folder, connect):
        self.client, self.namespace, self.ahead = api.client, namespace, 0.0
        options = SchedulerOptions(
            kubeconfig="",
            context="",
            request_timeout=None,
            lease_namespace="kube-system",
            policies=PlacementPolicies(),
            units={},
            has_original_plugin=True,
        )
        self.program = Scheduler(
            connect("scheduler"),
            options,
            lambda *_: lambda _: plain(200, ""),
            clock=lambda: time.time() + self.ahead,
        )
        self.server = WebServer(self.program.routes(), ["127.0.0.1:0"])
        self.server.start()
        self.program.start()

    def ask(self, path, body):
        port = int(self.server.addresses[0].rpartition(":")[2].rstrip("/"))
        status, answer = request(port, path, json.dumps(body).encode())
        assert status == 200
        return json.loads(answer)

    def place(self, node):
        """A pod that the node takes, and one that it does not."""
        fits, big = (
            self.client.create(objects.pod(name, self.namespace, limits=limits("hami", quarters)))
            for name, quarters in (("fits", 1), ("too-big", 99))
        )
        body = bind_body(fits, node)
        wait_until(lambda: self.ask("/bind", body)["Error"] == "", "the pod is bound")
        refused = {"Pod": big, "NodeNames": [node]}
        wait_until(lambda: not self.ask("/filter", refused)["NodeNames"], "the pod is refused")
        self.bound, self.refused = fits, big
        return self.client.get(fits)

    def facts(self):
        labels = self.client.get(self.bound)["metadata"].get("labels", {})
        return {
            "label": "hami.io/vgpu-node" in labels,
            "event": bool(self.client.events(self.refused)),
            "claim": bool(claims(self.client)),
        }

    def rest(self):
        for worker in (self.program.labeler, self.program.waker):
            worker.stop()

    def round(self):
        self.ahead += STEP_SECONDS
        self.program.check_reservations()
        self.program.waker.wake_fitting(DevicePlugins.hami)
        self.program.waker.wake_relieved(self.namespace, lambda *_: None)

    def close(self):
        self.server.stop()
        self.program.stop()
        for name in claims(self.client):
            self.client.delete(f"{LEASES}/{name}")


class ReconcilerAtRest:
    """The cluster's reconciler, with a stale lock and a pod that it evicts."""

    def __init__(self, api, namespace, folder, connect):
        self.client, self.ahead = api.client, 0.0
        self.path = f"/api/v1/namespaces/{namespace}"
        self.stage = staged(api.client)
        stage = self.stage.__enter__()
        node = samples.node("rest-lock", "hami", annotations=samples.lock())
        ill = samples.pod("ill", "hami", node="rest-lock", namespace=namespace)
        self.node, self.ill = stage.put(node), stage.put(samples.refused(ill))
        server, policy = connect("reconciler"), parse(json.dumps(AT_ONCE | RULES), "").policy
        self.cycles = Cycles(
            ListingObserver(server, Units(), namespaces=True, quotas=True),
            policy,
            store=ConfigMapStateStore(server, HOME),
            apply=Applier(server, NoAudit()).apply,
            clock=lambda: time.time() + self.ahead,
        )

    def limit(self):
        """The namespace gets a quota that it exceeds already."""
        patch = {"metadata": {"annotations": {"vgpu.dev/quota-gpus": "0"}}}
        self.client.patch(self.path, patch)

    def facts(self):
        self.cycles.run()
        state = f"/api/v1/namespaces/{HOME}/configmaps/{CONFIG_MAP}"
        return {
            "lock": HAMI_LOCK not in self.client.get(self.node)["metadata"]["annotations"],
            "evicted": is_evicted(self.client, self.ill),
            "state": self.client.find(state) is not None,
            "mark": OVER_QUOTA in self.client.get(self.path)["metadata"]["annotations"],
        }

    def rest(self):
        """It has no thread."""

    def round(self):
        self.ahead += STEP_SECONDS
        self.cycles.run()

    def close(self):
        self.stage.__exit__(None, None, None)
        forget_state(self.client)


def claims(client):
    """The versions of the Leases of nodes, which are no elections."""
    return {
        lease["metadata"]["name"]: lease["metadata"]["resourceVersion"]
        for lease in client.list(LEASES)
        if CLAIMS in lease["metadata"].get("annotations", {})
    }


IN_OTHER_TESTS = {"reconciler-node": "test_reconcile_node.py"}
"""Parts of the chart that write, and are not here."""


class Connections:
    """Connections as the accounts of parts of the chart, which are noted."""

    def __init__(self, api, stack):
        self._api, self._stack = api, stack
        self.parts = set()

    def account(self, part, node=""):
        self.parts.add(part)
        return account(self._api, part, node=node)

    def __call__(self, part, node=""):
        kubeconfig = str(self.account(part, node).kubeconfig)
        return self._stack.enter_context(ApiClient.connect(kubeconfig, gather=0))


@pytest.fixture
def programs(api, api_namespace, tmp_path):
    make_default_account(api.client, HOLDER_NAMESPACE)
    with ExitStack() as stack:
        stack.callback(remove_nodes, api, [KubeShare.node, *DevicePlugins.nodes])
        connect, made = Connections(api, stack), []
        for program in (KubeShare, DevicePlugins, SchedulerAtRest, ReconcilerAtRest):
            made.append(program(api, api_namespace, tmp_path, connect))
            stack.callback(made[-1].close)
        assert connect.parts | IN_OTHER_TESTS.keys() == rights_to_write().keys()
        yield made


def wait_for(*programs):
    """Until every object of these programs is as it should be."""

    def facts():
        return {name: fact for program in programs for name, fact in program.facts().items()}

    wait_until(lambda: all(facts().values()), "all is settled", context=lambda: str(facts()))


def test_no_program_writes_when_all_is_as_it_should_be(api, programs, figure):
    _, plugins, scheduler, reconciler = programs
    wait_for(plugins)
    plugins.serve(scheduler.place(plugins.hami))
    reconciler.limit()
    wait_for(*programs)
    for program in programs:
        program.rest()

    def new_writes():
        before = counted_writes(api.client)
        for program in programs:
            program.round()
        return counted_writes(api.client) - before

    wait_until(lambda: not new_writes(), "a round without a write", context=new_writes)
    before, leases, begun = counted_writes(api.client), claims(api.client), time.monotonic()
    for _ in range(ROUNDS):
        for program in programs:
            program.round()
    assert counted_writes(api.client) == before
    assert claims(api.client) == leases
    kinds = {resource for writes in rights_to_write().values() for _, resource in writes}
    assert {resource for _, resource in before} == kinds, "there is one of each"
    figure(f"programs at rest: {ROUNDS} rounds in {time.monotonic() - begun:.2f} s, no write")
