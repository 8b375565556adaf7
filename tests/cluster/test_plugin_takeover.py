"""Moving a node from an original plugin to ours, while its containers run."""

import pytest
from bed import objects
from bed.deviceplugin import DevicePlugin, pb
from plugin_kinds import CARD_GIB, KINDS, SPLIT, Ask
from plugin_sight import Sight

ASK = Ask(1, 3)
FOREIGN = ("vgpu_plugin_tenants", "foreign")

SERVED = {
    "volcano": {
        "volcano.sh/devices-to-allocate": "",
        "volcano.sh/bind-phase": "success",
        "volcano.sh/vgpu-time": "18446744073709551615",
    },
    "gpushare": {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"},
    "gaia": {"tencent.com/gpu-assigned": "true"},
}
"""What the originals write when they have served a pod."""


@pytest.fixture(params=SERVED)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def client(control_plane):
    return control_plane.client


@pytest.fixture
def own_node(nodes):
    return nodes()


def id_lists(kind, plugin):
    """The original's device IDs, by resource."""
    ids = {
        "volcano": [f"{uuid}-{n}" for uuid in plugin.uuids for n in range(SPLIT)],
        "gpushare": [f"{uuid}-_-{n}" for uuid in plugin.uuids for n in range(CARD_GIB)],
        "gaia": [f"{kind.resource}-{n}" for n in range(200)],
    }[kind.name]
    found = {kind.resource: ids}
    if kind.name == "gaia":
        blocks = "tencent.com/vcuda-memory"
        found[blocks] = [f"{blocks}-268435456-{n}" for n in range(8 * CARD_GIB)]
    return found


def pod_of(kind, name, namespace, plugin, ask):
    counted = {"counted": ()} if kind.name == "volcano" else {}
    return kind.pod(name, namespace, plugin, {"main": ask}, **counted)


def given_by_the_original(kind, plugin, pod):
    """The pod runs, with the original's answer."""
    nobody = {"metadata": {"uid": "unknown"}}
    env = kind.given(plugin, nobody, "main", ASK, "original").env
    lists = id_lists(kind, plugin).items()
    originals = [
        DevicePlugin(
            plugin.node,
            resource,
            ids,
            lambda _, resource=resource: pb.ContainerAllocateResponse(
                envs=env if resource == kind.resource else {}
            ),
        )
        for resource, ids in lists
    ]
    try:
        for original, (_, ids) in zip(originals, lists, strict=True):
            original.wait_counted(len(ids))
        made = plugin.start(pod)
        told = {"metadata": {"annotations": SERVED[kind.name]}}
        return plugin.client.patch(made, told), env
    finally:
        for original in originals:
            original.stop()


def test_what_an_original_has_given_stays_given(kind, own_node, tmp_path, client, namespace):
    ours = kind.plugin(own_node, tmp_path, "--prestart-timeout=1s")
    pod = pod_of(kind, "old", namespace, ours, ASK)
    pod, env = given_by_the_original(kind, ours, pod)
    with ours as plugin:
        kind.wait_served(plugin)
        assert plugin.metrics()[FOREIGN] == 1
        first = Sight.of(own_node, pod)
        assert env.items() <= first.env.items()

        own_node.run(["kill", "-KILL", str(first.pid)])

        def again(pod):
            return objects.ready(pod) and pod["status"]["containerStatuses"][0]["restartCount"] == 1

        pod = client.wait_for(pod, again, "started again")
        assert Sight.of(own_node, pod).env == first.env

        rest = Ask(ASK.card, CARD_GIB - ASK.gib)
        plugin.start(pod_of(kind, "rest", namespace, plugin, rest))
        more = client.create(pod_of(kind, "more", namespace, plugin, Ask(ASK.card, 1)))
        client.wait_for(more, lambda pod: "(no_room)" in str(pod["status"]), "refused")
        client.delete(pod)
        client.wait_for(more, objects.ready, "Ready")
        assert plugin.metrics()[FOREIGN] == 0


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
            "ALIYUN_COM_GPU_MEM_DEV": str(CARD_GIB),
        }
        good = plugin.start(kind.pod("good", namespace, plugin, {"main": ASK}))
        assert Sight.of(node, good).env["NVIDIA_VISIBLE_DEVICES"] == plugin.uuids[ASK.card]
