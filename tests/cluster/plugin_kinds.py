"""The four systems that the plugin serves, for tests that ask the same of each.

    kind = KINDS["gpushare"]
    with kind.plugin(node, folder) as plugin:
        pod = kind.pod("a", namespace, plugin, {"main": Ask(gpu=1, gib=3)})
        plugin.start(pod)
        kind.given(plugin, made, "main", Ask(1, 3), name)

The expected answer for a container is here in full, as the original plugins' Allocate answers.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.plugin_node import PORT, PluginNode, gaia_pod, gpushare_pod, volcano_pod
from tests.deviceplugin.driver_host import DriverHost, elf
from tests.support.bed.client import Object
from tests.support.bed.node import Node
from vgpu.model.units import GIB
from vgpu.schemes.volcano.key_set import HAMI, VOLCANO, KeySet

UNIT_MIB = 64
"""Of Volcano's memory here."""

CORES = 3
"""Percent that Volcano's and HAMi's pods ask for."""

GAIA_CORES = 5

BLOCKS_IN_GIB = 4
"""Of gpu-manager's memory, 256 MiB each."""

SPLIT = 20

GPU_GIB = 64
"""Of each GPU: enough for all pods of a test module."""

DRIVER = "/var/lib/driver-host"
"""On the node: a host's root with an NVIDIA driver."""

DIALECTS = {"volcano": VOLCANO, "hami": HAMI}

GPU_NUMBERS = "1:3"
"""Of all of the bed's GPUs, which are /dev/null."""


class Ask(NamedTuple):
    """What one container was promised."""

    gpu: int
    gib: int


class Given(NamedTuple):
    """See :class:`plugin_sight.Sight`."""

    env: Mapping[str, str]
    mounts: Mapping[str, tuple[str, str]]
    devices: Mapping[str, str]


Asks = Mapping[str, Ask | None]
"""By container, in the spec's order; None asks for nothing."""


class Kind(NamedTuple):
    """One system.

    Attributes:
        scheme: ``--scheme``.
        offered: resource -> what a GPU has of it, the binding one first.
        late: whether limits reach a container by a file where there is no CDI.
        by_gpu: whether the kubelet asks for the same number whatever the memory is.
    """

    name: str
    scheme: str
    offered: Mapping[str, int]
    flags: Sequence[str]
    late: bool
    by_gpu: bool
    make: Callable[..., Object]
    given: Callable[[PluginNode, Object, str, Ask, str], Given]

    @property
    def resource(self) -> str:
        """The binding one."""
        return next(iter(self.offered))

    def plugin(
        self, node: Node, folder: Path, *flags: str, gpus: int = 2, port: int = PORT
    ) -> PluginNode:
        """To be used in a with block."""
        if self.scheme == "gaia":
            lay_out_driver(node)
        all_flags = [*self.flags, *flags]
        memory = GPU_GIB * GIB
        made = PluginNode(
            node, self.scheme, folder, gpus=gpus, memory=memory, flags=all_flags, port=port
        )
        if self.scheme == "volcano":
            made.lay_out_shim()
        return made

    def wait_served(self, plugin: PluginNode) -> None:
        """Until the Node offers it."""
        plugin.wait_ready()
        self.wait_offered(plugin, len(plugin.uuids))

    def wait_offered(self, plugin: PluginNode, gpus: int) -> None:
        """Until the Node gives all that so many GPUs have."""
        for resource, per_gpu in self.offered.items():
            plugin.wait_offered(resource, gpus * per_gpu)

    def pod(self, name: str, namespace: str, plugin: PluginNode, asks: Asks, **spec: Any) -> Object:
        """A pod as its scheduler leaves it."""
        return self.make(name, namespace, plugin, asks, **spec)


# ---------------------------------------------------------------- pods


def _volcano(
    key_set: KeySet, name: str, namespace: str, plugin: PluginNode, asks: Asks, **spec: Any
) -> Object:
    units = 1024 // UNIT_MIB if key_set.counts_units else 1024
    slices = {
        container: [(ask.gpu, ask.gib * units, CORES)] if ask else []
        for container, ask in asks.items()
    }
    return volcano_pod(name, namespace, plugin, slices, key_set, **spec)


def _gpushare(name: str, namespace: str, plugin: PluginNode, asks: Asks, **spec: Any) -> Object:
    (gpu,) = {ask.gpu for ask in asks.values() if ask}
    units = {container: ask.gib if ask else 0 for container, ask in asks.items()}
    return gpushare_pod(name, namespace, plugin, gpu, units, **spec)


def _gaia(name: str, namespace: str, plugin: PluginNode, asks: Asks, **spec: Any) -> Object:
    asked = {
        container: (GAIA_CORES, ask.gib * BLOCKS_IN_GIB, str(ask.gpu)) if ask else (0, 0, "")
        for container, ask in asks.items()
    }
    return gaia_pod(name, namespace, plugin, asked, **spec)


# ---------------------------------------------------------------- what they are allocated


def _volcano_given(
    key_set: KeySet, plugin: PluginNode, pod: Object, container: str, ask: Ask, name: str
) -> Given:
    shim, inside = "/usr/local/vgpu", {True: "/tmp/vgpu", False: "/usr/local/vgpu"}
    cache = inside[key_set is VOLCANO]
    folders = f"{shim}/vgpu/containers" if key_set is VOLCANO else f"{shim}/containers"
    env = {
        "NVIDIA_VISIBLE_DEVICES": plugin.uuids[ask.gpu],
        "CUDA_DEVICE_MEMORY_LIMIT_0": f"{ask.gib * 1024}m",
        "CUDA_DEVICE_SM_LIMIT": str(CORES),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{cache}/{name}.cache",
    }
    mounts = {
        f"{shim}/libvgpu.so": (f"{shim}/libvgpu.so", "ro"),
        cache: (f"{folders}/{pod['metadata']['uid']}_{container}", "rw"),
        "/tmp/vgpulock": ("/tmp/vgpulock", "rw"),
        "/etc/ld.so.preload": (f"{shim}/ld.so.preload", "ro"),
    }
    return Given(env, mounts, {})


def _gpushare_given(plugin: PluginNode, _pod: Object, _container: str, ask: Ask, _: str) -> Given:
    env = {
        "NVIDIA_VISIBLE_DEVICES": plugin.uuids[ask.gpu],
        "ALIYUN_COM_GPU_MEM_IDX": str(ask.gpu),
        "ALIYUN_COM_GPU_MEM_POD": str(ask.gib),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(ask.gib),
        "ALIYUN_COM_GPU_MEM_DEV": str(GPU_GIB),
    }
    return Given(env, {}, {})


def _gaia_given(plugin: PluginNode, pod: Object, _container: str, ask: Ask, _: str) -> Given:
    driver = plugin.node.run(["readlink", "-m", "/etc/gpu-manager/vdriver/nvidia"]).strip()
    env = {
        "NVIDIA_VISIBLE_DEVICES": plugin.uuids[ask.gpu],
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
    }
    mounts = {
        "/usr/local/nvidia": (driver, "ro"),
        "/etc/vcuda": (f"/etc/gpu-manager/vm/{pod['metadata']['uid']}", "ro"),
    }
    nodes = (f"/dev/nvidia{ask.gpu}", "/dev/nvidiactl", "/dev/nvidia-uvm")
    return Given(env, mounts, dict.fromkeys(nodes, GPU_NUMBERS))


def lay_out_driver(node: Node) -> None:
    """A driver with gpu-manager's library and its client beside it, as a host has them."""
    root = node.path(DRIVER)
    if root.exists():
        return
    root.mkdir(parents=True)
    host = DriverHost(root)
    host.driver()
    host.put("/usr/bin/libcuda-control.so", elf(64, "libcuda-control.so"))
    host.put("/usr/bin/gpu-client", b"")


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "volcano",
            "volcano",
            {
                "volcano.sh/vgpu-number": SPLIT,
                "volcano.sh/vgpu-memory": GPU_GIB * 1024 // UNIT_MIB,
                "volcano.sh/vgpu-cores": 100,
            },
            [f"--volcano.memory-factor={UNIT_MIB}", f"--volcano.split-count={SPLIT}"],
            late=True,
            by_gpu=True,
            make=partial(_volcano, VOLCANO),
            given=partial(_volcano_given, VOLCANO),
        ),
        Kind(
            "hami",
            "volcano",
            {"nvidia.com/gpu": SPLIT},
            ["--volcano.dialect=hami", f"--volcano.split-count={SPLIT}"],
            late=True,
            by_gpu=True,
            make=partial(_volcano, HAMI),
            given=partial(_volcano_given, HAMI),
        ),
        Kind(
            "gpushare",
            "gpushare",
            {"aliyun.com/gpu-mem": GPU_GIB},
            [],
            late=False,
            by_gpu=False,
            make=_gpushare,
            given=_gpushare_given,
        ),
        Kind(
            "gaia",
            "gaia",
            {"tencent.com/vcuda-core": 100, "tencent.com/vcuda-memory": GPU_GIB * BLOCKS_IN_GIB},
            [
                f"--gaia.host-root={DRIVER}",
                f"--gaia.control-library={DRIVER}/usr/bin/libcuda-control.so",
            ],
            late=False,
            by_gpu=True,
            make=_gaia,
            given=_gaia_given,
        ),
    )
}
