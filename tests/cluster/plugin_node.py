"""Our own device plugin on a node of the bed: the real command, over a driver of our own in C.

    with PluginNode(node, "volcano", gpus=2) as plugin:
        plugin.wait_ready()
        pod = plugin.start(volcano_pod("a", namespace, plugin, {"main": [(0, 1024, 50)]}))
        Shown.by(client, pod).env["CUDA_DEVICE_MEMORY_LIMIT_0"]

Pods carry the annotations that the original scheduler would have written, and the name of the node:
no scheduler is asked. ``kill`` ends the plugin with SIGKILL, ``start_plugin`` starts it again.
"""

import json
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.accounts import account
from tests.support.bed import objects
from tests.support.bed.client import Object
from tests.support.bed.node import Node
from tests.support.bed.processes import Daemon
from tests.support.nvml_fake import Device as Gpu
from tests.support.nvml_fake import FakeDriver, uuid
from tests.support.waiting import WAIT_SECONDS
from vgpu.schemes.volcano.key_set import VOLCANO, KeySet

KUBELET_DIR = "/var/lib/kubelet/device-plugins"
MIB = 2**20
GIB = 2**30
PORT = 9395

STARTED_WITH_FAULTS = Path(__file__).with_name("plugin_with_faults.py")


class PluginNode:
    """A plugin of one scheme that serves a node as long as the block lasts."""

    def __init__(
        self,
        node: Node,
        scheme: str,
        folder: Path,
        *,
        gpus: int = 2,
        memory: int = 16 * GIB,
        flags: Sequence[str] = (),
        kubeconfig: Path | None = None,
        port: int = PORT,
    ) -> None:
        self.node, self.scheme, self.client = node, scheme, node.cluster.client
        self.uuids = [uuid(number) for number in range(gpus)]
        self.memory, self.port = memory, port
        self.driver = FakeDriver(folder)
        self.flags = list(flags)
        if kubeconfig is None:
            part = f"device-plugin-{scheme}"
            kubeconfig = account(node.cluster, part, node=node.name).kubeconfig
        self._kubeconfig = kubeconfig
        self._daemon: Daemon | None = None
        self._starts = 0
        self.write_gpus()

    def __enter__(self) -> Self:
        self.make_device_nodes()
        self.start_plugin()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_plugin()

    # ------------------------------------------------------------ the driver

    def gpu(self, number: int, **numbers: object) -> Gpu:
        """As it is written for the driver."""
        return Gpu(
            self.uuids[number],
            total=self.memory,
            minor=number,
            bus=f"00000000:0{number}:00.0",
            **numbers,
        )

    def write_gpus(self, *, without: Sequence[int] = (), **more: Any) -> None:
        """What the driver reports from now on; ``more`` is FakeDriver.write's."""
        there = [self.gpu(n) for n in range(len(self.uuids)) if n not in without]
        self.driver.write(devices=there, **more)

    def make_device_nodes(self) -> None:
        """gpu-manager's devices of containers: here they are /dev/null under other names."""
        for name in (*(f"nvidia{n}" for n in range(len(self.uuids))), "nvidiactl", "nvidia-uvm"):
            path = f"/dev/{name}"
            if not self.node.path(path).exists():
                self.node.run(["mknod", "-m", "666", path, "c", "1", "3"])

    # ------------------------------------------------------------ the program

    def start_plugin(self, *, fault: str = "") -> None:
        """Start it; with a ``fault``, a step's name, it kills itself at that step."""
        self._starts += 1
        program = [STARTED_WITH_FAULTS, fault] if fault else ["-m", "vgpu"]
        command = [
            sys.executable,
            *program,
            "device-plugin",
            f"--scheme={self.scheme}",
            f"--node-name={self.node.name}",
            f"--kubeconfig={self._kubeconfig}",
            f"--web.listen-address={self.node.ip}:{self.port}",
            "--health.interval=0.5s",
            "--log.format=json",
            *self.flags,
        ]
        env = {**self.driver.env(), "PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "1"}
        env["PYTHONFAULTHANDLER"] = "1"  # a crash of a library prints where
        self._daemon = self.node.start(f"plugin-{self.scheme}-{self._starts}", command, env=env)

    @property
    def daemon(self) -> Daemon:
        """The running program."""
        assert self._daemon is not None
        return self._daemon

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.daemon.signal(signal.SIGKILL)
        self.daemon.wait()

    def stop_plugin(self) -> None:
        """End it as a kubelet would."""
        if self._daemon is not None and self._daemon.running:
            self._daemon.stop()

    def wait_ready(self) -> None:
        """Until it reports that it is ready; the Node may offer what it serves a moment later."""

        def ready() -> bool:
            with urlopen(
                f"http://{self.node.ip}:{self.port}/-/ready", timeout=WAIT_SECONDS
            ) as answer:
                return answer.status == 200

        try:
            self.daemon.wait_until(ready, "ready", failures=(URLError, OSError))
        except AssertionError as error:
            if crash := self.daemon.log().partition("Fatal Python error")[2]:
                error.add_note(f"Fatal Python error{crash}")  # the stack of every thread
            raise

    def wait_offered(self, resource: str, count: int) -> None:
        """Until the Node has so many of a resource to give."""

        def offers(node: Object) -> bool:
            return node["status"]["allocatable"].get(resource) == str(count)

        self.client.wait_for(f"/api/v1/nodes/{self.node.name}", offers, f"{count} of {resource}")

    def wait_offering(self, resources: Iterable[str]) -> Mapping[str, int]:
        """How much the Node has to give of each, once it has something of all of them.

        A plugin registers its resources one after another.
        """
        wanted = list(resources)

        def counts(node: Object) -> dict[str, int]:
            there = node["status"]["allocatable"]
            return {name: int(there.get(name, 0)) for name in wanted}

        node = self.client.wait_for(
            f"/api/v1/nodes/{self.node.name}",
            lambda node: all(counts(node).values()),
            f"some of {wanted}",
        )
        return counts(node)

    def metrics(self) -> Mapping[tuple[str, ...], float]:
        """Its own page: (name, label values …) -> value."""
        with urlopen(f"http://{self.node.ip}:{self.port}/metrics", timeout=WAIT_SECONDS) as answer:
            text = answer.read().decode()
        return {
            (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    # ------------------------------------------------------------ pods

    def start(self, pod: Object) -> Object:
        """Create a pod and wait until it runs.

        Raises:
            AssertionError: it never does; with the end of the plugin's log, and how it has ended.
        """
        try:
            return self.client.wait_for(self.client.create(pod), objects.ready, "Ready")
        except AssertionError as error:
            if self._daemon is not None:
                error.add_note(self.daemon.story(30))
            raise

    def lay_out_shim(self) -> None:
        """The files that HAMi-core's operator has put on the node."""
        folder = self.node.path("/usr/local/vgpu")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("libvgpu.so", "ld.so.preload"):
            (folder / name).write_bytes(b"")

    def log_lines(self) -> list[dict[str, Any]]:
        """What all starts of the plugin have logged, oldest first."""
        files = sorted(
            self.node._logs.glob(f"plugin-{self.scheme}-*.log"),
            key=lambda file: file.stat().st_mtime,
        )
        return [
            json.loads(line)
            for file in files
            for line in file.read_text().splitlines()
            if line.startswith("{")
        ]

    def checkpoint(self) -> Mapping[str, Any]:
        """The kubelet's, as it stands there."""
        return json.loads(self.node.path(f"{KUBELET_DIR}/kubelet_internal_checkpoint").read_bytes())


# ---------------------------------------------------------------- pods as schedulers leave them

Slices = Mapping[str, Sequence[tuple[int, int, int]]]
"""Container -> (GPU, units of memory, percent of cores) for each of its shares; it may have none.

In the annotations' order: HAMi's have restartable init containers first.
"""


def volcano_pod(
    name: str,
    namespace: str,
    plugin: PluginNode,
    slices: Slices,
    key_set: KeySet = VOLCANO,
    **spec: Any,
) -> Object:
    """A pod that Volcano's scheduler, or HAMi's, has promised these shares and bound."""

    def segment(shares: Sequence[tuple[int, int, int]]) -> str:
        return "".join(f"{plugin.uuids[c]},NVIDIA,{memory},{cores}:" for c, memory, cores in shares)

    devices_text = ";".join(
        segment(shares) for shares in slices.values() if shares or key_set.for_all
    )
    now = str(int(time.time()))
    annotations = {
        key_set.devices: devices_text,
        key_set.to_allocate: devices_text,
        key_set.node: plugin.node.name,
        key_set.time: now,
        key_set.bind_time: now,
        key_set.bind_phase: "allocating",
    }
    advertised = dict(key_set.advertised)
    containers = []
    for container, shares in slices.items():
        limits = {key_set.number: len(shares)} if shares else {}
        if shares and key_set.memory in advertised and "memory" in spec.get("counted", ("memory",)):
            limits[key_set.memory] = shares[0][1]
        containers.append(objects.container(container, limits=limits))
    spec.pop("counted", None)
    return objects.pod(
        name,
        namespace,
        annotations=annotations,
        nodeName=plugin.node.name,
        containers=containers,
        **spec,
    )


def gpushare_pod(
    name: str, namespace: str, plugin: PluginNode, gpu: int, units: Mapping[str, int], **spec: Any
) -> Object:
    """A pod that gpushare's extender has promised a GPU and bound; 0 units are not asked for."""
    total = sum(units.values())
    annotations = {
        "ALIYUN_COM_GPU_MEM_IDX": str(gpu),
        "ALIYUN_COM_GPU_MEM_DEV": str(plugin.memory // GIB),
        "ALIYUN_COM_GPU_MEM_POD": str(total),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(time.time_ns()),
    }
    containers = [
        objects.container(container, limits={"aliyun.com/gpu-mem": amount} if amount else {})
        for container, amount in units.items()
    ]
    return objects.pod(
        name,
        namespace,
        annotations=annotations,
        nodeName=plugin.node.name,
        containers=containers,
        **spec,
    )


def gaia_pod(
    name: str,
    namespace: str,
    plugin: PluginNode,
    asked: Mapping[str, tuple[int, int, str]],
    **spec: Any,
) -> Object:
    """A pod that gpu-admission has promised GPUs and bound.

    By container: cores, blocks of memory, and the GPUs ("0,1"), "" for none promised; 0 cores and
    blocks for one that asks for nothing.
    """
    annotations = {
        "tencent.com/predicate-time": str(time.time_ns()),
        "tencent.com/predicate-node": plugin.node.name,
        "tencent.com/gpu-assigned": "false",
        **{
            f"tencent.com/predicate-gpu-idx-{number}": gpus
            for number, (_, _, gpus) in enumerate(asked.values())
            if gpus
        },
    }
    containers = [
        objects.container(
            container,
            limits={
                resource: amount
                for resource, amount in (
                    ("tencent.com/vcuda-core", cores),
                    ("tencent.com/vcuda-memory", blocks),
                )
                if amount
            },
        )
        for container, (cores, blocks, _) in asked.items()
    ]
    return objects.pod(
        name,
        namespace,
        annotations=annotations,
        nodeName=plugin.node.name,
        containers=containers,
        **spec,
    )
