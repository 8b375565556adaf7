"""KubeShare's controllers on real kubelets: the worked examples P1 to P7, and lost holder pods.

All of Kubernetes is real, and so is the release's image; the GPUs are those of a device plugin.
Holder pods and the pods of SharePods run. The GPU of a holder is from the kubelet's record of its
devices. ``make test`` has one example here, and all of them on the played kubelets of
test_kubeshare_controllers.py.
"""

import sys
from contextlib import contextmanager

import pytest

from kubeshare.virtual_gpu import HOLDER_SECONDS
from tests.cluster.accounts import account
from tests.cluster.charting import driver_for_pods
from tests.cluster.extending import free_port
from tests.cluster.kubeshare_examples import Example
from tests.cluster.kubeshare_watch import ShareWatch
from tests.cluster.kubesharing import (
    CRD,
    EXAMPLE,
    GPU_BYTES,
    GPUID,
    Controller,
    share_pod,
)
from tests.kubeshare.test_controllers import EXAMPLES
from tests.support import nvml_fake
from tests.support.bed import crds, objects
from tests.support.bed.deviceplugin import DevicePlugin
from tests.support.bed.images import Shown
from tests.support.waiting import wait_until
from vgpu.rpc import deviceplugin_pb2 as pb
from vgpu.schemes.kubeshare.node import HOLDER_UUID, ROLE

GPUS = 3
"""As many as the largest example has on one node."""

OFTEN = {"P2"}
"""The examples of ``make test``: affinity, with a refusal."""


def visible(ids):
    """The answer of NVIDIA's plugin."""
    return pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)})


class GpuNode:
    """A node with GPUs, their plugin and our node component."""

    def __init__(self, node, folder, account):
        self.node, self.client = node, node.cluster.client
        self.uuids = [f"GPU-{node.name}-{number}" for number in range(GPUS)]
        driver = driver_for_pods(folder / node.name)
        driver.write([nvml_fake.Device(uuid, "T4", total=GPU_BYTES) for uuid in self.uuids], [])
        self.plugin = DevicePlugin(node, "nvidia.com/gpu", self.uuids, visible)
        self.account, self.env, self.component = account, driver.env(), None

    def set_up(self, gpus, example):
        """Leave it so many GPUs, then give it the label by which SharePods select it.

        The node component begins after that: who has its report has seen the rest, too.
        """
        for number, uuid in enumerate(self.uuids):
            self.plugin.set_health(uuid, healthy=number < gpus)
        self.plugin.wait_counted(GPUS, gpus)
        self.client.patch(self.node.object(), {"metadata": {"labels": {EXAMPLE: example}}})
        if self.component is None:
            command = [
                *(sys.executable, "-m", "vgpu", "kubeshare", "node"),
                f"--node-name={self.node.name}",
                f"--kubeconfig={self.account.kubeconfig}",
                f"--web.listen-address=127.0.0.1:{free_port()}",
            ]
            self.component = self.node.start("kubeshare-node", command, env=self.env)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.component is not None:
            self.component.stop()
        self.plugin.stop()
        for file in self.node.path("/kubeshare/scheduler").glob("*/*"):  # others have these ports
            file.unlink()
        about = {"labels": {EXAMPLE: None}, "annotations": {"kubeshare/gpu_info": None}}
        self.client.patch(self.node.object(), {"metadata": about})


class Bed:
    """The controllers, in one namespace."""

    def __init__(self, cluster, namespace, folder, image):
        self.client, self.namespace, self.folder = cluster.client, namespace, folder
        self.cluster = cluster
        kubeconfig = account(cluster, "kubeshare-controller").kubeconfig
        self.controller = Controller(kubeconfig, folder, "--no-leader-elect", image=image)
        self.nodes = {}

    @contextmanager
    def with_gpus(self, node):
        """A node of the bed has GPUs."""
        with GpuNode(
            node, self.folder, account(self.cluster, "kubeshare-node", node=node.name)
        ) as made:
            self.nodes[node.name] = made
            yield

    def create(self, *args, example, **spec):
        return self.client.create(share_pod(*args, nodeSelector={EXAMPLE: example}, **spec))

    def wait_for(self, namespace, name, condition, what):
        path = f"/apis/kubeshare.nthu/v1/namespaces/{namespace}/sharepods/{name}"
        return self.client.wait_for(path, condition, what)

    def run(self, *names, milli, example):
        """SharePods that run on one virtual GPU; returns them and their holder."""
        for name in names:
            self.create(name, self.namespace, milli, example=example)
        found = [self.wait_for(self.namespace, name, objects.ready, "Ready") for name in names]
        ((place, holder),) = self.holders().items()
        self._require_served(found, {place: holder})
        return found, holder

    def run_example(self, name):
        """One example: its SharePods are placed one after another; those with a place run."""
        example = Example(self, self.namespace, name)
        for node, gpus in zip(self.nodes.values(), example.nodes.values(), strict=True):
            node.set_up(gpus, name)
        for node in self.nodes:
            reported = f'vgpu_kubeshare_node_connected{{node="{node}"}} 1'
            wait_until(lambda reported=reported: reported in self.controller.metrics(), reported)
        for number in range(len(example.asked)):
            example.create(number)
            example.wait_placed(number)
        assert example.placed in example.expected
        running = example.wait_ready()
        holders = self.holders()
        assert len(holders) == len(running)
        for share_pods in running.values():
            self._require_served(share_pods, holders)

    def holders(self):
        """The holder pods by node and GPUID."""
        pods = self.client.list("/api/v1/namespaces/kube-system/pods", labelSelector=ROLE)
        labels = [pod["metadata"]["labels"] for pod in pods]
        places = [(each["kubeshare/nodeName"], each[GPUID]) for each in labels]
        return dict(zip(places, pods, strict=True))

    def _require_served(self, share_pods, holders):
        """The containers of one virtual GPU have the GPU that the kubelet gave to its holder."""
        (uuid,) = {each["status"]["BoundDeviceID"] for each in share_pods}
        (place,) = {
            (each["spec"]["nodeName"], each["metadata"]["annotations"][GPUID])
            for each in share_pods
        }
        holder = holders[place]
        assert holder["metadata"]["annotations"][HOLDER_UUID] == uuid
        wait_until(lambda: self.client.logs(holder).split() == [uuid], "the log of the holder pod")
        assert (uuid,) in self.nodes[place[0]].plugin.allocated
        for each in share_pods:
            env = Shown.by(self.client, self.pod(each)).env
            port = str(each["status"]["PodManagerPort"])
            assert (env["NVIDIA_VISIBLE_DEVICES"], env["POD_MANAGER_PORT"]) == (uuid, port)

    def pod(self, share_pod):
        path = f"/api/v1/namespaces/{self.namespace}/pods/{share_pod['metadata']['name']}"
        return self.client.get(path)

    def wait_events(self, found, *reasons):
        wait_until(
            lambda: {each["reason"] for each in self.client.events(found)} >= set(reasons),
            f"{found['metadata']['name']}: the events {reasons}",
        )

    def values(self, family):
        """The samples of one family of the controllers' metrics."""
        lines = self.controller.metrics().splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith(f"{family}{{")]

    def clear(self):
        """Everything goes, and the controllers have seen it go."""
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self.client.raw("DELETE", f"/apis/kubeshare.nthu/v1/namespaces/{self.namespace}/sharepods")
        wait_until(lambda: not any(self.values("vgpu_kubeshare_sharepods")), "no SharePods")
        # Kubernetes' garbage collector may learn of a new kind half a minute later.
        self.client.raw("DELETE", pods, {"gracePeriodSeconds": 1})
        wait_until(lambda: not self.client.list(pods), "the pods are gone")
        wait_until(lambda: not self.values("vgpu_kubeshare_virtual_gpus"), "no virtual GPUs")


@pytest.fixture(scope="module")
def bed(control_plane, node, product_image, tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    folder.chmod(0o755)
    crds.load(control_plane.client, CRD)
    with control_plane.namespace("examples") as namespace:
        bed = Bed(control_plane, namespace, folder, product_image)
        with bed.with_gpus(node), ShareWatch(control_plane.client, bed.nodes):
            bed.controller.start()
            yield bed
            assert bed.controller.daemon.stop() == 0


@pytest.fixture
def second(nodes, bed, product_archive):
    """Another node with GPUs, with a kubelet of its own."""
    node = nodes()
    node.import_image(product_archive)
    with bed.with_gpus(node):
        yield node
    del bed.nodes[node.name]


@pytest.fixture
def cleared(bed):
    """Nothing is left for the next test."""
    yield
    bed.clear()


def often(name):
    """Not in ``make test``, unless it is one of these."""
    return pytest.param(name, marks=() if name in OFTEN else pytest.mark.thorough("schedulers"))


@pytest.mark.parametrize("name", [often(name) for name in EXAMPLES if name != "P7"])
@pytest.mark.usefixtures("cleared")
def test_the_worked_examples_run_as_computed(bed, name):
    bed.run_example(name)


@pytest.mark.thorough("schedulers")
@pytest.mark.usefixtures("second", "cleared")
def test_the_worked_example_of_two_nodes_runs_as_computed(bed):
    bed.run_example("P7")


def started(pod):
    """What shows that a pod's container is the same one: nobody has restarted it."""
    (status,) = pod["status"]["containerStatuses"]
    return pod["metadata"]["uid"], status["containerID"], status["restartCount"]


@pytest.mark.usefixtures("cleared")
def test_tenants_outlive_a_holder_that_fails_and_follow_one_that_moves(bed, node):
    """The kubelet ends a holder and gives its GPU to the next; or it has only another GPU."""
    gpus = bed.nodes[node.name]
    gpus.set_up(1, "lost")
    share_pods, holder = bed.run("a", "b", milli=300, example="lost")
    before = [started(bed.pod(each)) for each in share_pods]
    bed.client.patch(holder, {"spec": {"activeDeadlineSeconds": 1}})
    bed.client.wait_gone(holder)
    wait_until(lambda: bed.holders() and objects.ready(*bed.holders().values()), "the next holder")
    bed.wait_events(holder, "HolderFailed")
    assert [started(bed.pod(each)) for each in share_pods] == before

    (lost, other, *_) = gpus.uuids
    gpus.plugin.set_health(lost, healthy=False)
    gpus.plugin.set_health(other, healthy=True)
    gpus.plugin.wait_counted(GPUS, 1)
    (holder,) = bed.holders().values()
    bed.client.delete(holder)
    for each, pod in zip(share_pods, before, strict=True):
        found = bed.wait_for(
            bed.namespace,
            each["metadata"]["name"],
            lambda found: found["status"]["BoundDeviceID"] == other and objects.ready(found),
            "runs on the other GPU",
        )
        assert bed.pod(found)["metadata"]["uid"] != pod[0]
        assert Shown.by(bed.client, bed.pod(found)).env["NVIDIA_VISIBLE_DEVICES"] == other
        bed.wait_events(found, "GpuChanged")


@pytest.mark.thorough("schedulers")
@pytest.mark.usefixtures("cleared")
def test_tenants_leave_a_gpu_whose_holder_was_preempted(bed, node):
    """Pods of a higher priority may do this; the controllers give the holder a minute."""
    bed.nodes[node.name].set_up(1, "taken")
    (found,), _ = bed.run("a", milli=500, example="taken")
    native = objects.pod(
        "native",
        bed.namespace,
        limits={"nvidia.com/gpu": 1},
        priorityClassName="system-node-critical",
        nodeSelector={EXAMPLE: "taken"},
    )
    native = bed.client.wait_for(bed.client.create(native), objects.ready, "runs")
    assert (
        Shown.by(bed.client, native).env["NVIDIA_VISIBLE_DEVICES"]
        == found["status"]["BoundDeviceID"]
    )
    path = f"/apis/kubeshare.nthu/v1/namespaces/{bed.namespace}/sharepods/a"
    bed.client.wait_for(
        path,
        lambda found: not found["spec"].get("nodeName"),
        "gives its place back",
        seconds=3 * HOLDER_SECONDS,
    )
    bed.wait_events(found, "GpuTaken")
    pods = f"/api/v1/namespaces/{bed.namespace}/pods"
    assert [each["metadata"]["name"] for each in bed.client.list(pods)] == ["native"]
    bed.client.delete(native)
    bed.wait_for(bed.namespace, "a", objects.ready, "runs again")
