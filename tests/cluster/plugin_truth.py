"""Whether all sources agree who holds what: containers, the kubelet, the plugin's own checkpoint.

    stage = Stage(node, folder, "volcano", "gaia")
    stage.start()
    pod = stage.pod("volcano", "a", namespace, gpu=0, gib=4)
    stage.require_sound("volcano", [pod, ...])      # no GPU is allocated beyond its capacity

Here pods have one container, ``main``, and two GPUs to be on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deviceplugin.kubelet.container_devices import ContainerDevices, read_assignments
from deviceplugin.reasons import BindRefusal
from tests.cluster.plugin_kinds import GPU_GIB, KINDS, Ask
from tests.cluster.plugin_node import KUBELET_DIR, PORT, PluginNode
from tests.cluster.plugin_view import OVERRIDE, first_process, late_env
from tests.support.bed import objects
from tests.support.bed.client import Client, Object
from tests.support.bed.images import Shown
from tests.support.bed.node import Node
from tests.support.waiting import wait_until
from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.names import Scheme
from vgpu.model.own_checkpoint import decode, file_name
from vgpu.model.units import GIB

STATE = "/var/lib/vgpu"
CHECKPOINT = f"{KUBELET_DIR}/kubelet_internal_checkpoint"
GPUS = 2

PROMISE = "test/promise"
"""Annotation: the GPU by number, and GiB, that the pod's container is to see."""


class Sight(NamedTuple):
    """What a container sees of its share; ``gib`` is None where only its GPU is known."""

    gpu: int
    gib: int | None


def _sees_volcano(plugin: PluginNode, shown: Shown) -> Sight:
    limit = shown.env["CUDA_DEVICE_MEMORY_LIMIT_0"].removesuffix("m")
    return Sight(plugin.uuids.index(shown.env["NVIDIA_VISIBLE_DEVICES"]), int(limit) // 1024)


def _sees_gpushare(plugin: PluginNode, shown: Shown) -> Sight:
    gib = int(shown.env["ALIYUN_COM_GPU_MEM_CONTAINER"])
    return Sight(plugin.uuids.index(shown.env["NVIDIA_VISIBLE_DEVICES"]), gib)


def _sees_gaia(plugin: PluginNode, shown: Shown) -> Sight:
    (gpu,) = (gpu for gpu in range(len(plugin.uuids)) if f"/dev/nvidia{gpu}" in shown.devices)
    return Sight(gpu, None)  # its limits come by a socket


SIGHTS: Mapping[str, Callable[[PluginNode, Shown], Sight]] = {
    "volcano": _sees_volcano,
    "hami": _sees_volcano,
    "gpushare": _sees_gpushare,
    "gaia": _sees_gaia,
}


class Stage:
    """A node that plugins of ours serve, each a kind of pods."""

    def __init__(self, node: Node, folder: Path, *kinds: str, flags: Sequence[str] = ()) -> None:
        self.node, self.client = node, node.cluster.client
        self.plugins: dict[str, PluginNode] = {}
        self.crossed: set[str] = set()
        """Pods, with their namespaces, that were refused with an answer for another: a plugin that
        starts meanwhile finds that the kubelet's checkpoint contradicts what they are promised."""
        for number, name in enumerate(kinds):
            (own := folder / name).mkdir(parents=True)
            plugin = KINDS[name].plugin(node, own, *flags, gpus=GPUS, port=PORT + number)
            self.plugins[name] = plugin

    # ------------------------------------------------------------ the programs

    def start(self) -> None:
        """Start all; they are ready when this returns."""
        self.launch(*self.plugins)
        self.wait_ready()

    def launch(self, *kinds: str, fault: str = "") -> None:
        """Start some; see PluginNode.start_plugin."""
        for name in kinds:
            self.plugins[name].make_device_nodes()
            self.plugins[name].start_plugin(fault=fault)

    def wait_ready(self, *kinds: str) -> None:
        """Until these, or else all, are ready, and the Node offers all that they have."""
        for name in kinds or self.plugins:
            KINDS[name].wait_served(self.plugins[name])

    def kill(self, *kinds: str) -> None:
        """SIGKILL, at once."""
        for name in kinds:
            self.plugins[name].kill()

    def close(self) -> None:
        """End all as a kubelet would."""
        for plugin in self.plugins.values():
            plugin.stop_plugin()

    # ------------------------------------------------------------ pods

    def pod(
        self, kind: str, name: str, namespace: str, *, gpu: int = 0, gib: int, **spec: Any
    ) -> Object:
        """A pod that the scheduler has promised so much of a GPU, and bound; created."""
        return self.client.create(self.promised_pod(kind, name, namespace, gpu, gib, **spec))

    def promised_pod(
        self, kind: str, name: str, namespace: str, gpu: int, gib: int, **spec: Any
    ) -> Object:
        """The same, not created."""
        asks = {"main": Ask(gpu, gib)}
        made = KINDS[kind].pod(name, namespace, self.plugins[kind], asks, **spec)
        made["metadata"]["annotations"][PROMISE] = f"{gpu} {gib}"
        return made

    def ready(self, *pods: Object) -> list[Object]:
        """The pods, when they run."""
        return [self.client.wait_for(pod, objects.ready, "Ready") for pod in pods]

    def seen(self, kind: str, pod: Object) -> Sight:
        """What its container sees."""
        shown = Shown.by(self.client, pod)
        if OVERRIDE in shown.mounts:
            late = late_env(self.node, first_process(self.node, pod))
            shown = shown._replace(env={**shown.env, **late})
        return SIGHTS[kind](self.plugins[kind], shown)

    # ------------------------------------------------------------ what is so

    def assignments(self, kind: str) -> tuple[ContainerDevices, ...]:
        """The kubelet's, of the binding resource."""
        return read_assignments(str(self.node.path(CHECKPOINT)), KINDS[kind].resource)

    def admitted_pods(self, kind: str) -> dict[str, AdmittedPod]:
        """Those of the plugin's own checkpoint, by UID."""
        scheme = Scheme(KINDS[kind].scheme)
        path = self.node.path(f"{STATE}/{file_name(scheme)}")
        kept = decode(path.read_bytes(), str(path), scheme, self.node.name)
        return {admitted_pod.pod.uid: admitted_pod for admitted_pod in kept.admitted_pods}

    def require_sound(self, kind: str, running: Iterable[Object]) -> None:
        """``running`` are all that do: each has its share, and no GPU is overcommitted.

        By what the containers see, the kubelet's checkpoint, our own checkpoint and the metrics.
        """
        plugin = self.plugins[kind]
        pods = {pod["metadata"]["uid"]: pod for pod in running}
        given: Counter[int] = Counter()
        for pod in pods.values():
            sight, promise = self.seen(kind, pod), promised(pod)
            assert sight in (promise, promise._replace(gib=None)), pod["metadata"]["name"]
            given[promise.gpu] += promise.gib or 0
        assert max(given.values(), default=0) <= GPU_GIB

        live = [one for one in self.assignments(kind) if one.pod_uid in pods]
        assert sorted(one.pod_uid for one in live) == sorted(pods)
        ids = Counter(each for one in live for each in one.ids)
        assert not [each for each, times in ids.items() if times > 1]
        assert len({one.name for one in live}) == len(live)

        kept = self.admitted_pods(kind)
        assert pods.keys() <= kept.keys(), "a live pod's devices were freed"
        for one in live:
            admitted_pod, promise = kept[one.pod_uid], promised(pods[one.pod_uid])
            (share,) = admitted_pod.shares
            held = plugin.uuids.index(share.device), share.memory_bytes
            assert held == (promise.gpu, (promise.gib or 0) * GIB)
            binding = admitted_pod.binding("main")
            assert binding is not None
            assert (binding.name, binding.shares) == (one.name, (share,))

        metrics = plugin.metrics()
        blamed = {
            line["pod"] for line in plugin.log_lines() if line["msg"] == "allocation conflict found"
        }
        assert metrics["vgpu_plugin_conflicts",] == 0 or set() < blamed <= self.crossed
        assert metrics["vgpu_plugin_tenants", "unbooked"] == 0
        assert metrics["vgpu_plugin_tenants", "foreign"] == 0


def promised(pod: Object) -> Sight:
    """What a pod is to have."""
    gpu, gib = pod["metadata"]["annotations"][PROMISE].split()
    return Sight(int(gpu), int(gib))


def settled(pod: Object) -> bool:
    """A condition for wait_for: it runs, or it never will."""
    return objects.ready(pod) or pod["status"].get("phase") == "Failed"


def refused_without_plugin(pod: Object) -> bool:
    """Whether the kubelet refused it for want of a plugin, and not the plugin by its own words."""
    status = pod["status"]
    refused = status.get("phase") == "Failed" and status["reason"] == "UnexpectedAdmissionError"
    return refused and not any(f"({why})" in status["message"] for why in BindRefusal)


def waits_with(why: BindRefusal) -> Callable[[Object], bool]:
    """A condition for wait_for: its container's start is refused for this reason."""

    def waits(pod: Object) -> bool:
        statuses = pod["status"].get("containerStatuses", ())
        messages = [one["state"].get("waiting", {}).get("message", "") for one in statuses]
        return any(f"({why})" in message for message in messages)

    return waits


def is_untouched(client: Client, pod: Object) -> bool:
    """Whether a pod that ran still does, with the same containers."""
    now = client.get(pod)

    def containers(of: Object) -> list[str]:
        return [one["containerID"] for one in of["status"]["containerStatuses"]]

    return objects.ready(now) and containers(now) == containers(pod)


def delete(client: Client, *pods: Object) -> None:
    """Delete pods, and wait until they are gone."""
    for pod in pods:
        client.delete(pod)
    for pod in pods:
        wait_until(lambda pod=pod: client.find(pod) is None, f"{pod['metadata']['name']} is gone")
