"""The chart's KubeShare beside a real kubelet, with just its rights, in the place of upstream's.

The tests are steps of one way, in their order: upstream's tenants run; ours take over; a SharePod
of ours runs; ours go again. Nobody restarts.
"""

from contextlib import ExitStack, suppress

import pytest

from tests.cluster import upstream_kubeshare as upstream
from tests.cluster.charting import driver_for_pods, install, of_the_bed, shown, uninstall
from tests.cluster.counted_writes import counted_writes
from tests.cluster.kubeshare_watch import ShareWatch
from tests.cluster.kubesharing import GPUID, labelled_pod, share_pod
from tests.cluster.test_admission_policies import only
from tests.cluster.token_pods import Worker, install_client, token_daemon, worker
from tests.support import nvml_fake
from tests.support.bed import objects
from tests.support.bed.client import PATCHES, Refused
from tests.support.bed.deviceplugin import DevicePlugin
from tests.support.bed.images import Shown
from tests.support.deploy_objects import kinds
from tests.support.waiting import wait_until
from vgpu.model.units import GIB
from vgpu.rpc import deviceplugin_pb2 as pb

UUIDS = ("GPU-real-0", "GPU-real-1")
SHARED = "zxcvb"
"""Upstream's virtual GPU."""

TOKENS = "app.kubernetes.io/component=tokens"

ADDRESS = "10.244.0.9"
"""The address of upstream's pod of Gemini's programs, which is not the node's."""


def visible(ids):
    """The answer of NVIDIA's plugin."""
    return pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)})


def started(pod):
    """What shows that a pod's container is the same one: nobody has restarted it."""
    (status,) = pod["status"]["containerStatuses"]
    return pod["metadata"]["uid"], status["containerID"], status["restartCount"]


class Way:
    """The node, upstream's tenants on it, and our programs from one step to another."""

    def __init__(self, node, namespace, home, chart):
        self.node, self.client = node, node.cluster.client
        self.namespace, self.home = namespace, home
        self.chart = chart
        self.scheduler = node.path("/kubeshare/scheduler")
        self.address = node.path("/kubeshare/library/schedulerIP.txt")
        self.made = []

    # ------------------------------------------------------------ upstream's side

    def begin(self):
        """Upstream's holder pod, two tenants, one that is placed and not bound, and files."""
        info = "".join(f"{uuid}:16384," for uuid in UUIDS)
        self.client.patch(
            self.node.object(), {"metadata": {"annotations": {"kubeshare/gpu_info": info}}}
        )
        held = self.client.create(upstream.holder(self.node.name, SHARED))
        self.client.wait_for(held, objects.ready, "runs")
        self.uuid = wait_until(lambda: self.client.logs(held).strip(), "the UUID in its log")
        self.before = {"holder": self.client.get(held)}
        bound = [self._tenant(*each) for each in (("b", 400, 50077), ("a", 300, 50078))]
        self.client.create(self._placed("c", 200))
        for folder, number in (("config", 0), ("podmanagerport", 1)):
            path = self.scheduler / folder / self.uuid
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(upstream.file_of([upstream.lines(each)[number] for each in bound]))
        self.address.parent.mkdir(parents=True, exist_ok=True)
        self.address.write_text(f"{ADDRESS}\n")

    def _placed(self, name, milli):
        found = share_pod(name, self.namespace, milli)
        found["metadata"]["annotations"][GPUID] = SHARED
        found["spec"]["nodeName"] = self.node.name
        return found

    def _tenant(self, name, milli, port):
        stored = self.client.create(self._placed(name, milli))
        pod = self.client.create(upstream.pod_of(stored, self.uuid, ADDRESS, port))
        self.before[name] = self.client.wait_for(pod, objects.ready, "runs")
        return upstream.put(self.client, stored, self.before[name], self.uuid, port)

    # ------------------------------------------------------------ what is there

    def find(self, name):
        path = f"/apis/kubeshare.nthu/v1/namespaces/{self.namespace}/sharepods/{name}"
        return self.client.get(path)

    def wait_ready(self, name):
        path = f"/apis/kubeshare.nthu/v1/namespaces/{self.namespace}/sharepods/{name}"
        return self.client.wait_for(path, objects.ready, "Ready")

    def pods(self):
        """The pods of SharePods, by namespace and name."""
        pods = self.client.list(f"/api/v1/namespaces/{self.namespace}/pods")
        return {
            (self.namespace, pod["metadata"]["name"]): pod
            for pod in pods
            if "ownerReferences" in pod["metadata"]
            and pod["metadata"]["ownerReferences"][0]["kind"] == "SharePod"
        }

    def holders(self):
        return self.client.list(
            "/api/v1/namespaces/kube-system/pods", labelSelector="kubeshare/role=dummyPod"
        )

    def file(self, folder, uuid):
        """The lines of a file, without their number."""
        text = (self.scheduler / folder / uuid).read_text()
        number, *entries = text.splitlines()
        assert int(number) == len(entries), text
        return sorted(entries)

    def require_nobody_restarted(self):
        for before in self.before.values():
            assert started(self.client.get(before)) == started(before)

    def leave(self):
        """Our programs go, as by `helm uninstall`."""
        made, self.made = self.made, []
        uninstall(self.client, made)


@pytest.fixture(scope="module")
def way(control_plane, node, chart, tmp_path_factory, product_image):
    """Upstream's tenants on a node of two GPUs, then our controllers, twice, and node component."""
    del product_image
    driver = driver_for_pods(tmp_path_factory.mktemp("kubeshare") / "driver")
    driver.folder.parent.chmod(0o755)
    driver.write([nvml_fake.Device(uuid, "T4", total=16 * GIB) for uuid in UUIDS], [])
    client = control_plane.client
    with (
        control_plane.namespace("kubeshare") as namespace,
        control_plane.namespace("kubeshare-home") as home,  # where no SharePod gets a pod
        DevicePlugin(node, "nvidia.com/gpu", UUIDS, visible) as plugin,
        ExitStack() as stack,
    ):
        values = {
            "exporter": {"enabled": False},
            "reconciler": {"kind": "None"},
            "priorityClass": {"create": False},
            "kubeshare": {
                "enabled": True,
                "node": shown({"driver": (str(driver.folder), "/driver")})
                | {"writeAddress": False},
                "labels": {"enabled": True, "namespaceSelector": only(namespace)},
                "sharePods": {"allowed": [{"namespaces": [namespace], "fields": ["hostPath"]}]},
            },
        }
        where = f"--namespace={home}"
        rendered = chart.rendered(of_the_bed(node) | values, where, release=namespace)
        crd = kinds(rendered, "CustomResourceDefinition")
        install(client, crd)  # it stays, as by its own policy
        path = "/apis/kubeshare.nthu/v1/sharepods"
        wait_until(lambda: client.get(path), "SharePods are served", failures=(Refused,))
        plugin.wait_counted(2)
        watch = stack.enter_context(ShareWatch(client, [node.name]))
        way = Way(node, namespace, home, chart)
        way.begin()
        way.made = install(client, [each for each in rendered if each not in crd])
        for made in kinds(way.made, "Deployment"):
            client.wait_for(made, lambda it: it["status"].get("readyReplicas") == 2, "ready")
        for made in kinds(way.made, "DaemonSet"):
            client.wait_for(made, lambda it: it["status"].get("numberReady") == 1, "ready")
        yield way
        watch.require_unbroken()
        for each in client.list(f"/apis/kubeshare.nthu/v1/namespaces/{namespace}/sharepods"):
            client.delete({"apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", **each})
        way.leave()
        for pod in way.holders():
            with suppress(Refused):  # it went by itself
                client.delete(pod, grace_seconds=0)
            client.wait_gone(pod)
        for file in way.scheduler.glob("*/*"):  # another test of this node may use the same ports
            file.unlink()


def test_upstreams_tenants_are_taken_over_as_they_are(way):
    for name in "ab":
        found = way.wait_ready(name)
        before = way.before[name]
        env = {each["name"]: each.get("value") for each in before["spec"]["containers"][0]["env"]}
        assert found["status"]["BoundDeviceID"] == env["NVIDIA_VISIBLE_DEVICES"] == way.uuid
        assert str(found["status"]["PodManagerPort"]) == env["POD_MANAGER_PORT"]
        assert found["metadata"]["annotations"][GPUID] == SHARED
    bound = way.wait_ready("c")["status"]
    assert bound["BoundDeviceID"] == way.uuid, "placed by upstream, and bound by ours"
    assert bound["PodManagerPort"] not in (0, 50077, 50078)
    for folder, number in (("config", 0), ("podmanagerport", 1)):
        entries = sorted(upstream.lines(way.find(name))[number] for name in "abc")
        wait_until(
            lambda folder=folder, entries=entries: way.file(folder, way.uuid) == entries, folder
        )
    assert way.address.read_text() == f"{ADDRESS}\n", "the hooks find Gemini where it was"
    way.require_nobody_restarted()


def test_gemini_that_restarts_alone_has_its_files_again(way):
    """Its launcher writes 0 into every file at its start, and upstream does not notice."""
    way.wait_ready("c")
    for folder in ("config", "podmanagerport"):
        path = way.scheduler / folder / way.uuid
        entries = wait_until(lambda folder=folder: way.file(folder, way.uuid), "the file has lines")
        path.write_text("0\n")
        wait_until(
            lambda folder=folder, entries=entries: way.file(folder, way.uuid) == entries, folder
        )
    way.require_nobody_restarted()


def test_a_node_component_that_was_away_writes_what_changed_meanwhile(way):
    """Upstream drops what it would have sent to a node whose daemon is silent."""
    client = way.client
    way.wait_ready("c")
    (daemon_set,) = kinds(way.made, "DaemonSet")
    before = wait_until(lambda: way.file("config", way.uuid), "the file has lines")

    def select(labels):
        client.patch(daemon_set, {"spec": {"template": {"spec": {"nodeSelector": labels}}}})

    def pods():
        return client.get(daemon_set)["status"]["currentNumberScheduled"]

    select({"vgpu.test/nowhere": "yes"})
    wait_until(lambda: pods() == 0, "it is away")
    client.create(share_pod("w", way.namespace, 50))
    found = way.wait_ready("w")
    assert found["status"]["BoundDeviceID"] == way.uuid
    assert way.file("config", way.uuid) == before
    select({"vgpu.test/nowhere": None})
    expected = sorted([*before, upstream.lines(found)[0]])
    wait_until(lambda: way.file("config", way.uuid) == expected, "the file has all lines")
    client.delete(found)
    way.require_nobody_restarted()


def test_a_share_pod_runs_on_a_real_kubelet_with_the_rights_of_the_chart(way):
    client, namespace = way.client, way.namespace
    ours = client.list(
        f"/api/v1/namespaces/{way.home}/pods", labelSelector="app.kubernetes.io/name"
    )
    client.create(share_pod("d", namespace, 900))
    found = way.wait_ready("d")
    (uuid,) = set(UUIDS) - {way.uuid}
    assert found["status"]["BoundDeviceID"] == uuid
    gpuid = found["metadata"]["annotations"][GPUID]
    holder = f"/api/v1/namespaces/kube-system/pods/kubeshare-vgpu-{way.node.name}-{gpuid}"
    wait_until(lambda: client.logs(holder).split() == [uuid], "the log of the holder pod")
    assert client.get(holder)["spec"]["priority"] == 10**9
    config = way.scheduler / "config" / uuid
    wait_until(config.exists, "the config file")
    assert config.read_text() == f"1\n{namespace}/d 0.900000 1.000000 {GIB}\n"
    port = found["status"]["PodManagerPort"]
    ports = way.scheduler / "podmanagerport" / uuid
    assert ports.read_text() == f"1\n{namespace}/d {port}\n"
    client.create(share_pod("e", namespace, 100))
    ended = way.wait_ready("e")
    client.delete(ended)
    name = f"{namespace}/e"
    where = ended["status"]["BoundDeviceID"]
    wait_until(lambda: name not in str(way.file("config", where)), "its line goes")
    assert ours
    for pod in ours:
        assert "forbidden" not in client.logs(pod).lower()


def test_a_share_pod_is_written_once_for_what_its_kubelet_reports(way):
    """The kubelet's statuses have nulls, which the API server drops from the SharePods' copies."""
    client = way.client
    way.wait_ready("c")
    share_pods = client.list(f"/apis/kubeshare.nthu/v1/namespaces/{way.namespace}/sharepods")
    for pod in way.pods().values():
        page = client.raw("GET", client.path(pod)).data
        assert b'"lastProbeTime":null' in page, "as in every cluster"

    def patches():
        return counted_writes(client)["PATCH", "sharepods"]

    def copied(path, text):
        return client.get(path)["status"].get("PodStatus", {}).get("message") != text

    def one_each():
        """Change each copy, which is one patch of ours, and one of the controllers."""
        before = patches()
        for found in share_pods:
            path = client.path({"apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", **found})
            text = {"status": {"PodStatus": {"message": "not the pod's"}}}
            client.raw("PATCH", path, text, PATCHES["merge"])
            wait_until(lambda path=path: copied(path, "not the pod's"), "the copy is right again")
        return patches() - before == 2 * len(share_pods)

    wait_until(one_each, "the controllers write once for each change", context=patches)


def test_a_pod_with_labels_finds_its_gpu_by_its_annotations(way):
    """KubeShare 2's: the kubelet fills the variables, and the files have its line."""
    client, namespace = way.client, way.namespace
    way.wait_ready("c")
    pod = client.create(labelled_pod("l", namespace, 100))
    found = client.wait_for(pod, objects.ready, "runs")
    assert objects.condition(found, "PodScheduled") == "True"
    share = found["metadata"]["annotations"]
    uuid, port = share["sharedgpu/gpu_uuid"], share["sharedgpu/gpu_manager_port"]
    env = Shown.by(client, found).env
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["POD_MANAGER_PORT"]) == (uuid, port)
    line = f"{namespace}/l 0.100000 1.000000 {GIB}"
    wait_until(lambda: line in way.file("config", uuid), "its line")
    assert f"{namespace}/l {port}" in way.file("podmanagerport", uuid)
    tenants = way.scheduler / "tenants" / uuid
    wait_until(lambda: f'["{found["status"]["podIP"]}"]' in tenants.read_text(), "its address")
    client.delete(found)
    wait_until(lambda: line not in way.file("config", uuid), "its line goes")
    client.wait_gone(found)


def test_pods_share_a_gpu_and_notice_no_rollout_of_the_charts_token_daemon(way):
    """SharePods, controllers, node component, files, pods of the kubelet, and their messages."""
    client, node, space = way.client, way.node, way.namespace
    install_client(node)
    installed = install(client, token_daemon(way.chart, space, node))
    (daemon,) = kinds(installed, "DaemonSet")
    made = [client.create(worker(name, space, 50)) for name in "xy"]
    found = [way.wait_ready(name) for name in "xy"]
    (uuid,) = {each["status"]["BoundDeviceID"] for each in found}
    client.wait_for(daemon, lambda it: it["status"].get("numberReady") == 1, "ready")
    addresses = [way.pods()[space, name]["status"]["podIP"] for name in "xy"]
    tenants = way.scheduler / "tenants" / uuid
    wait_until(lambda: all(f'["{it}"]' in tenants.read_text() for it in addresses), "the addresses")

    def daemons():
        return client.list(f"/api/v1/namespaces/{space}/pods", labelSelector=TOKENS)

    def metric(name, pod):
        (first, *_) = daemons()
        path = f"/api/v1/namespaces/{space}/pods/{first['metadata']['name']}:9402/proxy/metrics"
        labels = f'{{uuid="{uuid}",namespace="{space}",pod="{pod}"}}'
        page = client.raw("GET", path).data.decode()
        line = next(line for line in page.splitlines() if line.startswith(f"{name}{labels} "))
        return int(line.split()[1])

    x, y = Worker(node, "x"), Worker(node, "y")
    stranger = y.other(found[0]["status"]["PodManagerPort"])
    refused = stranger.send("limit")
    assert x.ask("limit") == f"limit 0 {GIB}"
    assert x.ask(f"allocate {GIB // 2}") == "allocate 1"
    assert x.ask(f"allocate {GIB}") == "allocate 0"
    assert x.ask("quota 0 0") == "quota 300.000"
    assert y.ask("quota 0 0") == "quota 300.000"
    wait_until(lambda: metric("vgpu_token_address_known", "x") == 1, "the address is known")
    assert stranger.answer(refused) == "limit 0 0", "it came from another pod's address"
    assert metric("vgpu_token_other_addresses_total", "x") == 1

    (before,) = daemons()
    template = {"metadata": {"annotations": {"restartedAt": "now"}}}
    client.patch(daemon, {"spec": {"template": template}})
    client.wait_gone(before)
    (after,) = daemons()
    assert objects.ready(after)
    wait_until(lambda: "connections=3" in client.logs(after), "the log has the connections")
    assert metric("vgpu_token_memory_booked_bytes", "x") == GIB // 2
    assert x.ask(f"allocate {GIB}") == "allocate 0"
    assert x.ask(f"allocate {GIB // 4}") == "allocate 1"
    assert y.ask("quota 0 0").startswith("quota ")

    for each in made:
        client.delete(each)
    wait_until(lambda: f"{space}/x" not in str(way.file("config", uuid)), "its line goes")
    client.delete(daemon, propagation="Foreground")
    client.delete(after, grace_seconds=1)  # it would serve on until another one comes
    client.wait_gone(after)
    uninstall(client, [each for each in installed if each is not daemon])


def test_upstreams_programs_find_all_as_they_need_it_when_ours_have_gone(way):
    """The way back: nothing restarts, and their start changes neither an object nor a file."""
    client = way.client
    for name in "abc":
        way.wait_ready(name)
    if (way.namespace, "d") not in way.pods():
        client.create(share_pod("d", way.namespace, 900))
        way.wait_ready("d")
    way.before |= {name: pod for (_, name), pod in way.pods().items()}
    way.before |= {pod["metadata"]["name"]: pod for pod in way.holders()}
    found = {
        (folder, way.find(name)["status"]["BoundDeviceID"])
        for name in "cd"
        for folder in ("config", "podmanagerport")
    }
    way.leave()
    way.require_nobody_restarted()
    share_pods = client.list(f"/apis/kubeshare.nthu/v1/namespaces/{way.namespace}/sharepods")
    restart = upstream.Restart(
        way.holders(),
        {pod["metadata"]["name"]: client.logs(pod) for pod in way.holders()},
        share_pods,
        way.pods(),
        {way.node.name: upstream.known_uuids(way.node.object())},
    )
    assert not restart.complaints
    assert restart.files.keys() == found
    for (folder, uuid), entries in restart.files.items():
        assert way.file(folder, uuid) == sorted(entries)
    for share in share_pods:  # it writes the whole object, without what it does not know
        pod = way.pods()[way.namespace, share["metadata"]["name"]]
        status = share["status"]
        typed = {"apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", **share}
        upstream.put(client, typed, pod, status["BoundDeviceID"], status["PodManagerPort"])
    way.require_nobody_restarted()
