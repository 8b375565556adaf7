"""The day of the switch: originals and ours on one node, one after the other, beside running pods.

The originals' plugins serve what our scheduler has promised. What an original's scheduler had
promised counts for ours, and the other way round.
"""

import pytest

from tests.cluster.extending import Extender, ExtenderProxy, condition_message, kube_scheduler
from tests.cluster.original_books import BOOKS, UNITS_IN_GIB, GpuSize
from tests.cluster.originals import VolcanoScheduler
from tests.cluster.plugin_kinds import GPU_GIB, KINDS, SPLIT, UNIT_MIB, Ask
from tests.cluster.plugin_originals import original_of
from tests.cluster.plugin_truth import SIGHTS
from tests.cluster.scheduled import asking, promised
from tests.support.bed import objects
from tests.support.bed.images import Shown
from tests.support.registers import hami_register, volcano_register

pytestmark = pytest.mark.thorough("schedulers")

FLAGS = (f"--volcano.memory-factor={UNIT_MIB}",)
NO_ROOM = "no GPU has enough free memory"
"""For pods with room on all GPUs together; kube-scheduler itself refuses larger ones."""


def register(kind, plugin):
    """Registers the node's GPUs at the API server, as the original plugin does."""
    path, memory = f"/api/v1/nodes/{plugin.node.name}", GPU_GIB * 1024
    match kind.name:
        case "volcano":
            annotations = volcano_register(*plugin.uuids, split=SPLIT, amount=memory // UNIT_MIB)
        case "hami":
            annotations = hami_register(*plugin.uuids, split=SPLIT, mib=memory)
        case "gpushare":
            count = {"aliyun.com/gpu-count": str(len(plugin.uuids))}
            status = {"capacity": count, "allocatable": count}
            plugin.client.patch(path, {"status": status}, "status")
            return
        case _:
            return
    plugin.client.patch(path, {"metadata": {"annotations": annotations}})


@pytest.fixture
def ours(control_plane, tmp_path):
    """Our scheduler, behind a kube-scheduler for the pods that name "ours"."""
    with (
        Extender(control_plane, tmp_path, *FLAGS) as extender,
        ExtenderProxy(extender.port) as proxy,
        kube_scheduler(control_plane, tmp_path, "ours", proxy.port),
    ):
        yield extender


class Pods:
    """Pods of one system on one node."""

    def __init__(self, kind, plugin, namespace):
        self.kind, self.plugin, self.client = kind, plugin, plugin.client
        self.namespace = namespace

    def start(self, name, gib):
        """A pod for our scheduler."""
        here = {"kubernetes.io/hostname": self.plugin.node.name}
        spec = {"schedulerName": "ours", "nodeSelector": here}
        return self.client.create(asking(self.kind.name, name, self.namespace, gib, **spec))

    def require_own_share(self, pod):
        """It runs, and sees what it was promised."""
        pod = self.client.wait_for(pod, objects.ready, "Ready")
        promise = promised(self.plugin, pod)
        shown = Shown.by(self.client, pod)
        if self.kind.name == "gpushare":  # its own plugin names GPUs by number
            number = int(shown.env["NVIDIA_VISIBLE_DEVICES"])
            env = shown.env | {"NVIDIA_VISIBLE_DEVICES": self.plugin.uuids[number]}
            shown = shown._replace(env=env)
        seen = SIGHTS[self.kind.name](self.plugin, shown)
        assert seen in (promise, (promise.gpu, None))
        return promise

    def counted_by_original(self):
        """The GiB of each GPU that the original's scheduler finds in use, on the way back."""
        system, in_gib = self.kind.name, UNITS_IN_GIB[self.kind.name]
        names = self.plugin.uuids if system == "hami" else ("0", "1")
        bound = self.client.list(
            "/api/v1/pods", fieldSelector=f"spec.nodeName={self.plugin.node.name}"
        )
        units = BOOKS[system](bound, [GpuSize(name, GPU_GIB * in_gib) for name in names])
        return [units[name] / in_gib for name in names]

    def wait_refused(self, pod):
        """Until it is reported that no GPU has room for it."""
        self.client.wait_for(pod, lambda pod: NO_ROOM in condition_message(pod), NO_ROOM)


@pytest.mark.parametrize("name", KINDS)
def test_an_originals_plugin_serves_our_promises_beside_those_of_its_own_scheduler(
    name, nodes, namespace, tmp_path, ours
):
    kind = KINDS[name]
    plugin = kind.plugin(nodes(), tmp_path, gpus=2)  # it is not started
    pods = Pods(kind, plugin, namespace)
    with original_of(kind, plugin) as original:
        register(kind, plugin)
        before = [
            kind.pod(f"before-{gpu}", namespace, plugin, {"main": Ask(gpu, 40)}) for gpu in range(2)
        ]
        before = [plugin.start(pod) for pod in before]
        new = pods.start("new", 12)
        promise = pods.require_own_share(new)
        late = pods.start("late", 30)
        pods.wait_refused(late)
        plugin.client.delete(before[1 - promise.gpu])
        assert pods.require_own_share(late).gpu != promise.gpu
        asked = [*before, new, late]
        assert original.served == [pod["metadata"]["uid"] for pod in asked]
        if name in BOOKS:  # Volcano's own scheduler is asked below
            gib = {promise.gpu: 40 + 12, 1 - promise.gpu: 30}
            assert pods.counted_by_original() == [gib[gpu] for gpu in range(2)]


def test_volcanos_scheduler_counts_what_ours_has_promised(
    control_plane, nodes, namespace, tmp_path, ours
):
    """The way back, with the original scheduler itself."""
    kind, client = KINDS["volcano"], control_plane.client
    with kind.plugin(nodes(), tmp_path, gpus=2) as plugin:
        kind.wait_served(plugin)
        pods = Pods(kind, plugin, namespace)
        mine = [pods.start(f"mine-{number}", 40) for number in range(2)]
        assert {pods.require_own_share(pod).gpu for pod in mine} == {0, 1}
        with VolcanoScheduler(control_plane, plugin.node.name, tmp_path) as original:

            def start(name, gib):
                here = {"kubernetes.io/hostname": plugin.node.name}
                pod = asking("volcano", name, namespace, gib, nodeSelector=here)
                client.create(original.group(pod))
                return client.create(pod)

            late, fits = start("late", 40), start("fits", 12)
            promise = pods.require_own_share(fits)
            assert not client.get(late)["spec"].get("nodeName")
            last = pods.start("last", 30)
            pods.wait_refused(last)  # ours counts what Volcano's has promised
            client.delete(last)  # it would take the room that comes now
            client.wait_gone(last)
            gone = next(pod for pod in mine if promised(plugin, client.get(pod)).gpu != promise.gpu)
            client.delete(gone)
            assert pods.require_own_share(late).gpu != promise.gpu
