"""Moving a node from an original plugin to ours, and back, while its containers run."""

import shutil

import pytest

from deviceplugin.kubelet.container_devices import read_assignments
from tests.cluster.plugin_kinds import DIALECTS, GPU_GIB, KINDS, Ask
from tests.cluster.plugin_originals import GPU_MANAGERS, original_of, served
from tests.cluster.plugin_truth import CHECKPOINT, delete, is_untouched
from tests.cluster.plugin_view import OVERRIDE, Sight, first_process, late_env
from tests.support.bed import objects
from vgpu.model.names import PodRef
from vgpu.schemes.volcano.node import lock_text

FULL, ASK = Ask(0, GPU_GIB), Ask(1, 3)
"""Of a pod that has all memory of its GPU, and of one on the other."""

FOREIGN = ("vgpu_plugin_tenants", "foreign")
LOCKS = {"volcano": "hamivgpu", "hami": "hami.io/mutex.lock"}
MOVED = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
"""gpushare's plugin writes here when it has served a pod."""


@pytest.fixture
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def client(control_plane):
    return control_plane.client


@pytest.fixture
def own_node(nodes):
    return nodes()


def kill_container(client, node, pod):
    """And wait until it runs again."""
    before = client.get(pod)["status"]["containerStatuses"][0]["restartCount"]
    end_container(node, pod)

    def again(pod):
        restarts = pod["status"]["containerStatuses"][0]["restartCount"]
        return objects.ready(pod) and restarts == before + 1

    return client.wait_for(pod, again, "started again")


def end_container(node, pod):
    node.run(["kill", "-KILL", str(first_process(node, pod))])


def given(sight):
    """Without what is new each time that a container is made."""
    mounts = {at: mount for at, mount in sight.mounts.items() if at != "/dev/termination-log"}
    return sight.env, mounts, sight.devices


def waits_with(words):
    """A condition for wait_for: its container waits, and the kubelet reports it."""

    def waits(pod):
        states = [one["state"] for one in pod["status"].get("containerStatuses", ())]
        return any(words in state.get("waiting", {}).get("message", "") for state in states)

    return waits


# ---------------------------------------------------------------- from an original to ours


@pytest.mark.parametrize("kind", ["volcano", "gpushare", "gaia"], indirect=True)
def test_what_an_original_plugin_allocated_stays_allocated(
    kind, own_node, tmp_path, client, namespace
):
    ours = kind.plugin(own_node, tmp_path, "--prestart-timeout=1s", gpus=3)
    with original_of(kind, ours) as original:
        full = ours.start(kind.pod("full", namespace, ours, {"main": FULL}))
        pod = ours.start(kind.pod("old", namespace, ours, {"main": ASK}))
    assert original.served == [full["metadata"]["uid"], pod["metadata"]["uid"]]
    with ours as plugin:
        kind.wait_served(plugin)
        assert plugin.metrics()[FOREIGN] == 2
        assert plugin.metrics()["vgpu_plugin_conflicts",] == 0
        first = Sight.of(own_node, pod)
        pod = kill_container(client, own_node, pod)
        assert Sight.of(own_node, pod).env == first.env

        rest = Ask(ASK.gpu, GPU_GIB - ASK.gib)
        plugin.start(kind.pod("rest", namespace, plugin, {"main": rest}))
        more = client.create(kind.pod("more", namespace, plugin, {"main": Ask(ASK.gpu, 1)}))
        client.wait_for(more, lambda pod: "(no_room)" in str(pod["status"]), "refused")
        client.delete(pod)
        client.wait_for(more, objects.ready, "Ready")
        assert plugin.metrics()[FOREIGN] == 1
        assert is_untouched(client, full)


# ---------------------------------------------------------------- and back


def given_by_us(kind, plugin, namespace, ask=ASK):
    """A pod that runs with our answer; its scheduler had locked the node for it."""
    pod = kind.pod("ours", namespace, plugin, {"main": ask})
    if lock := LOCKS.get(kind.name):
        owner = PodRef("", namespace, "ours") if kind.name == "hami" else None
        since = int(pod["metadata"]["annotations"][DIALECTS[kind.name].bind_time])
        annotations = {lock: lock_text(since, owner)}
        plugin.client.patch(plugin.node.object(), {"metadata": {"annotations": annotations}})
    with plugin:
        kind.wait_served(plugin)
        made = plugin.start(pod)
        expected = {**pod["metadata"]["annotations"], **served(kind.name), MOVED: ""}
        plugin.client.wait_for(
            made,
            lambda pod: {**pod["metadata"]["annotations"], MOVED: ""} == expected,
            "the pod is annotated",
        )
        plugin.client.wait_for(
            plugin.node.object(),
            lambda node: LOCKS.get(kind.name) not in node["metadata"]["annotations"],
            "not locked",
        )
    return plugin.client.get(made)


def ids_of(kind, node, pod):
    """The device IDs that the kubelet has allocated to a pod."""
    assignments = read_assignments(str(node.path(CHECKPOINT)), kind.resource)
    (one,) = (each for each in assignments if each.pod_uid == pod["metadata"]["uid"])
    return one.ids


@pytest.mark.parametrize("kind", ["volcano", "hami", "gpushare"], indirect=True)
def test_an_original_that_returns_serves_whoever_comes_and_ours_run_on(
    kind, own_node, tmp_path, client, namespace
):
    """Ours are as large as the new ones, so that it would take them for those if they waited."""
    ours = kind.plugin(own_node, tmp_path)
    pod = given_by_us(kind, ours, namespace)
    first = Sight.of(own_node, pod)
    with original_of(kind, ours) as original:
        new = ours.start(kind.pod("new", namespace, ours, {"main": Ask(0, ASK.gib)}))
        assert original.served == [new["metadata"]["uid"]]
        assert first.env["NVIDIA_VISIBLE_DEVICES"] == ours.uuids[1]
        assert Sight.of(own_node, new).env["NVIDIA_VISIBLE_DEVICES"] in (ours.uuids[0], "0")
        assert is_untouched(client, pod)
        assert client.get(pod)["metadata"]["annotations"] == pod["metadata"]["annotations"]
        assert not set(original.given[0]) & ids_of(kind, own_node, pod)
        pod = kill_container(client, own_node, pod)
        assert given(Sight.of(own_node, pod)) == given(first)
        if kind.name != "volcano":  # it takes long, and is the kubelet's and containerd's
            return
        shutil.rmtree(own_node.path("/run/cdi"))  # as a boot does
        end_container(own_node, pod)
        client.wait_for(pod, waits_with("unresolvable CDI devices"), "waits for its spec")
        delete(client, pod)
        ours.start(kind.pod("replaced", namespace, ours, {"main": ASK}))


def test_without_cdi_ours_run_on_with_their_limits_as_long_as_the_files_are_there(
    nodes, tmp_path, client, namespace
):
    kind, node = KINDS["volcano"], nodes(containerd="1.6")
    ours = kind.plugin(node, tmp_path, "--no-cdi")
    pod = given_by_us(kind, ours, namespace)
    first = Sight.of(node, pod)
    limits = late_env(node, first.pid)
    assert limits["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{ASK.gib * 1024}m"
    with original_of(kind, ours) as original:
        new = ours.start(kind.pod("new", namespace, ours, {"main": Ask(0, ASK.gib)}))
        assert original.served == [new["metadata"]["uid"]]
        pod = kill_container(client, node, pod)
        again = Sight.of(node, pod)
        assert given(again) == given(first)
        assert late_env(node, again.pid) == limits

        shutil.rmtree(node.path("/run/vgpu"))  # as a boot does
        pod = kill_container(client, node, pod)
        inside = f"/proc/{first_process(node, pod)}/root"
        for made_up in (OVERRIDE, "/usr/local/vgpu/libvgpu.so", "/etc/ld.so.preload"):
            assert node.run(["find", inside + made_up, "-maxdepth", "0", "-type", "d", "-empty"])


@pytest.mark.parametrize("kind", ["gaia"], indirect=True)
def test_gpu_manager_knows_nobody_but_its_own_so_that_the_node_has_to_be_drained(
    kind, own_node, tmp_path, client, namespace
):
    ours = kind.plugin(own_node, tmp_path)
    pod = given_by_us(kind, ours, namespace, FULL)
    assert not own_node.path(GPU_MANAGERS).exists()
    with original_of(kind, ours) as original:
        assert is_untouched(client, pod)
        new = client.create(kind.pod("new", namespace, ours, {"main": ASK}))
        failed = client.wait_for(new, lambda pod: "mismatch" in str(pod["status"]), "failed")
        assert failed["status"]["reason"] == "UnexpectedAdmissionError"
        detail = "pick up:/dev/nvidia0  predicate: /dev/nvidia1"  # it takes the full GPU for free
        assert detail in failed["status"]["message"]
        end_container(own_node, pod)
        client.wait_for(pod, waits_with("PreStartContainer check failed"), "may not start")

        delete(client, pod, new)  # drained
        drained = Ask(0, ASK.gib)
        one = ours.start(kind.pod("one", namespace, ours, {"main": drained}))
        assert original.served == [one["metadata"]["uid"]]
        assert Sight.of(own_node, one).env["NVIDIA_VISIBLE_DEVICES"] == ours.uuids[0]


def test_the_legacy_refusal_is_the_originals(node, tmp_path, namespace):
    kind = KINDS["gpushare"]
    with kind.plugin(node, tmp_path, "--legacy-refusal") as plugin:
        kind.wait_served(plugin)
        pod = kind.pod("p", namespace, plugin, {"main": ASK})
        pod["metadata"]["annotations"] = {}
        bad = plugin.start(pod)
        own = {
            key: text
            for key, text in Sight.of(node, bad).env.items()
            if key.startswith(("ALIYUN", "NVIDIA"))
        }
        assert own == {
            "NVIDIA_VISIBLE_DEVICES": "no-gpu-has-3GiB-to-run",
            "ALIYUN_COM_GPU_MEM_IDX": "-1",
            "ALIYUN_COM_GPU_MEM_POD": "3",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
            "ALIYUN_COM_GPU_MEM_DEV": str(GPU_GIB),
        }
        good = plugin.start(kind.pod("good", namespace, plugin, {"main": ASK}))
        assert Sight.of(node, good).env["NVIDIA_VISIBLE_DEVICES"] == plugin.uuids[ASK.gpu]
