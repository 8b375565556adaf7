"""The originals' own schedulers, as far as the Go module proxy has their modules.

    with VolcanoScheduler(control_plane, node.name, folder) as scheduler:
        client.create(scheduler.group(pod))
        client.create(pod)

Volcano's is there. HAMi's, gpushare's extender and gpu-admission are not: the proxy answers 403
for their modules (``original_books`` stands in for them). Each original that is there is a Go
module of its own beside this file, built when a test asks for it.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

import yaml

from tests.support.bed import crds
from tests.support.bed.client import Object, Refused
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

SECRETS: Final = "/run/secrets/kubernetes.io/serviceaccount"

NAME: Final = "volcano"
"""``schedulerName`` of its pods."""

HANDSHAKE: Final = "volcano.sh/node-vgpu-handshake"

QUEUE: Final = "/apis/scheduling.volcano.sh/v1beta1/queues/default"

GROUP: Final = "scheduling.k8s.io/group-name"
"""A pod's annotation: its PodGroup. Volcano's controllers would write it."""


def configuration(sharing: Mapping[str, Any]) -> dict[str, Any]:
    """vc-scheduler's configuration; ``sharing`` is the plugin that divides the Queues' capacity."""
    of_vgpu = {"name": "deviceshare", "arguments": {"deviceshare.VGPUEnable": True}}
    return {
        "actions": "enqueue, allocate",
        "tiers": [
            {"plugins": [{"name": "priority"}, {"name": "gang"}]},
            {"plugins": [of_vgpu, {"name": "predicates"}, sharing, {"name": "nodeorder"}]},
        ],
    }


CONFIGURATION: Final = configuration({"name": "proportion"})


class VolcanoScheduler:
    """vc-scheduler at a control plane while the block lasts; ``node`` is the one with GPUs."""

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        folder: Path,
        configuration: Mapping[str, Any] = CONFIGURATION,
    ) -> None:
        self._client, self._node, self._folder = cluster.client, f"/api/v1/nodes/{node}", folder
        address = f"{cluster.workplace.address}:{cluster.workplace.port()}"
        (file := folder / "volcano.yaml").write_text(yaml.safe_dump(dict(configuration)))
        self._command = [
            *_with_service_account(cluster, folder / "account"),
            ensure(PROGRAM, build=True, recipes=RECIPES[:1]).path(PROGRAM),
            f"--kubeconfig={self._client.kubeconfig}",
            f"--scheduler-conf={file}",
            f"--scheduler-name={NAME}",
            f"--listen-address={address}",
            "--leader-elect=false",
            "--schedule-period=200ms",
            "--v=1",
        ]
        host, _, port = self._client.server.removeprefix("https://").rpartition(":")
        self._env = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}

    def __enter__(self) -> Self:
        files = module_folder("volcano", build=True, recipes=RECIPES) / CRDS
        crds.load(self._client, *sorted(files.glob("*.yaml")))
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._daemon.stop()

    def restart(self) -> None:
        """It knows the API server's objects again."""
        self._daemon.stop()
        self._start()

    def _start(self) -> None:
        """Started, and it knows the node's GPUs.

        Before that it binds pods without a promise: it reads a node's GPUs only when the node
        changes after the first session has begun. A controller of Volcano's would open its queue.
        """
        log = self._folder / "vc-scheduler.log"
        self._daemon = Daemon("vc-scheduler", self._command, log, env=self._env)
        self._daemon.wait_until(lambda: self._client.find(QUEUE), "a queue", failures=(Refused,))
        self._client.patch(QUEUE, {"status": {"state": "Open"}}, "status")
        before = self._handshake()

        def asked() -> bool:
            self._client.patch(self._node, {"metadata": {"labels": {"test/touched": uuid4().hex}}})
            return self._handshake() != before

        self._daemon.wait_until(asked, "has asked whether the node's plugin lives")

    def _handshake(self) -> str | None:
        return self._client.get(self._node)["metadata"]["annotations"].get(HANDSHAKE)

    @staticmethod
    def group(pod: Object) -> Object:
        """The PodGroup of a pod that is a job of its own; the pod is left to the scheduler."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        pod["metadata"]["annotations"][GROUP] = name
        pod["spec"]["schedulerName"] = NAME
        return {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"minMember": 1, "queue": "default"},
        }


def _with_service_account(cluster: Cluster, folder: Path) -> list[str]:
    """A command that runs another with a service account mounted, as in a pod.

    Volcano's part for GPUs takes no kubeconfig.
    """
    folder.mkdir()
    identity = json.loads(cluster.client_for("cluster-admin").kubeconfig.read_text())
    (folder / "token").write_text(identity["users"][0]["user"]["token"])
    shutil.copy(cluster.authority.ca.certificate, folder / "ca.crt")
    mount = f"mount -t tmpfs account /run && mkdir -p {SECRETS} && cp {folder}/* {SECRETS}"
    return ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
