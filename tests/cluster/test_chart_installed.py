"""The chart, installed on a real node: each program does its work with just its rights."""

import re
import shutil
from types import SimpleNamespace

import pytest
import urllib3
from msgspec.structs import replace

from tests.cluster.charting import install, of_the_bed, shown, uninstall
from tests.cluster.extending import make_node
from tests.cluster.plugin_node import volcano_pod
from tests.support.bed import objects
from tests.support.bed.deviceplugin import DevicePlugin, pb
from tests.support.bed.images import Shown
from tests.support.deploy_objects import kinds
from tests.support.live import parse as series_of
from tests.support.nvml_fake import Device, Process, uuid
from tests.support.regions import PODS, a_region, write
from tests.support.waiting import wait_until
from vgpu.sources.regions import read_region

RESOURCE = "volcano.sh/vgpu-number"
SHIMS = "/usr/local/vgpu/containers"
GPU = uuid(0)
GIB = 2**30
USERS = {"train": 4242, "bare": 4343}
"""The tenants' pods and their users."""

DAC_READ_SEARCH, SYS_PTRACE = 1 << 2, 1 << 19
PHASE = "volcano.sh/bind-phase"
PROFILES = {
    "minimal": (65532, 0, {"nvml", "shim", "kubelet"}),
    "standard": (0, 0, {"nvml", "shim", "kubelet", "limits", "plugin", "process"}),
    "full": (
        0,
        SYS_PTRACE,
        {"nvml", "shim", "kubelet", "limits", "plugin", "process", "api"},
    ),
}
"""Profile -> user, capabilities, collectors that bring data."""

OF_THE_NODE = {"process", "pod-resources", "kubelet-checkpoint", "own-checkpoint", "limit-file"}

REASONS = {
    "minimal": "no_processes_seen",
    "standard": "static_binary",
    "full": "static_binary",
}
"""Profile -> the reason of the limit's state of a container whose program is a static busybox."""

SOURCES = {
    "minimal": {"shim"},
    "standard": {"shim", *OF_THE_NODE},
    "full": {"shim", "annotations", *OF_THE_NODE},
}
"""Profile -> sources of the ledger that are read."""


def a_pod_on_the_gpu(name, namespace):
    command = ["sleep", "100000000"]
    pod = objects.pod(name, namespace, command=command, limits={RESOURCE: 1})
    pod["spec"]["containers"][0]["securityContext"] = {"runAsUser": USERS[name]}
    return pod


def on_the_gpu(ids):
    return pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": GPU})


def a_shim(file):
    """A region of the GPU, as HAMi-core leaves it, readable for all."""
    region = a_region("v1.2", devices=1)
    write(file, replace(region, devices=(replace(region.devices[0], uuid=GPU),)))
    file.chmod(0o666)


@pytest.fixture
def tenants(node, namespace, driver):
    """Two pods with a process on the GPU; one has a shim's folder, one a region of its own."""
    client = node.cluster.client
    with DevicePlugin(node, RESOURCE, ["a", "b"], on_the_gpu) as plugin:
        plugin.wait_counted(2)
        pods = {name: client.create(a_pod_on_the_gpu(name, namespace)) for name in USERS}
        pods = {name: client.wait_for(pod, objects.ready, "Ready") for name, pod in pods.items()}
        pids = {name: node.run(["pgrep", "-u", str(user)]).strip() for name, user in USERS.items()}
        processes = [Process(GPU, int(pid), used=GIB) for pid in pids.values()]
        driver.write([Device(GPU)], processes)
        folder = f"{SHIMS}/{pods['train']['metadata']['uid']}_main"
        node.run(["mkdir", "-p", folder])
        a_shim(node.path(f"{folder}/region.cache"))
        a_shim(node.path(f"/proc/{pids['bare']}/root/tmp/cudevshr.cache"))
        yield pods
    node.run(["rm", "-r", SHIMS])


@pytest.fixture
def volumes(driver, tenants, host_proc):
    """Folders of the node that the exporter is shown beside the chart's, and where."""
    return {"driver": (str(driver.folder), "/driver"), "proc": (host_proc(), "/host/proc")}


def kernel_says(node, program):
    """What /proc/<pid>/status has of a program's processes on the node."""
    for pid in node.run(["pgrep", "-f", program]).split():
        lines = node.run(["cat", f"/proc/{pid}/status"]).splitlines()
        yield dict(line.split(":\t", 1) for line in lines if ":\t" in line)


@pytest.fixture
def installed(chart, control_plane, namespace):
    """Installs the chart with values; all is taken away at the end."""
    client, made = control_plane.client, []

    def start(values):
        rendered = chart.rendered(values, f"--namespace={namespace}", release=namespace)
        made.extend(install(client, rendered))
        for workload in kinds(made, "DaemonSet"):
            client.wait_for(workload, lambda it: it["status"].get("numberReady") == 1, "ready")
        return client.list(f"/api/v1/namespaces/{namespace}/pods")

    yield start
    uninstall(client, made)


@pytest.fixture
def exporter(installed, node, volumes):
    """Installs the exporter in a profile; its page as series, and its status in the kernel."""

    def start(profile):
        own = {
            "profile": profile,
            "api": profile == "full",
            "draState": profile == "full",
            "draSpecs": profile == "full",
            "sampleInterval": "1s",
            "extraArgs": [] if profile == "minimal" else ["--path.procfs=/host/proc"],
        }
        pods = installed(
            of_the_bed(node) | {"exporter": own | shown(volumes), "reconciler": {"kind": "None"}}
        )
        (pod,) = (pod for pod in pods if pod["metadata"]["name"] not in USERS)
        page = f"http://{pod['status']['podIP']}:9394/metrics"

        def series():
            return series_of(urllib3.request("GET", page).data.decode())

        (status,) = kernel_says(node, "vgpu exporter")
        return series, status

    return start


def about(series, name, pod):
    """The values of a metric that are of a pod."""
    return [
        value
        for at, value in series.items()
        if at.startswith(f"{name}{{") and f'pod="{pod}"' in at and 'container="main"' in at
    ]


@pytest.mark.usefixtures("product_image")
@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_of_the_exporter_sees_with_just_its_rights_what_it_should(
    node, exporter, profile
):
    user, capabilities, collectors = PROFILES[profile]
    series, status = exporter(profile)
    seen = 1 + (profile == "full")  # regions: that in a folder, and the bare one
    limit, accounted = (f"vgpu_container_memory_{kind}_bytes" for kind in ("limit", "accounted"))
    page = wait_until(
        lambda: (page := series()) and sum(limit in at for at in page) == seen and page,
        "the regions are seen",
        context=lambda: "\n".join(map(str, series().items())),
    )

    assert status["Uid"].split() == [str(user)] * 4
    assert {int(status[each], 16) for each in ("CapEff", "CapPrm", "CapBnd")} == {capabilities}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    if profile == "full":  # with draState: the kubelet's folder, without what pods have in it
        kubelet = f"/proc/{status['Pid'].strip()}/root/var/lib/kubelet"
        assert node.run(["ls", f"{kubelet}/pods"]) == ""
        assert "pod-resources" in node.run(["ls", kubelet]).split()

    success = {at: value for at, value in page.items() if at.startswith("vgpu_collector_success")}
    assert success == {f'vgpu_collector_success{{collector="{one}"}}': 1 for one in collectors}
    assert about(page, limit, "train")
    assert about(page, accounted, "train") == ([] if profile == "minimal" else [0])
    assert about(page, accounted, "bare") == ([0] if profile == "full" else [])
    for pod in USERS:
        used = about(page, "vgpu_container_memory_used_bytes", pod)
        assert used == ([] if profile == "minimal" else [GIB])
    infos = [at for at in page if at.startswith("vgpu_container_info{") and "train" in at]
    assert [re.search(r'limit_reason="(\w*)"', at)[1] for at in infos] == [REASONS[profile]]
    read = {
        at.split('"')[1]
        for at, value in page.items()
        if at.startswith("vgpu_allocation_source_read") and value
    }
    assert read == SOURCES[profile]


OFFERED = {
    "volcano.sh/vgpu-number": "10",
    "aliyun.com/gpu-mem": "80",
    "tencent.com/vcuda-core": "100",
}
"""What one GPU of 80 GiB makes under each scheme."""


def test_the_device_plugins_serve_with_just_their_rights(own_node, installed, namespace, driver):
    driver.write([Device(GPU, total=80 * GIB)])
    beside = {"enabled": True, "nodeReconciler": False}
    schemes = {
        "volcano": {"enabled": True},
        "gpushare": beside | {"unhealthyReports": [own_node.name]},
        "gaia": beside,
    }
    pods = installed(
        of_the_bed(own_node)
        | {
            "exporter": {"enabled": False},
            "units": {"volcanoMemoryFactor": 64, "gpushareMemoryUnit": "GiB"},
            "devicePlugin": shown({"driver": (str(driver.folder), "/driver")})
            | {"schemes": schemes},
            "reconciler": {"kind": "None", "mode": "apply"},
        }
    )
    client, place = own_node.cluster.client, own_node.object()
    client.wait_for(
        place, lambda it: OFFERED.items() <= it["status"]["allocatable"].items(), "offers all"
    )
    plugins = list(kernel_says(own_node, "vgpu device-plugin"))
    assert len(plugins) == 3
    reconcilers = list(kernel_says(own_node, "vgpu reconcile"))
    assert len(reconcilers) == 1
    for statuses, rights in ((plugins, 0), (reconcilers, SYS_PTRACE | DAC_READ_SEARCH)):
        for status in statuses:
            assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == rights
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")

    shim = own_node.path("/usr/local/vgpu")
    for name in ("libvgpu.so", "ld.so.preload"):
        (shim / name).write_bytes(b"")
    allocation_state = SimpleNamespace(uuids=[GPU], node=own_node)
    pod = client.create(volcano_pod("train", namespace, allocation_state, {"main": [(0, 16, 30)]}))
    client.wait_for(pod, objects.ready, "Ready")
    shows = Shown.by(client, pod)
    assert shows.env["NVIDIA_VISIBLE_DEVICES"] == GPU
    assert shows.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024m"
    client.wait_for(
        pod, lambda it: it["metadata"]["annotations"][PHASE] == "success", "the pod is reported"
    )
    for each in pods:
        for container in each["spec"]["containers"]:
            assert "forbidden" not in client.logs(each, container["name"]).lower()


def test_the_feedback_lets_a_container_go_without_a_capability(
    node, installed, host_proc, product_image
):
    """A container that a dead monitor has left blocked, on a node where no checkpoint knows it."""
    del product_image
    folder = node.path("/usr/local/vgpu/containers") / f"{PODS[0]}_main"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    left = write(folder / "left.cache", replace(a_region("v1.2"), recent_kernel=-1))
    left.chmod(0o666)
    more = shown({"proc": (host_proc(), "/host/proc")}) | {"extraEnv": []}
    values = more | {"enabled": True, "extraArgs": ["--path.procfs=/host/proc"]}
    reach = {"exporter": {"enabled": False}, "reconciler": {"kind": "None"}}
    try:
        with DevicePlugin(node, "example.com/written", ("thing",)) as plugin:
            plugin.wait_counted(1)  # the kubelet has written its checkpoint
        installed(of_the_bed(node) | reach | {"feedback": values})
        wait_until(lambda: read_region(str(left)).recent_kernel == 0, "it is let go")
        (status,) = kernel_says(node, "vgpu feedback")
        assert status["Uid"].split() == ["0"] * 4
        assert {int(status[each], 16) for each in ("CapEff", "CapPrm", "CapBnd")} == {0}
    finally:
        shutil.rmtree(folder)


def test_the_token_daemon_serves_without_a_capability_and_the_exporter_reads_its_page(
    node, installed, product_image
):
    """On the node's network, from files as the node component writes them."""
    del product_image
    folder = node.path("/kubeshare/scheduler")
    contents = {"config": "1\nml/train 0.5 0.8 1024\n", "podmanagerport": "1\nml/train 50051\n"}
    try:
        for name, text in contents.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "GPU-1").write_text(text)
        alone = ["--handover-wait=1ms"]  # no next process comes, for which it would wait at its end
        values = {
            "tokens": {"enabled": True, "extraArgs": alone},
            "reconciler": {"kind": "None"},
        }
        values["exporter"] = {"sampleInterval": "1s"}
        pods = installed(of_the_bed(node) | values)
        (status,) = kernel_says(node, "vgpu tokens")
        assert {int(status[each], 16) for each in ("CapEff", "CapPrm", "CapBnd")} == {0}
        (address,) = (
            pod["status"]["podIP"]
            for pod in pods
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "exporter"
        )

        def reads():
            page = urllib3.request("GET", f"http://{address}:9394/metrics").data.decode()
            return series_of(page).get('vgpu_collector_success{collector="tokens"}') == 1

        wait_until(reads, "the exporter reads the page of the daemon")
    finally:
        for name in contents:
            (folder / name / "GPU-1").unlink(missing_ok=True)


def test_the_scheduler_binds_with_just_its_rights(node, installed, namespace, product_image):
    """One replica without client certificates, in a pod: it is asked as kube-scheduler would."""
    del product_image
    values = {"enabled": True, "allowAnonymous": True, "replicas": 1}
    reach = {"exporter": {"enabled": False}, "reconciler": {"kind": "None"}}
    installed(of_the_bed(node) | reach | {"scheduler": values})
    cluster, client = node.cluster, node.cluster.client
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{namespace}-vgpu-scheduler"
    client.wait_for(
        client.get(path), lambda it: it["status"].get("readyReplicas") == 1, "has read the cluster"
    )
    (pod,) = client.list(f"/api/v1/namespaces/{namespace}/pods")
    (status,) = kernel_says(node, "vgpu scheduler")
    assert status["Uid"].split() == ["65532"] * 4
    assert {int(status[each], 16) for each in ("CapEff", "CapPrm", "CapBnd")} == {0}

    place = make_node(
        cluster, f"{namespace}-gpus", {"aliyun.com/gpu-mem": 8, "aliyun.com/gpu-count": 1}
    )
    name = place["metadata"]["name"]
    try:
        fits, waits = (
            client.create(
                objects.pod(each, namespace, limits={"aliyun.com/gpu-mem": 8}, schedulerName="none")
            )
            for each in ("fits", "waits")
        )

        def ask(verb, body):
            url = f"http://{pod['status']['podIP']}:9398/{verb}"
            return urllib3.request("POST", url, json=body).json()

        def bind(pod):
            meta = pod["metadata"]
            return ask(
                "bind",
                {
                    "PodName": meta["name"],
                    "PodNamespace": namespace,
                    "PodUID": meta["uid"],
                    "Node": name,
                },
            )["Error"]

        wait_until(lambda: bind(fits) == "", "it is bound", context=lambda: client.logs(pod))
        assert client.get(fits)["spec"]["nodeName"] == name
        answer = ask("filter", {"Pod": waits, "Nodes": None, "NodeNames": [name]})
        assert answer["FailedNodes"] == {name: "no GPU has enough free memory"}
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/vgpu-node-{name}"
        claims = client.get(lease)["metadata"]["annotations"]["vgpu.dev/claims"]
        assert fits["metadata"]["uid"] in claims
        client.wait_for(waits, lambda it: bool(client.events(it)), "has an event")
        assert "forbidden" not in client.logs(pod).lower()
    finally:
        cluster.remove_node(name)
