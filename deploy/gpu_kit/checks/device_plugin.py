"""The device plugin's discovery and health watch, device nodes, and the CDI spec."""

import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from deploy.gpu_kit.deadline import until
from deploy.gpu_kit.kit import Kit
from deploy.gpu_kit.kubelet import Kubelet
from deploy.gpu_kit.processes import KitError, module
from deploy.gpu_kit.result import Result, equal, holds, not_run
from deviceplugin.injection import cdi
from simulator.apiserver import ApiServer
from simulator.store import ObjectStore
from vgpu.kube.kinds import NODES
from vgpu.model.allocation import Allocation, Device, Share
from vgpu.model.names import Phase, PodRef, Scheme
from vgpu.model.units import GIB, WHOLE_DEVICE_MILLI
from vgpu.schemes.gaia.codec import Gaia

RESOURCE: Final = "aliyun.com/gpu-mem"
SECONDS: Final = 20.0
NODE: Final = "gpu-kit"
_MINOR: Final = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)
_NODE: Final = re.compile(r"/dev/nvidia\d+")


def check(kit: Kit) -> Iterator[Result]:
    """See the module."""
    yield from _minors(kit)
    yield from _cdi(kit)
    yield from _plugin(kit)


def _plugin(kit: Kit) -> Iterator[Result]:
    """The program, beside a kubelet of ours and a simulated API server."""
    sizes = {gpu.uuid: int(gpu.readings().get("memory_total_bytes", 0)) for gpu in kit.answers.gpus}
    folder = kit.new_folder("plugin")
    with ExitStack() as stack:
        # A socket's path may have 107 characters.
        sockets = Path(stack.enter_context(TemporaryDirectory(prefix="gpu-kit-")))
        store = ObjectStore()
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        store.create(NODES, node)
        server = stack.enter_context(ApiServer(store))
        (folder / "kubeconfig").write_text(server.kubeconfig())
        kubelet = stack.enter_context(Kubelet(sockets))
        process = kit.processes.start(_command(folder, sockets), kit.log)
        stack.callback(kit.processes.end, process, signal.SIGKILL)

        def advertised() -> dict[str, str]:
            if process.poll() is not None:
                raise KitError(f"the device plugin ended with status {process.returncode}")
            return kubelet.devices().get(RESOURCE, {})

        devices = until(advertised, SECONDS)
    expected = {uuid: size // GIB for uuid, size in sizes.items()}
    found = {uuid: sum(ID.startswith(uuid) for ID in devices) for uuid in sizes}
    yield equal("device-plugin/GiB that it advertises of each GPU", expected, found)
    yield equal("device-plugin/health of all of them", ["Healthy"], sorted(set(devices.values())))


def _command(folder: Path, sockets: Path) -> list[str]:
    return module(
        "vgpu",
        "device-plugin",
        "--scheme=gpushare",
        f"--node-name={NODE}",
        f"--kubeconfig={folder}/kubeconfig",
        "--web.listen-address=127.0.0.1:0",
        f"--cdi.spec-dir={folder}/cdi",
        f"--state-dir={folder}/state",
        f"--kubelet.dir={sockets}",
        f"--kubelet.pod-resources={folder}/no.sock",
        f"--kubelet.log-dir={folder}/logs",
        "--log.level=warn",
    )


def _minors(kit: Kit) -> Iterator[Result]:
    """The driver's minor numbers beside the kernel module's, and beside the indices."""
    for gpu in kit.answers.gpus:
        title = f"device-plugin/minor number of GPU {gpu.index}"
        bus = gpu.info.get("pci_bus_id", "").lower().removeprefix("0000")
        file = kit.driver_proc / "gpus" / bus / "information"
        minor = gpu.info.get("minor")
        try:
            found = _MINOR.search(file.read_text(errors="replace"))
        except OSError as error:
            yield not_run(title, f"{file}: {error.strerror}", minor)
            continue
        yield equal(title, found[1] if found else None, minor)
    minors = [gpu.info.get("minor") for gpu in kit.answers.gpus]
    kit.facts["minors_are_indices"] = minors == [str(gpu.index) for gpu in kit.answers.gpus]


def _cdi(kit: Kit) -> Iterator[Result]:
    """The device nodes of our CDI spec are those of NVIDIA's for the same GPU."""
    title = f"device-plugin/CDI device nodes of GPU {kit.gpu.index}"
    ours = our_nodes(kit)
    if shutil.which("nvidia-ctk") is None:
        yield not_run(title, "nvidia-ctk is not installed", sorted(ours))
        return
    try:
        printed = kit.processes.output(
            ["nvidia-ctk", "cdi", "generate", "--format=json"], kit.log, seconds=15
        )
        theirs = nodes_of(msgspec.json.decode(printed), kit.gpu.uuid, kit.gpu.index)
    except (KitError, msgspec.DecodeError) as error:
        yield not_run(title, f"nvidia-ctk: {error}", sorted(ours))
        return
    gpus = {node for node in ours if _NODE.fullmatch(node)}
    yield equal(title, sorted(node for node in theirs if _NODE.fullmatch(node)), sorted(gpus))
    missing = sorted(ours - theirs)
    expected = "all device nodes of ours are in NVIDIA's spec"
    yield holds(f"{title} and of the driver", expected, missing, true=not missing)


def our_nodes(kit: Kit) -> frozenset[str]:
    """The device nodes in the CDI spec of a container that holds the whole GPU."""
    uuid = kit.gpu.uuid
    minor = kit.gpu.info.get("minor", "")
    device = Device(uuid=uuid, memory_bytes=0, minor=int(minor) if minor.isdecimal() else None)
    pod = PodRef(uid="gpu-kit", name="gpu-kit", namespace="gpu-kit")
    share = Share(uuid, cores_milli=WHOLE_DEVICE_MILLI)
    allocation = Allocation("main", (share,), Phase.ASSIGNED)
    edits = Gaia().edits(pod, allocation, {uuid: device})
    spec = msgspec.json.decode(cdi.spec("0" * 24, edits, Scheme.GAIA, "gpu-kit"))
    return frozenset(_paths(spec["devices"][0]))


def nodes_of(spec: Mapping[str, Any], uuid: str, index: int) -> frozenset[str]:
    """The device nodes of a GPU in NVIDIA's CDI spec, with those of every device."""
    devices = {device["name"]: device for device in spec.get("devices", ())}
    device = devices.get(uuid) or devices.get(str(index)) or {}
    return frozenset((*_paths(device), *_paths(spec)))


def _paths(part: Mapping[str, Any]) -> Iterator[str]:
    for node in part.get("containerEdits", {}).get("deviceNodes", ()):
        yield node["path"]
