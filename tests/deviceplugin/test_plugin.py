"""The whole program as a process: how it starts, what it serves, and how it ends."""

import json
import signal
import socket
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import grpc
import pytest

from deviceplugin.allocate.checkpoint import CheckpointFile, LockHeld
from deviceplugin.flags import PluginOptions
from deviceplugin.plugin import HealthRelay
from deviceplugin.service import Service
from tests.deviceplugin.live_plugin import GIB, NODE, PluginBench, env_of, volcano_pod
from tests.support.waiting import WAIT_SECONDS
from vgpu.kube.kinds import EVENTS, NODES, PODS
from vgpu.model.names import Scheme
from vgpu.program.termination import IGNORED

NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
ASKED = {NUMBER: 1, MEMORY: 4}
GPUSHARE, LATE = "aliyun.com/gpu-mem", "node-2"
FLAGS = ("--volcano.memory-factor=1024", "--volcano.split-count=4", "--health.interval=200ms")


@pytest.fixture
def bench(tmp_path):
    with PluginBench(tmp_path, "volcano", *FLAGS) as bench:
        yield bench


def served(bench, name, gpu=0, memory=4):
    """A pod that was created, admitted and may start: its UID and what its container gets."""
    uid = bench.create(volcano_pod(name, bench.uuids[gpu], memory))
    answer = bench.kubelet.admit(uid, "main", {NUMBER: 1, MEMORY: memory})
    bench.kubelet.start_container(uid, "main", NUMBER)
    return uid, env_of(bench.spec(answer))


def ended(bench):
    """Status and last words of a start that fails."""
    bench.start()
    code = bench.process.wait(2 * WAIT_SECONDS)  # it waits itself for half a minute
    assert "Traceback" not in bench.log()
    return code, bench.log()


# ---------------------------------------------------------------- serving


MUTEX, HAMI_NUMBER = "hami.io/mutex.lock", "nvidia.com/gpu"


def hami_pod(bench, name, memory, phase="Pending"):
    """As HAMi's scheduler leaves it: bound, with the node locked for it."""
    devices_text, now = f"{bench.uuids[0]},NVIDIA,{memory},10:;", int(time.time())
    limits = {HAMI_NUMBER: "1", "nvidia.com/gpumem": str(memory), "nvidia.com/gpucores": "10"}
    made = volcano_pod(name, bench.uuids[0])
    made["metadata"]["annotations"] = {
        "hami.io/vgpu-node": NODE,
        "hami.io/vgpu-devices-allocated": devices_text,
        "hami.io/vgpu-devices-to-allocate": devices_text,
        "hami.io/bind-time": str(now),
        "hami.io/bind-phase": "allocating",
    }
    made["spec"]["containers"][0]["resources"]["limits"] = limits
    made["status"]["phase"] = phase
    uid = bench.create(made)
    lock = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%SZ},team,{name}"
    bench.store.patch(NODES, "", NODE, {"metadata": {"annotations": {MUTEX: lock}}})
    return uid


@pytest.mark.slow
def test_hamis_node_is_locked_no_longer_than_its_owner_may_be_asked_for(tmp_path):
    """21 of 24 pods of a wave could not be scheduled for five minutes: an owner had failed."""
    flags = ("--volcano.dialect=hami", "--health.interval=200ms")
    with PluginBench(tmp_path, "volcano", *flags) as bench:
        bench.start()
        bench.wait_ready()

        def unlocked():
            return MUTEX not in bench.store.get(NODES, "", NODE)["metadata"]["annotations"]

        holder = hami_pod(bench, "holder", 12 * 1024)
        bench.kubelet.admit(holder, "main", {HAMI_NUMBER: 1})
        bench.wait_until(unlocked, "the lock of one that is bound has gone")
        waits = hami_pod(bench, "waits", 8 * 1024)
        bench.kubelet.admit(waits, "main", {HAMI_NUMBER: 1})
        bench.wait_until(unlocked, "the lock of one that waits for room has gone")
        assert bench.metrics()['vgpu_plugin_unbound_containers{reason="no_room"}'] == 1
        hami_pod(bench, "failed", 1024, phase="Failed")
        bench.wait_until(unlocked, "the lock of one that has failed has gone")
        bench.store.patch(
            NODES,
            "",
            NODE,
            {
                "metadata": {
                    "annotations": {MUTEX: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ},team,deleted"}
                }
            },
        )
        bench.wait_until(unlocked, "the lock of one that is gone has gone")


@pytest.mark.slow
def test_from_the_first_start_to_a_container_and_past_the_next_start(bench):
    bench.start()
    bench.wait_ready()
    assert bench.get("/-/healthy")[0] == 200
    uid, env = served(bench, "a", gpu=1)
    assert env["NVIDIA_VISIBLE_DEVICES"] == bench.uuids[1]
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096m"
    bench.wait_until(
        lambda: (
            bench.store.get(PODS, "team", "a")["metadata"]["annotations"]["volcano.sh/bind-phase"]
            == "success"
        ),
        "the pod is reported",
    )
    annotations = bench.store.get(NODES, "", NODE)["metadata"]["annotations"]
    assert bench.uuids[0] in annotations["volcano.sh/node-vgpu-register"]
    assert bench.stop() == 0
    assert not list(bench.kubelet_dir.glob("vgpu-*.sock"))
    bench.start()
    bench.wait_ready()
    assert bench.metrics()['vgpu_plugin_tenants{kind="bound"}'] == 1
    bench.kubelet.start_container(uid, "main", NUMBER)
    _, env = served(bench, "b", gpu=0)
    assert env["NVIDIA_VISIBLE_DEVICES"] == bench.uuids[0]
    assert bench.stop(signal.SIGINT) == 0


@pytest.mark.slow
def test_a_plugin_that_was_killed_is_gone_on_with(bench):
    bench.start()
    bench.wait_ready()
    uid, _ = served(bench, "a")
    bench.stop(signal.SIGKILL)
    bench.start()
    bench.wait_ready()
    bench.kubelet.start_container(uid, "main", NUMBER)
    assert bench.metrics()['vgpu_plugin_tenants{kind="bound"}'] == 1
    for number in IGNORED:
        bench.process.signal(number)
    assert bench.stop() == 0


def test_what_nobody_asks_for_is_refused_to_the_kubelet_in_words(bench):
    bench.start()
    bench.wait_ready()
    bench.create(volcano_pod("waiting", bench.uuids[0]))
    with pytest.raises(grpc.RpcError) as refused:
        bench.kubelet.allocate(NUMBER, ["x", "y"])
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "team/waiting wants 1 (container main)" in refused.value.details()
    assert "(no_candidate)" in refused.value.details()


def test_an_unhealthy_gpu_is_reported_to_the_kubelet(bench):
    bench.start()
    bench.wait_ready()
    bench.write_gpus(without=[1])
    bench.wait_until(lambda: len(bench.kubelet.healthy(NUMBER)) == 4, "one GPU's shares unhealthy")
    assert len(bench.kubelet.devices[NUMBER]) == 8
    assert bench.get("/-/ready")[0] == 200


def test_a_list_that_is_too_long_leaves_the_plugin_ready_and_the_log_suggests_what_fits(tmp_path):
    flags = ("--volcano.memory-factor=1", *FLAGS[1:])
    with PluginBench(tmp_path, "volcano", *flags, gpus=8, memory=80 * GIB) as bench:
        bench.start()
        bench.wait_ready()
        metrics = bench.metrics()
        fits = metrics[f'vgpu_plugin_resource_smallest_unit_bytes{{resource="{MEMORY}"}}'] / 2**20
        assert f"--volcano.memory-factor that fits is {fits:.0f}" in bench.log()
        assert MEMORY not in bench.kubelet.devices
        (event,) = bench.wait_until(lambda: bench.store.list(EVENTS).items, "an event")
        assert (event["reason"], event["involvedObject"]["name"]) == (
            "VgpuResourceNotRegistered",
            NODE,
        )
        assert f"that fits is {fits:.0f}" in event["message"]


def test_health_that_is_reported_late_does_not_replace_newer_health():
    """The main thread reports it once at the start; the watch may report a later one meanwhile."""
    reported = []
    window = SimpleNamespace(health=None, service=SimpleNamespace(changed=reported.append))
    HealthRelay(window, lambda: "newer").changed("older")
    assert (reported, window.health) == (["newer"], "newer")


def test_the_keeper_starts_before_it_learns_which_pods_exist():
    begun = []

    def part(name):
        return SimpleNamespace(start=lambda *_: begun.append(name))

    nobody = dict.fromkeys(("pods", "content", "injector", "checkpoint"))
    parts = SimpleNamespace(
        adapter=SimpleNamespace(codec=None),
        offers=SimpleNamespace(update=lambda _: ()),
        _options=PluginOptions(),
        _connections=SimpleNamespace(services=part("keeper"), **nobody),
        **{name: part(name) for name in ("binder", "status_manager", "registrar")},
    )
    Service.start(parts, None)
    assert begun.index("keeper") < begun.index("binder")


# ---------------------------------------------------------------- nodes that are not as they are


def test_a_node_without_a_driver_is_healthy_not_ready_and_ends_in_good_order(bench):
    bench.driver.unload()
    bench.start()
    bench.wait_until(lambda: bench.get("/-/healthy")[0] == 200, "healthy")
    assert bench.get("/-/ready")[0] == 503
    assert bench.metrics()["vgpu_plugin_ready"] == 0
    assert bench.kubelet.attempts == []
    bench.write_gpus()  # the driver comes
    bench.wait_ready()
    bench.driver.unload()
    assert bench.stop() == 0


def test_without_a_driver_it_ends_at_once(bench):
    bench.driver.unload()
    bench.start()
    bench.wait_until(lambda: bench.get("/-/healthy")[0] == 200, "healthy")
    assert bench.stop() == 0


@pytest.mark.slow
def test_without_an_api_server_whoever_was_there_is_served(bench):
    bench.start()
    bench.wait_ready()
    uid, _ = served(bench, "a")
    bench.stop(signal.SIGKILL)
    nobody = bench.kubeconfig.read_text().replace(bench.server.url, "http://127.0.0.1:9")
    bench.kubeconfig.write_text(nobody)
    bench.start()
    bench.wait_ready()
    bench.kubelet.start_container(uid, "main", NUMBER)
    assert bench.metrics()['vgpu_plugin_tenants{kind="bound"}'] == 1


@pytest.fixture
def early(tmp_path):
    """gpushare's plugin on a node that the API server does not show yet."""
    with PluginBench(tmp_path, "gpushare", f"--node-name={LATE}") as bench:
        bench.start()
        bench.wait_until(lambda: "has not shown" in bench.get("/-/ready")[1], "waiting")
        yield bench


def test_gpushare_serves_nobody_before_the_label_of_its_node_is_known(early):
    assert f"the API server has not shown node {LATE} yet" in early.log()
    assert early.kubelet.attempts == []
    metadata = {"name": LATE, "labels": {"cgpu.disable.isolation": "true"}}
    early.store.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    early.wait_ready()
    pod = volcano_pod("a", "")
    pod["metadata"]["annotations"] = {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1790000000000000000",
    }
    container = {"name": "main", "image": "i", "resources": {"limits": {GPUSHARE: "4"}}}
    uid = early.create({**pod, "spec": {"nodeName": LATE, "containers": [container]}})
    answer = early.kubelet.admit(uid, "main", {GPUSHARE: 4})
    early.kubelet.start_container(uid, "main", GPUSHARE)
    assert env_of(early.spec(answer))["CGPU_DISABLE"] == "true"


@pytest.mark.slow
def test_while_it_waits_for_the_label_of_its_node_it_ends_in_good_order(early):
    assert early.stop() == 0


def test_while_it_waits_for_the_plugin_before_it_it_ends_in_good_order(bench):
    with CheckpointFile(str(bench.state_dir), Scheme.VOLCANO, NODE, "boot").open(0):
        bench.start()
        bench.wait_until(lambda: "waiting for another device plugin" in bench.log(), "waiting")
        assert bench.stop() == 0
    assert "runs on this node" not in bench.log()


def test_while_it_waits_for_the_api_server_it_ends_in_good_order(bench):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        config = bench.kubeconfig.read_text().replace(bench.server.url, url)
        bench.kubeconfig.write_text(config)
        bench.start()
        bench.wait_until(lambda: 'msg="web server ready"' in bench.log(), "serving")
        assert bench.stop() == 0
    assert "no answer from the API server yet" not in bench.log()


@pytest.mark.slow
def test_while_it_finds_out_who_holds_what_it_ends_in_good_order(bench):
    """A kubelet's checkpoint that cannot be read is waited for."""
    (bench.kubelet_dir / "kubelet_internal_checkpoint").write_text("{")
    bench.start()
    bench.wait_until(lambda: bench.kubelet.attempts, "registered")
    assert bench.stop() == 0
    assert "recovered" not in bench.log()


# ---------------------------------------------------------------- starts that fail


def test_without_a_kubeconfig_it_explains_how_to_name_one(bench):
    bench.kubeconfig.unlink()
    code, words = ended(bench)
    assert code == 1
    assert f"{bench.kubeconfig}: no such file" in words


def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with PluginBench(tmp_path, "volcano", f"--web.listen-address={address}") as bench:
            code, words = ended(bench)
    assert code == 1
    assert address in words


def test_a_folder_of_state_that_cannot_be_made_is_named(bench):
    bench.state_dir.rmdir()
    bench.state_dir.write_text("a file")
    code, words = ended(bench)
    assert code == 1
    assert str(bench.state_dir) in words


@pytest.mark.slow
def test_an_automatic_factor_needs_the_api_server(tmp_path):
    with PluginBench(tmp_path, "volcano", "--volcano.memory-factor=auto") as bench:
        bench.kubeconfig.write_text(
            bench.kubeconfig.read_text().replace(bench.server.url, "http://127.0.0.1:9")
        )
        code, words = ended(bench)
    assert code == 1
    assert "127.0.0.1:9" in words


IMPATIENT = """\
from deviceplugin.allocate.checkpoint import CheckpointFile
from vgpucli.main import main

CheckpointFile.open.__defaults__ = 1.0, *CheckpointFile.open.__defaults__[1:]
main()
"""
"""The program, which waits one second for its predecessor, in place of half a minute."""


@pytest.mark.slow
def test_a_second_plugin_waits_for_the_first_and_then_names_it(bench):
    bench.program = ["-c", IMPATIENT]
    with CheckpointFile(str(bench.state_dir), Scheme.VOLCANO, NODE, "boot").open(0):
        code, words = ended(bench)
    assert "waiting for another device plugin to let go of" in words
    assert code == 1
    assert "another device plugin of this scheme runs on this node" in words
    assert LockHeld.__name__ not in words


# ---------------------------------------------------------------- gpu-manager's checkpoint


def gaia_bench(folder, pods):
    """A plugin of scheme gaia on a node where gpu-manager has served these pods: UID -> GPU."""
    file = folder / "gpumanager_internal_checkpoint"
    mapping = {
        uid: {"main": {"Devices": [f"/dev/nvidia{gpu}"], "Cores": 20, "Memory": GIB}}
        for uid, gpu in pods.items()
    }
    file.write_text(json.dumps({"PodGPUMapping": mapping}))
    flags = (f"--gaia.checkpoint={file}", f"--gaia.limits-dir={folder}/vm")
    more = (f"--gaia.driver-dir={folder}/vdriver", f"--gaia.host-root={folder}/root")
    (folder / "root").mkdir()
    return PluginBench(folder, "gaia", *flags, *more)


def gaia_pod(uid, name):
    limits = {"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "4"}
    pod = volcano_pod(name, "")
    pod["metadata"] |= {"uid": uid, "annotations": {}}
    pod["spec"]["containers"][0]["resources"]["limits"] = limits
    pod["status"]["phase"] = "Running"
    return pod


@pytest.mark.slow
def test_at_its_first_start_it_takes_over_whom_gpu_manager_has_served_and_who_lives(tmp_path):
    alive, gone = (f"{n}" * 8 + "-0000-4000-8000-000000000000" for n in "12")
    with gaia_bench(tmp_path, {alive: 1, gone: 0}) as bench:
        bench.create(gaia_pod(alive, "alive"))
        bench.kubelet.made_cgroup(alive)
        bench.start()
        bench.wait_ready()
        assert "gpu-manager's checkpoint was read" in bench.log()
        metrics = bench.metrics()
        assert metrics['vgpu_plugin_tenants{kind="foreign"}'] == 1
        assert metrics['vgpu_plugin_tenants{kind="bound"}'] == 0


@pytest.mark.slow
def test_a_checkpoint_of_gpu_managers_that_cannot_be_read_is_logged_and_is_no_failure(tmp_path):
    with gaia_bench(tmp_path, {}) as bench:
        (tmp_path / "gpumanager_internal_checkpoint").write_text("{")
        bench.start()
        bench.wait_ready()
        assert "gpu-manager's checkpoint has a problem" in bench.log()
