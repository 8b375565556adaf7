"""Our scheduler and our device plugin on a real kubelet: from a request to its container."""

from collections import Counter

import pytest

from tests.cluster.extending import Extender, ExtenderProxy, kube_scheduler
from tests.cluster.plugin_kinds import GPU_GIB, KINDS
from tests.support.bed import objects
from tests.support.bed.images import Shown
from tests.support.waiting import wait_until

PODS = 40
GIB = 3
"""Of each pod: all have room on two GPUs of 64 GiB and 20 shares each, and no further one has."""


def promised(pod):
    """GPU and memory, by the pod's annotations."""
    text = pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]
    device, _, memory, _ = text.strip(":;").split(",")
    return device, int(memory)


@pytest.mark.slow
def test_forty_pods_of_one_node_run_with_their_own_shares(
    control_plane, nodes, namespace, tmp_path
):
    """All at once, through a kill -9 of the scheduler; one more runs as soon as one is gone."""
    client = control_plane.client
    node = nodes()  # of its own: one that another test's plugin has registered would be refused
    kind = KINDS["hami"]
    asked = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": GIB * 1024}

    def start(number):
        name = f"p{number}"
        here = {"kubernetes.io/hostname": node.name}
        spec = {"schedulerName": "ours", "nodeSelector": here}
        return client.create(objects.pod(name, namespace, limits=asked, **spec))

    def pods():
        return client.list(f"/api/v1/namespaces/{namespace}/pods")

    def running(count):
        ready = [pod for pod in pods() if objects.ready(pod)]
        return ready if len(ready) == count else None

    with (
        kind.plugin(node, tmp_path, gpus=2) as plugin,
        Extender(control_plane, tmp_path) as extender,
        ExtenderProxy(extender.port) as proxy,
        kube_scheduler(control_plane, tmp_path, "ours", proxy.port),
    ):
        kind.wait_served(plugin)
        made = [start(number) for number in range(PODS + 1)]
        wait_until(
            lambda: len(proxy.of("/bind")) >= PODS // 4,
            "some pods are bound",
            context=lambda: extender.get(f"/explain/{namespace}/p0")[1],
        )
        extender.kill()
        extender.start()
        first = wait_until(
            lambda: running(PODS),
            f"{PODS} pods run",
            context=lambda: str([pod["status"] for pod in pods() if not objects.ready(pod)])[:3000],
        )
        for pod in first:
            seen = Shown.by(client, pod).env
            limit = seen["CUDA_DEVICE_MEMORY_LIMIT_0"].removesuffix("m")
            assert (seen["NVIDIA_VISIBLE_DEVICES"], int(limit)) == promised(pod)
        held = Counter()
        for pod in first:
            device, memory = promised(pod)
            held[device] += memory
        assert sorted(held) == sorted(plugin.uuids)
        assert max(held.values()) <= GPU_GIB * 1024
        assert len({pod["metadata"]["uid"] for pod in first}) == PODS < len(made)
        client.delete(first[0])
        client.wait_gone(first[0])
        wait_until(lambda: running(PODS), "the last pod runs in its place")
        assert not [pod for pod in pods() if pod["status"]["phase"] == "Failed"]
