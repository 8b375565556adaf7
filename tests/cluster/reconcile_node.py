"""A simulated GPU node whose pods exist on a real API server, under the UIDs of that server.

The files are those of :mod:`simulator`, in their real formats; the pods are the simulator's,
and a test adds their faults.
"""

import json
from pathlib import Path

from msgspec.structs import replace

from simulator.demo import demo
from simulator.node import SimulatedNode, region_path
from simulator.scenario import Scenario
from tests.cluster.reconciling import Stage
from tests.reconciler import samples
from tests.support.bed.client import Object
from vgpu.model.allocation import Device
from vgpu.model.names import PodRef
from vgpu.model.units import GIB
from vgpu.schemes.volcano.codec import HAMI, VOLCANO, Volcano

SECOND = 5.0
"""Of the demo's story."""


class NodeOnStage:
    """A node, the demo's if not set. ``sim`` is its files and driver, ``pods`` its objects by name.

    ``registers`` is whether Volcano's and HAMi's plugins have registered its GPUs; else it has
    these ``units`` of NVIDIA's plugin.
    """

    def __init__(
        self,
        stage: Stage,
        namespace: str,
        folder: Path,
        scenario: Scenario | None = None,
        *,
        registers: bool = True,
        units: int = 20,
    ) -> None:
        scenario = _in(scenario or demo(), namespace)
        draft = SimulatedNode(scenario, folder / "draft")
        draft.write(SECOND)
        wanted = json.loads(Path(draft.paths.pods_file).read_bytes())["items"]
        made = [_put(stage, pod) for pod in wanted]
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in made}
        self.pods = dict(zip(uids, made, strict=True))
        self.name = scenario.node
        self.object = stage.put(_node(scenario, units, registers=registers))
        self.sim = SimulatedNode(_with_uids(scenario, uids), folder / "node")
        self.sim.write(SECOND)

    def pod(self, prefix: str) -> Object:
        """The pod whose name begins so, as it was made."""
        (found,) = (pod for name, pod in self.pods.items() if name.startswith(prefix))
        return found

    def flags(self) -> list[str]:
        """Where the node's things are; it has no driver that a command could ask."""
        paths = self.sim.paths
        return [
            "--scope=node",
            f"--node-name={self.name}",
            "--no-collector.nvml",
            "--volcano.memory-factor=1024",
            "--gpushare.memory-unit=GiB",
            *(f"--shim.root={root}" for root in paths.shim_roots),
            f"--path.procfs={paths.procfs}",
            f"--path.cgroupfs={paths.cgroupfs}",
            f"--kubelet.log-dir={paths.log_dir}",
            f"--kubelet.checkpoint={paths.checkpoint}",
            f"--limits.gaia-dir={paths.gaia_dir}",
            f"--limits.kubeshare-dir={paths.kubeshare_dir}",
            f"--limits.mps-dir={paths.mps_dir}",
            f"--plugin.state-dir={paths.state_dir}",
        ]

    @property
    def orphan(self) -> Path:
        """The folder that a deleted pod has left behind, or had."""
        ((pod, container),) = (
            (pod, one) for pod, one in self.sim.scenario.containers() if pod.deleted
        )
        return (self.sim.folder / region_path(pod, container)).parent

    @property
    def folders(self) -> set[Path]:
        """All shims' folders."""
        return {path for root in self.sim.paths.shim_roots for path in Path(root).glob("*_*")}


def _in(scenario: Scenario, namespace: str) -> Scenario:
    """The same, with all pods in one namespace."""
    pods = [replace(pod, ref=replace(pod.ref, namespace=namespace)) for pod in scenario.pods]
    return replace(scenario, pods=tuple(pods))


def _with_uids(scenario: Scenario, uids: dict[str, str]) -> Scenario:
    """The same, under the UIDs of the API server; a deleted pod keeps its own."""

    def renamed(ref: PodRef) -> PodRef:
        return replace(ref, uid=uids.get(ref.name, ref.uid))

    return replace(
        scenario, pods=tuple(replace(pod, ref=renamed(pod.ref)) for pod in scenario.pods)
    )


def _put(stage: Stage, pod: Object) -> Object:
    """The pod as it is created, then with the status of its kubelet."""
    metadata = {
        key: value
        for key, value in pod["metadata"].items()
        if key not in ("uid", "creationTimestamp")
    }
    made = stage.put({**pod, "metadata": metadata, "status": {}})
    return stage.client.patch(made, {"status": pod["status"]}, "status", fieldManager="kubelet")


def _node(scenario: Scenario, units: int, *, registers: bool):
    """The node, if ``registers`` with its GPUs registered by the plugins of Volcano and HAMi."""
    node = samples.node(scenario.node)
    if not registers:
        offered = node.capacity | {"nvidia.com/gpu": units}
        return replace(node, annotations={}, capacity=offered, allocatable=offered)
    gpus = [
        Device(gpu.uuid, gpu.index, gpu.memory_bytes // GIB * GIB, slots=10)
        for gpu in scenario.gpus
    ]
    annotations = Volcano(VOLCANO, 1024).register(gpus) | Volcano(HAMI).register(gpus)
    return replace(node, annotations=annotations)
