"""What cannot be allocated is refused with a reason, in the pod's status and as an event.

Nobody beside it is hurt, and no container ever gets something that only looks like a share.
"""

import pytest

from tests.cluster.plugin_kinds import GPU_GIB, KINDS, Ask
from tests.cluster.plugin_node import volcano_pod
from tests.cluster.plugin_scheduler import deaf
from tests.cluster.plugin_view import Sight
from tests.support.bed import objects
from tests.support.waiting import wait_until
from vgpu.model.plugin_messages import CHECK_FAILED

KIND = KINDS["volcano"]
DEVICES, TO_ALLOCATE = "volcano.sh/vgpu-ids-new", "volcano.sh/devices-to-allocate"
STRANGER = "GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa"


@pytest.fixture(scope="module")
def plugin(node, tmp_path_factory):
    with KIND.plugin(node, tmp_path_factory.mktemp("driver"), "--prestart-timeout=1s") as plugin:
        KIND.wait_served(plugin)
        wait_until(
            lambda: not counted(plugin, "tenants"), "who was there before has left", seconds=180
        )
        yield plugin


@pytest.fixture
def client(control_plane):
    return control_plane.client


def counted(plugin, what):
    """A metric's number by its first label; what is nothing is left out."""
    return {
        labels[0]: number
        for (name, *labels), number in plugin.metrics().items()
        if name == f"vgpu_plugin_{what}" and number
    }


def device_annotations(devices):
    return {DEVICES: devices, TO_ALLOCATE: devices}


REFUSED = {
    "elsewhere": (
        {"volcano.sh/vgpu-node": "node99"},
        "volcano.sh/vgpu-node is 'node99' (other_node)",
    ),
    "malformed": (device_annotations("one GPU, please:"), "not <UUID>,<type>,<memory>,<cores>"),
    "unknown": (
        device_annotations(f"{STRANGER},NVIDIA,16,5:"),
        f"device {STRANGER} is not shared on this node",
    ),
    "too-large": (
        device_annotations(f"{{0}},NVIDIA,{GPU_GIB * 16 + 1},5:"),
        "not enough free memory",
    ),
    "raised": (
        device_annotations("{0},NVIDIA,17,5:"),
        "it asks for 16 of volcano.sh/vgpu-memory, and its annotations reserve 17",
    ),
    "too-many": (
        device_annotations("{0},NVIDIA,16,5:{1},NVIDIA,16,5:"),
        "it asks for 1 device, and reserved are",
    ),
    "unlimited": (
        device_annotations("{0},NVIDIA,0,5:"),
        "which HAMi-core treats as no limit (malformed)",
    ),
}
"""Pod -> what its annotations say instead, and the words of the refusal."""

LASTING = {"elsewhere", "malformed", "raised", "too-many", "unlimited"}
"""No waiting helps them: they stop being candidates."""


def waits(words):
    def has_message(pod):
        (status,) = pod["status"].get("containerStatuses") or [{}]
        return words in status.get("state", {}).get("waiting", {}).get("message", "")

    return has_message


def refusal_texts(client, pod):
    return "\n".join(e["message"] for e in client.events(pod) if e["reason"] == "VgpuRefused")


def given_up(pod):
    return pod["metadata"]["annotations"]["volcano.sh/bind-phase"] == "failed"


def test_a_promise_that_cannot_be_kept_is_refused_at_the_start(plugin, client, namespace):
    pods = {}
    for name, (annotations, _) in REFUSED.items():
        by_percentage = {"counted": ()} if name == "too-large" else {}
        pod = KIND.pod(name, namespace, plugin, {"main": Ask(0, 1)}, **by_percentage)
        pod["metadata"]["annotations"] |= {
            key: text.format(*plugin.uuids) for key, text in annotations.items()
        }
        pods[name] = client.create(pod)
    for name, (_, words) in REFUSED.items():
        held = client.wait_for(pods[name], waits(words), words)
        assert waits(CHECK_FAILED)(held)  # a new pod may start: the reconciler's part
        assert "containerID" not in held["status"]["containerStatuses"][0]
        text = words.partition(" (")[0]
        wait_until(
            lambda of=pods[name], text=text: text in refusal_texts(client, of), f"{name}: an event"
        )
    for name in LASTING:
        client.wait_for(pods[name], given_up, "given up")
    unbound = wait_until(
        lambda: (found := counted(plugin, "unbound_containers")).get("malformed") == 3 and found,
        "three promises cannot be read",
    )
    assert sum(unbound.values()) == len(REFUSED)


def test_others_beside_it_are_served(plugin, client, namespace):
    bad = KIND.pod("bad", namespace, plugin, {"main": Ask(0, 1)})
    bad["metadata"]["annotations"]["volcano.sh/vgpu-node"] = "node99"
    good = KIND.pod("good", namespace, plugin, {"main": Ask(1, GPU_GIB)})
    with deaf(plugin.node.kubelet):
        bad, good = client.create(bad), client.create(good)
    good = client.wait_for(good, objects.ready, "Ready")
    env = Sight.of(plugin.node, good).env
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{GPU_GIB * 1024}m"
    assert env["NVIDIA_VISIBLE_DEVICES"] == plugin.uuids[1]
    client.wait_for(bad, waits("other_node"), "refused")


def test_a_pod_without_a_promise_waits_for_one(plugin, client, namespace):
    pod = KIND.pod("p", namespace, plugin, {"main": Ask(1, 2)})
    promise, pod["metadata"]["annotations"] = pod["metadata"]["annotations"], {}
    pod = client.create(pod)
    client.wait_for(pod, waits(f"{DEVICES} is missing"), "refused")
    client.patch(pod, {"metadata": {"annotations": promise}})
    pod = client.wait_for(pod, objects.ready, "Ready")
    assert Sight.of(plugin.node, pod).env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2048m"


def test_a_volcano_sidecar_has_no_promise_of_its_own(plugin, client, namespace):
    pod = KIND.pod("p", namespace, plugin, {"main": Ask(1, 2)})
    (main,) = pod["spec"]["containers"]
    pod["spec"]["initContainers"] = [main | {"name": "side", "restartPolicy": "Always"}]
    pod = client.create(pod)
    words = "no devices are reserved for this sidecar container"
    wait_until(lambda: words in refusal_texts(client, pod), words)


def test_what_nobody_there_can_be_asking_for_fails_the_pod_and_names_who_waits(
    plugin, client, namespace
):
    former = KIND.pod("former", namespace, plugin, {"main": Ask(0, 1)})
    former["metadata"]["annotations"]["volcano.sh/bind-phase"] = "failed"
    shares = {"main": [(0, 16, 5), (1, 16, 5)]}
    double = volcano_pod("double", namespace, plugin, shares)
    with deaf(plugin.node.kubelet):
        former, double = client.create(former), client.create(double)
    failed = client.wait_for(former, objects.phase("Failed"), "Failed")["status"]
    assert failed["reason"] == "UnexpectedAdmissionError"
    for words in (
        f"1 of {KIND.resource} were requested on node {plugin.node.name}",
        f"{namespace}/former has failed",
        f"{namespace}/double wants 2 (container main)",
        "none wants 1 (no_candidate)",
    ):
        assert words in failed["message"]
    assert "containerStatuses" not in failed or "containerID" not in failed["containerStatuses"][0]
    client.wait_for(double, objects.ready, "Ready")
