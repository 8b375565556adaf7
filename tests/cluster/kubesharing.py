"""KubeShare's controllers as a process, on nodes whose kubelets are played.

    with started(api, tmp_path, {"n1": (2,)}) as bed:
        bed.share_pod("a", namespace)
        bed.wait_ready(namespace, "a")

The API server and kube-scheduler are real: kube-scheduler binds the holder pods. The player does
what a kubelet and our node component do with bound pods: it runs them, and reports GPUs of holders.
"""

import itertools
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL

import urllib3
import yaml

from kubeshare.labelled_pods import SCHEDULER_NAME, VARIABLES
from tests.cluster.accounts import HOME, account
from tests.cluster.extending import free_port, make_node, remove_nodes, request
from tests.support.bed import crds, objects, product
from tests.support.bed.client import Refused
from tests.support.bed.processes import Daemon
from tests.support.environment import ROOT
from tests.support.waiting import wait_ended, wait_until
from vgpu.model.units import GIB, MIB
from vgpu.schemes.kubeshare.node import HOLDER_UUID, ROLE

CRD = ROOT / "deploy/manifests/kubeshare-crd.yaml"
GPU_BYTES = 16 * GIB
TAINT = {"key": "vgpu.test/kubeshare", "value": "yes", "effect": "NoSchedule"}
"""Keeps other tests' pods off these nodes; SharePods of the tests tolerate it."""

EXAMPLE = "vgpu.test/example"
"""A label of nodes: the SharePods that may be placed there."""

GPUID = "kubeshare/GPUID"

RULES = (
    {
        "apiGroups": ["kubeshare.nthu"],
        "resources": ["sharepods"],
        "verbs": ["get", "list", "watch", "patch"],
    },
    {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["get", "list", "watch", "create", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "get", "patch"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "create", "update"],
    },
)
"""The rights of the controllers, as the chart has them."""

NODE_RULES = (
    {"apiGroups": ["kubeshare.nthu"], "resources": ["sharepods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
)
"""The rights of the node component, those on pods in kube-system alone."""


def share_pod(name, namespace, milli=500, gib=1, *, labels=None, **spec):
    """A SharePod as a user writes it; ``labels`` are its locality labels."""
    pod = objects.pod(name, namespace)
    annotations = {
        "kubeshare/gpu_request": f"{milli / 1000:.3f}",
        "kubeshare/gpu_limit": "1.0",
        "kubeshare/gpu_mem": str(gib * GIB),
        **{f"kubeshare/sched_{key}": value for key, value in (labels or {}).items()},
    }
    tolerations = [{"key": TAINT["key"], "operator": "Exists"}]
    return {
        "apiVersion": "kubeshare.nthu/v1",
        "kind": "SharePod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {**pod["spec"], "tolerations": tolerations, **spec},
    }


LABEL_RULES = (
    {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
)
"""Further rights for pods with KubeShare 2's labels, as the chart has them."""


def labelled_pod(name, namespace, milli=500, gib=1, *, annotations=None, **spec):
    """A pod with KubeShare 2's labels, as it is once the chart's policy has completed it."""
    pod = objects.pod(
        name,
        namespace,
        labels={
            "sharedgpu/gpu_request": f"{milli / 1000}",
            "sharedgpu/gpu_limit": "1.0",
            "sharedgpu/gpu_mem": str(gib * GIB),
        },
        annotations=annotations,
        schedulerName=SCHEDULER_NAME,
        tolerations=[{"key": TAINT["key"], "operator": "Exists"}],
        **spec,
    )
    pod["spec"]["containers"][0]["env"] = [
        {
            "name": variable,
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}},
        }
        for variable, key in VARIABLES.items()
    ]
    return pod


def reason_of(found, type_):
    """The reason of one of a SharePod's or pod's conditions; "" if it has none."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((each["reason"] for each in conditions if each["type"] == type_), "")


class Player(threading.Thread):
    """Plays the kubelets of some nodes, and the garbage collector of SharePods' pods."""

    def __init__(self, client, gpus):
        super().__init__(name="player", daemon=True)
        self.client, self.gpus = client, gpus
        self.ending = threading.Event()
        self.failure = None
        self.paused, self.silent = set(), set()
        """Nodes without kubelet, and nodes without node component."""

    def run(self):
        while not self.ending.wait(0.05):
            try:
                self._round()
            except (Refused, urllib3.exceptions.HTTPError) as error:
                self.failure = error

    def _round(self):
        pods = self.client.list("/api/v1/pods")
        share_pods = self.client.list("/apis/kubeshare.nthu/v1/sharepods")
        uids = {each["metadata"]["uid"] for each in share_pods}
        held = {self._gpu(pod) for pod in pods if pod["status"].get("phase") != "Failed"}
        for pod in pods:
            node = pod["spec"].get("nodeName")
            if node not in self.gpus or node in self.paused:
                continue
            with suppress(Refused):
                self._serve(pod, node, uids, held)

    def _serve(self, pod, node, uids, held):
        owners = [each["uid"] for each in pod["metadata"].get("ownerReferences") or ()]
        is_orphan = bool(owners) and not uids & set(owners)
        if "deletionTimestamp" in pod["metadata"] or is_orphan:
            self.client.delete(pod, uid=pod["metadata"]["uid"], grace_seconds=0)
            return
        limits = pod["spec"]["containers"][0].get("resources", {}).get("limits") or {}
        if limits.get("nvidia.com/gpu") and not self._gpu(pod) and node not in self.silent:
            free = [gpu for gpu in self.gpus[node] if gpu not in held]
            if not free:
                return
            held.add(free[0])
            self.client.patch(pod, {"metadata": {"annotations": {HOLDER_UUID: free[0]}}})
        if pod["status"].get("phase") != "Pending":
            return
        ready = {"type": "Ready", "status": "True"}
        self.client.patch(pod, {"status": {"phase": "Running", "conditions": [ready]}}, "status")

    @staticmethod
    def _gpu(pod):
        return (pod["metadata"].get("annotations") or {}).get(HOLDER_UUID)

    def end(self):
        self.ending.set()
        wait_ended(self, "the player ends")


class Controller:
    """The command ``vgpu kubeshare controller``."""

    numbers = itertools.count(1)

    def __init__(self, kubeconfig, folder, *flags, image=product.REFERENCE):
        self.kubeconfig, self.folder = kubeconfig, folder
        self.flags = (f"--holder-image={image}", *flags)
        self.port = free_port()
        self.daemon = None

    def start(self):
        command = [
            *(sys.executable, "-m", "vgpu", "kubeshare", "controller"),
            f"--lease-namespace={HOME}",
            f"--kubeconfig={self.kubeconfig}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            *self.flags,
        ]
        log = self.folder / f"controller-{next(self.numbers)}.log"
        self.daemon = Daemon("controller", command, log, cwd=Path.cwd())
        self.daemon.wait_until(
            lambda: request(self.port, "/-/ready")[0] == 200, "ready", failures=(OSError,)
        )

    def metrics(self):
        return request(self.port, "/metrics")[1].decode()

    def kill(self):
        self.daemon.signal(SIGKILL)
        self.daemon.wait()


class Bed:
    """The nodes, the player and the API server."""

    def __init__(self, api, folder, client):
        self.api, self.client, self.folder = api, api.client, folder
        self.account, self.kubeconfig = client, client.kubeconfig
        self.gpus = {}
        self.player = Player(api.client, self.gpus)

    def controller(self, *flags):
        return Controller(self.kubeconfig, self.folder, *flags)

    def node(self, name, gpus, example="main"):
        """A node that SharePods of one example select by its label."""
        uuids = [f"GPU-{name}-{number}" for number in range(gpus)]
        info = "".join(f"{uuid}:{GPU_BYTES // MIB}," for uuid in uuids)
        node = make_node(self.api, name, {"nvidia.com/gpu": gpus}, {"kubeshare/gpu_info": info})
        self.set_ready(node)
        labels = {"metadata": {"labels": {EXAMPLE: example}}}
        self.client.patch(node, {"spec": {"taints": [TAINT]}, **labels})
        self.gpus[name] = uuids

    def set_ready(self, node, status="True"):
        ready = {"type": "Ready", "status": status, "reason": "Test"}
        self.client.patch(node, {"status": {"conditions": [ready]}}, "status")

    def create(self, *args, example="main", **spec):
        return self.client.create(share_pod(*args, nodeSelector={EXAMPLE: example}, **spec))

    def find(self, namespace, name):
        return self.client.get(f"/apis/kubeshare.nthu/v1/namespaces/{namespace}/sharepods/{name}")

    def wait_for(self, namespace, name, condition, what):
        path = f"/apis/kubeshare.nthu/v1/namespaces/{namespace}/sharepods/{name}"
        return self.client.wait_for(path, condition, what)

    def wait_ready(self, namespace, *names):
        return [self.wait_for(namespace, name, objects.ready, "Ready") for name in names]

    def wait_events(self, found, *reasons):
        """Wait until it has an event of each reason."""
        wait_until(
            lambda: {each["reason"] for each in self.client.events(found)} >= set(reasons),
            f"{found['metadata']['name']}: the events {reasons}",
        )

    def holders(self):
        pods = self.client.list("/api/v1/namespaces/kube-system/pods", labelSelector=ROLE)
        return [pod for pod in pods if pod["metadata"]["labels"]["kubeshare/nodeName"] in self.gpus]

    def wait_holders(self, count):
        wait_until(lambda: len(self.holders()) == count, f"{count} holders")


@contextmanager
def started(api, folder, nodes):
    """A bed with a kube-scheduler, without controllers, whose rights are those of the chart."""
    crds.load(api.client, CRD)
    path = "/apis/kubeshare.nthu/v1/sharepods"
    wait_until(lambda: api.client.get(path), "SharePods are served", failures=(Refused,))
    about = {"apiVersion": "v1", "kind": "ServiceAccount"}
    with suppress(Refused):
        api.client.create({**about, "metadata": {"name": "default", "namespace": "kube-system"}})
    user = api.user("system:kube-scheduler")
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(user.kubeconfig), "qps": 300, "burst": 500},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,
    }
    file = folder / "kube-scheduler.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [
        api.tools.path("kube-scheduler"),
        f"--config={file}",
        f"--bind-address={api.workplace.address}",
        f"--secure-port={api.workplace.port()}",
        f"--cert-dir={folder}",
    ]
    controllers = account(api, "kubeshare-controller")
    log = folder / "kube-scheduler.log"
    with Daemon("kube-scheduler", command, log):
        bed = Bed(api, folder, controllers)
        for name, shape in nodes.items():
            bed.node(name, *shape)
        bed.player.start()
        try:
            yield bed
        finally:
            bed.player.end()
            for pod in bed.holders():
                with suppress(Refused):
                    api.client.delete(pod, grace_seconds=0)
            remove_nodes(api, list(bed.gpus))
