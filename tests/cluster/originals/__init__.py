"""The originals' own schedulers, as far as the Go module proxy has their modules.

    with VolcanoScheduler(control_plane, folder) as scheduler:
        client.create(scheduler.group(pod))
        client.create(pod)

Volcano's is there. HAMi's, gpushare's extender and gpu-admission are not: the proxy has no version
of their modules. Each is a Go module of its own beside this file, built when a test asks for it.
"""

from pathlib import Path
from types import TracebackType
from typing import Final, Self

import yaml

from tests.support.bed import crds
from tests.support.bed.client import Object
from tests.support.bed.cluster import Cluster
from tests.support.bed.gomodules import Recipe
from tests.support.bed.processes import Daemon
from tests.support.bed.tools import ensure, module_folder

VOLCANO: Final = Path(__file__).with_name("volcano")
MODULE: Final = "volcano.sh/volcano"
PROGRAM: Final = "scheduler"
CRDS: Final = "config/crd/volcano/bases"

RECIPES: Final = (
    Recipe(VOLCANO, MODULE, programs=(PROGRAM,)),
    Recipe(VOLCANO, MODULE, kept=(CRDS,)),
)

NAME: Final = "volcano"
"""``schedulerName`` of its pods."""

GROUP: Final = "scheduling.k8s.io/group-name"
"""A pod's annotation: its PodGroup. Volcano's controllers would write it."""

CONFIGURATION: Final = {
    "actions": "enqueue, allocate",
    "tiers": [
        {"plugins": [{"name": "priority"}, {"name": "gang"}]},
        {
            "plugins": [
                {"name": "deviceshare", "arguments": {"deviceshare.VGPUEnable": True}},
                {"name": "predicates"},
                {"name": "proportion"},
                {"name": "nodeorder"},
            ]
        },
    ],
}


class VolcanoScheduler:
    """vc-scheduler at a control plane while the block lasts."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._daemon: Daemon | None = None

    def __enter__(self) -> Self:
        client, workplace = self._cluster.client, self._cluster.workplace
        files = module_folder("volcano", build=True, recipes=RECIPES) / CRDS
        crds.load(client, *sorted(files.glob("scheduling*.yaml")), *files.glob("nodeinfo*.yaml"))
        configuration = self._folder / "volcano.yaml"
        configuration.write_text(yaml.safe_dump(CONFIGURATION))
        command = [
            ensure(PROGRAM, build=True, recipes=RECIPES[:1]).path(PROGRAM),
            f"--kubeconfig={client.kubeconfig}",
            f"--scheduler-conf={configuration}",
            f"--scheduler-name={NAME}",
            f"--listen-address={workplace.address}:{workplace.port()}",
            "--leader-elect=false",
            "--schedule-period=200ms",
            "--v=3",
        ]
        self._daemon = Daemon("vc-scheduler", command, self._folder / "vc-scheduler.log")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._daemon is not None:
            self._daemon.stop()

    @staticmethod
    def group(pod: Object) -> Object:
        """The PodGroup of a pod that is a job of its own; the pod is given to the scheduler."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        pod["metadata"]["annotations"][GROUP] = name
        pod["spec"]["schedulerName"] = NAME
        return {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"minMember": 1, "queue": "default"},
        }
