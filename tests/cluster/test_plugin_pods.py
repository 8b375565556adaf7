"""Pods of each system on a real kubelet with CDI: each container has what its pod was promised.

No more and no less: whatever a plain container does not see comes from the plugin.
"""

import copy
import json
import time

import pytest

from tests.cluster.plugin_kinds import (
    DIALECTS,
    GAIA_CORES,
    GPU_GIB,
    GPU_NUMBERS,
    KINDS,
    SPLIT,
    Ask,
)
from tests.cluster.plugin_node import gaia_pod, gpushare_pod, volcano_pod
from tests.cluster.plugin_view import Sight
from tests.deviceplugin.gaia_host import register
from tests.support.bed import objects
from tests.support.bed.images import Shown
from tests.support.waiting import wait_until
from vgpu.model.names import PodRef
from vgpu.model.units import GIB
from vgpu.schemes.gaia import vcuda_config
from vgpu.schemes.volcano.key_set import HAMI, VOLCANO
from vgpu.schemes.volcano.node import lock_text

GPUS = 4
ENDED = "18446744073709551615"
VM = "/etc/gpu-manager/vm"

SHOW_AND_END = (
    "show >/tmp/shown & until grep -q ^shown /tmp/shown; do usleep 50000; done; cat /tmp/shown"
)


def only(*names):
    return pytest.mark.parametrize("kind", names, indirect=True)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(scope="module")
def plugin(kind, node, tmp_path_factory):
    with kind.plugin(node, tmp_path_factory.mktemp("driver"), gpus=GPUS) as plugin:
        kind.wait_served(plugin)
        yield plugin


@pytest.fixture(scope="module")
def namespace(control_plane, plugin):
    """One for all pods of the plugin, which has room for all of them."""
    with control_plane.namespace() as name:
        yield name


@pytest.fixture
def name(request):
    """A pod's, of this test's own."""
    return f"p{abs(hash(request.node.nodeid)) % 10**9}"


@pytest.fixture(scope="module")
def plain(node, control_plane):
    """What any container sees."""
    client = control_plane.client
    with control_plane.namespace() as namespace:
        pod = client.create(objects.pod("plain", namespace, nodeName=node.name))
        return Sight.of(node, client.wait_for(pod, objects.ready, "Ready"))


@pytest.fixture
def client(control_plane):
    return control_plane.client


def shares(plugin, pod):
    """Container -> the name that it is bound under, newest last."""
    uid = pod["metadata"]["uid"]
    bound = (
        one for one in plugin.log_lines() if one["msg"] == "container bound" and one["uid"] == uid
    )
    return {one["container"]: one["share"] for one in bound}


def check(kind, plugin, plain, pod, **asks):
    """Each of these containers has what is its own."""
    for container, ask in asks.items():
        seen = Sight.of(plugin.node, pod, container)
        given = kind.given(plugin, pod, container, ask, shares(plugin, pod)[container])
        own = seen.beyond(plain)
        assert (own.env, own.mounts, own.devices) == given
        assert not seen.repeated_variables


def annotations(client, obj):
    return client.get(obj)["metadata"].get("annotations", {})


def started(status, container):
    return next(one for one in status["containerStatuses"] if one["name"] == container)


# ---------------------------------------------------------------- what containers see


def test_a_container_sees_exactly_what_it_was_promised(kind, plugin, plain, namespace):
    pods = {
        ask: plugin.client.create(kind.pod(f"gpu{ask.gpu}", namespace, plugin, {"main": ask}))
        for ask in (Ask(1, 3), Ask(0, 3))
    }
    for ask, pod in pods.items():
        plugin.client.wait_for(pod, objects.ready, "Ready")
        check(kind, plugin, plain, pod, main=ask)


@only("volcano")
def test_the_gpus_variable_comes_last_so_that_no_runtime_takes_another_value(
    kind, plugin, namespace, name
):
    """The answer to Allocate, which is for runtimes without CDI, comes before what CDI adds."""
    pod = plugin.start(kind.pod(name, namespace, plugin, {"main": Ask(1, 2)}))
    asked = [text.partition("=") for text in Sight.of(plugin.node, pod).asked_env]
    gpus = [text for key, _, text in asked if key == "NVIDIA_VISIBLE_DEVICES"]
    assert gpus == ["void", plugin.uuids[1]]


def test_each_container_of_a_pod_has_its_own_and_one_that_asks_for_nothing_has_nothing(
    kind, plugin, plain, namespace, name
):
    asks = {"web": None, "left": Ask(1, 2), "right": Ask(1, 5)}
    pod = plugin.start(kind.pod(name, namespace, plugin, asks))
    check(kind, plugin, plain, pod, left=asks["left"], right=asks["right"])
    web = Sight.of(plugin.node, pod, "web").beyond(plain)
    assert (web.env, web.mounts, web.devices) == ({}, {}, {})


def test_an_init_container_uses_what_the_one_after_it_will_have(
    kind, plugin, plain, namespace, name
):
    pod = kind.pod(name, namespace, plugin, {"main": Ask(1, 4)})
    (main,) = pod["spec"]["containers"]
    first = {**main, "name": "first", "command": ["sh", "-c", SHOW_AND_END]}
    pod["spec"]["initContainers"] = [first]
    pod = plugin.start(pod)
    check(kind, plugin, plain, pod, main=Ask(1, 4))
    name = shares(plugin, pod)["first"]
    given = kind.given(plugin, pod, "first", Ask(1, 4), name)
    seen = Shown.by(plugin.client, pod, "first")
    assert {key: text for key, text in seen.env.items() if key not in plain.env} == given.env
    assert given.mounts.keys() <= seen.mounts.keys()


@only("hami")
def test_a_promised_init_container_has_its_share_and_leaves_it_to_the_next(
    kind, plugin, plain, namespace, name
):
    """HAMi from 2.9 writes its segment first; together they are more than the GPU has."""
    asks = {"first": Ask(3, 40), "main": Ask(3, 30)}
    pod = kind.pod(name, namespace, plugin, asks)
    first, main = pod["spec"]["containers"]
    first["command"] = ["sh", "-c", SHOW_AND_END]
    pod["spec"] |= {"initContainers": [first], "containers": [main]}
    pod = plugin.start(pod)
    check(kind, plugin, plain, pod, main=asks["main"])
    seen = Shown.by(plugin.client, pod, "first").env
    assert seen["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{40 * 1024}m"
    other = plugin.start(kind.pod(f"{name}-other", namespace, plugin, {"main": Ask(3, 30)}))
    check(kind, plugin, plain, other, main=Ask(3, 30))


@only("hami", "gpushare", "gaia")
def test_a_sidecar_has_its_own_beside_the_others(kind, plugin, plain, namespace, name):
    asks = {"side": Ask(1, 2), "main": Ask(1, 4)}
    pod = kind.pod(name, namespace, plugin, asks)
    side, main = pod["spec"]["containers"]
    pod["spec"] |= {"initContainers": [side | {"restartPolicy": "Always"}], "containers": [main]}
    pod["metadata"]["annotations"].pop("tencent.com/predicate-gpu-idx-1", None)
    pod = plugin.start(pod)
    if kind.name == "gaia":  # gpu-admission passes over it, so its GPU is chosen on the node
        uuid = Sight.of(plugin.node, pod, "side").env["NVIDIA_VISIBLE_DEVICES"]
        asks["side"] = Ask(plugin.uuids.index(uuid), 2)
    check(kind, plugin, plain, pod, **asks)


@only("volcano", "hami")
def test_a_container_on_several_gpus_has_a_limit_for_each(kind, plugin, plain, namespace, name):
    key_set = DIALECTS[kind.name]
    units = 16 if key_set is VOLCANO else 1024
    slices = {"main": [(1, 2 * units, 5), (0, 3 * units, 10)]}
    made = volcano_pod(name, namespace, plugin, slices, key_set, counted=())  # by percentage
    pod = plugin.start(made)
    env = Sight.of(plugin.node, pod).beyond(plain).env
    assert env["NVIDIA_VISIBLE_DEVICES"] == f"{plugin.uuids[1]},{plugin.uuids[0]}"
    limits = {key: text for key, text in env.items() if "_LIMIT" in key}
    assert limits == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "2048m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "3072m",
        "CUDA_DEVICE_SM_LIMIT": "5",
        "CUDA_DEVICE_SM_LIMIT_1": "10",
    }


@only("gpushare")
def test_a_pod_of_acks_scheduler_has_several_gpus(plugin, plain, client, namespace, name):
    pod = gpushare_pod(name, namespace, plugin, 0, {"main": 8})
    pod["metadata"]["labels"]["aliyun.com/gpu-count"] = "2"
    pod["metadata"]["annotations"] = {
        "scheduler.framework.gpushare.allocation": json.dumps({"0": {"0": 4, "1": 4}}),
        "scheduler.framework.gpushare.assigned": "false",
        "scheduler.framework.gpushare.assume-time": str(time.time_ns()),
    }
    pod = plugin.start(pod)
    assert Sight.of(plugin.node, pod).beyond(plain).env == {
        "NVIDIA_VISIBLE_DEVICES": ",".join(plugin.uuids[:2]),
        "ALIYUN_COM_GPU_MEM_IDX": "0,1",
        "ALIYUN_COM_GPU_MEM_POD": "8",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "8",
        "ALIYUN_COM_GPU_MEM_DEV": str(2 * GPU_GIB),
    }
    flag = "scheduler.framework.gpushare.assigned"
    client.wait_for(pod, lambda pod: pod["metadata"]["annotations"][flag] == "true", "assigned")


@only("gaia")
def test_whole_gpus_come_with_the_drivers_own_library(plugin, plain, namespace, name):
    pod = plugin.start(gaia_pod(name, namespace, plugin, {"main": (200, 0, "2,3")}))
    seen = Sight.of(plugin.node, pod).beyond(plain)
    assert seen.env["NVIDIA_VISIBLE_DEVICES"] == ",".join(plugin.uuids[2:])
    assert "/vdriver/origin." in seen.mounts["/usr/local/nvidia"][0]
    nodes = ("/dev/nvidia2", "/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm")
    assert seen.devices == dict.fromkeys(nodes, GPU_NUMBERS)


@only("gaia")
def test_gpu_managers_library_gets_the_limits_of_each_container(plugin, client, namespace, name):
    asks = {"left": Ask(1, 2), "right": Ask(1, 5)}
    pod = plugin.start(KINDS["gaia"].pod(name, namespace, plugin, asks))
    uid = pod["metadata"]["uid"]
    for container, ask in asks.items():
        seen = Sight.of(plugin.node, pod, container)
        container_id = started(client.get(pod)["status"], container)["containerID"]
        container_id = container_id.removeprefix("containerd://")
        socket = plugin.node.path(f"/proc/{seen.pid}/root/etc/vcuda/vcuda.sock")
        assert register(socket, pod_uid=uid, container_id=container_id) is None
        folder = plugin.node.path(f"{VM}/{uid}/{container_id}")
        config = vcuda_config.decode((folder / "vcuda.config").read_bytes())
        assert (config.container, config.memory_bytes) == (container, ask.gib * GIB)
        assert (config.utilization_percent, config.enable) == (GAIA_CORES, True)
        assert seen.pid in vcuda_config.decode_pids((folder / "pids.config").read_bytes())
        inside = plugin.node.path(f"/proc/{seen.pid}/root/etc/vcuda/{container_id}/vcuda.config")
        assert inside.samefile(folder / "vcuda.config")


@only("volcano", "hami")
def test_the_library_is_not_loaded_where_its_user_wants_none(kind, plugin, plain, namespace, name):
    pod = kind.pod(name, namespace, plugin, {"main": Ask(0, 2), "other": Ask(0, 2)})
    switch = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]
    pod["spec"]["containers"][0]["env"] = switch
    pod = plugin.start(pod)
    main, other = (Sight.of(plugin.node, pod, name).beyond(plain) for name in ("main", "other"))
    assert "/etc/ld.so.preload" not in main.mounts
    assert main.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2048m"
    assert "/etc/ld.so.preload" in other.mounts


# ---------------------------------------------------------------- what others are sent


def volcano_annotations(key_set, before):
    rest = ";" if key_set is HAMI else ""
    annotations = {**before, key_set.to_allocate: rest.strip(";"), key_set.bind_phase: "success"}
    return annotations | ({key_set.time: ENDED} if key_set is VOLCANO else {})


FINAL_ANNOTATIONS = {
    "volcano": lambda before: volcano_annotations(VOLCANO, before),
    "hami": lambda before: volcano_annotations(HAMI, before),
    "gpushare": lambda before: {**before, "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"},
    "gaia": lambda before: {**before, "tencent.com/gpu-assigned": "true"},
}
"""The pod's annotations as the original plugins leave them."""


def test_other_containers_are_reported_while_the_init_containers_still_run(
    kind, plugin, client, namespace, name
):
    """And the node's lock does not wait for them either."""
    pod = kind.pod(name, namespace, plugin, {"main": Ask(1, 2)})
    first = objects.container("first", command=["sleep", "1000"])
    pod["spec"]["initContainers"] = [first]
    before = dict(pod["metadata"]["annotations"])
    if lock := {"volcano": "hamivgpu", "hami": "hami.io/mutex.lock"}.get(kind.name):
        since = int(before[DIALECTS[kind.name].bind_time])
        owner = PodRef("", namespace, name) if kind.name == "hami" else None
        text = {lock: lock_text(since, owner)}
        client.patch(plugin.node.object(), {"metadata": {"annotations": text}})
    pod = client.create(pod)
    expected = FINAL_ANNOTATIONS[kind.name](before)
    moved = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"

    def is_annotated(found):
        now = dict(found["metadata"]["annotations"])
        return {**now, moved: ""} == {**expected, moved: ""}

    found = client.wait_for(pod, is_annotated, f"the annotations {expected}")
    if kind.name == "gpushare":
        assert int(found["metadata"]["annotations"][moved]) > int(before[moved])
    wait_until(lambda: lock not in annotations(client, plugin.node.object()), "the lock is gone")
    running = client.wait_for(
        pod, lambda pod: "running" in init_state(pod), "its init container runs"
    )
    assert "waiting" in started(running["status"], "main")["state"]


def init_state(pod):
    (status,) = pod["status"].get("initContainerStatuses") or [{}]
    return status.get("state", {})


def test_the_node_has_the_annotations_that_the_original_would_write(kind, plugin, client):
    def is_marked(node):
        marks = {**node["metadata"]["annotations"], **node["metadata"]["labels"]}
        return {
            "volcano": lambda: registered(plugin, marks.get("volcano.sh/node-vgpu-register", "")),
            "hami": lambda: hami_registered(plugin, marks.get("hami.io/node-nvidia-register", "")),
            "gpushare": lambda: node["status"]["allocatable"].get("aliyun.com/gpu-count") == "4",
            "gaia": lambda: marks.get("gaia.tencent.com/gpu-model") == "H100",
        }[kind.name]()

    client.wait_for(plugin.node.object(), is_marked, "marked")


def registered(plugin, text):
    gpus = (
        f"{uuid},{SPLIT},1024,NVIDIA-NVIDIA H100 80GB HBM3,true,hami-core:" for uuid in plugin.uuids
    )
    return text == "".join(gpus)


def hami_registered(plugin, text):
    gpus = json.loads(text or "[]")
    registered_gpus = [(gpu["id"], gpu["count"], gpu["devmem"], gpu["devcore"]) for gpu in gpus]
    return registered_gpus == [(uuid, SPLIT, 65536, 100) for uuid in plugin.uuids]


# ---------------------------------------------------------------- in the course of time


def test_a_container_that_dies_is_started_again_with_the_same(kind, plugin, plain, namespace, name):
    pod = plugin.start(kind.pod(name, namespace, plugin, {"main": Ask(1, 3)}))
    first = Sight.of(plugin.node, pod)
    plugin.node.run(["kill", "-KILL", str(first.pid)])

    def again(pod):
        return objects.ready(pod) and started(pod["status"], "main")["restartCount"] == 1

    pod = plugin.client.wait_for(pod, again, "started again")
    second = Sight.of(plugin.node, pod)
    assert second.pid != first.pid
    assert second.env == first.env
    check(kind, plugin, plain, pod, main=Ask(1, 3))


@only("volcano", "gaia")
def test_a_pod_that_takes_anothers_name_does_not_take_its_share(
    kind, plugin, plain, client, namespace
):
    """The first is deleted by force: its container is still there when the second is made."""
    first = plugin.start(kind.pod("same", namespace, plugin, {"main": Ask(0, 2)}))
    client.delete(first, grace_seconds=0)
    second = copy.deepcopy(kind.pod("same", namespace, plugin, {"main": Ask(1, 6)}))
    second = plugin.start(second)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    check(kind, plugin, plain, second, main=Ask(1, 6))
